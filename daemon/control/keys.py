"""Read the cluster key file.

One key a line, 32 bytes as 64 hex digits or as base64; empty lines and lines that begin with # are skipped. At most
two keys: the first is preferred, either is accepted. That is how a key is changed without a gap: add the new one on
every node, before the old one (`farside keygen --add` does) or behind it, and only then take the old one out. `KeyRing`
sees the file change, so that no process is restarted for it.
"""

import base64
import binascii
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from farside.errors import ConfigError
from farside.log import get_log
from farside.whole_file import file_stamp

_log = get_log("daemon.keys")

KEY_BYTES = 32
KEYS_MAX = 2
SERVICE_USER = "farside"  # systemd/sysusers.d
_FILE_BYTES_MAX = 4096  # two keys and some comments


def read_keys(path: str | Path) -> tuple[bytes, ...]:
    """Returns the one or two keys of a key file, preferred first.

    Raises:
        ConfigError: the file is missing, can be read by others, belongs to somebody else, or holds no usable keys.
    """
    text = read_private("key file", path, _FILE_BYTES_MAX, made_by="make one with `farside keygen`")
    return parse_keys(text, str(path))


def read_private(name: str, path: str | Path, bytes_max: int, *, made_by: str) -> bytes:
    """Content of a file that only its owner may use: this process's user, root, or the service's user.

    ``name`` is what the user knows the file by, ``made_by`` what to do where there is none.

    Raises:
        ConfigError: the file is missing, can be read by others, belongs to somebody else, or is longer than
            ``bytes_max``.
    """
    try:
        # O_NONBLOCK: a fifo put in the key file's place must not hang the start.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise ConfigError(f"{name} {path}: {error.strerror}; {made_by}") from error
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror}; let this process's user read it") from error
    try:
        # Of the open file, not of the path, which could name another file by then.
        _check_access(name, path, os.fstat(fd))
        # One byte more than may be there shows that the file is too long.
        text = os.read(fd, bytes_max + 1)
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror}; is its disk well?") from error
    finally:
        os.close(fd)
    if len(text) > bytes_max:
        raise ConfigError(f"{name} {path}: larger than {bytes_max} bytes, so not a key file")
    return text


class KeyRing:
    """The keys of one key file as they are now: it is read again when it has changed.

    The last good ones stand when a change of it is not usable.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when there is no usable key at the start."""
        self._path = path
        # The stamp before the text: a change in between is then seen as one, and read again.
        self._seen = file_stamp(self._path)
        self._keys = read_keys(path)
        self._refused = ""  # what was last said of it

    def current(self) -> tuple[bytes, ...]:
        """The keys, preferred first."""
        stamp = file_stamp(self._path)
        if stamp != self._seen:
            try:
                self._keys, self._seen, self._refused = read_keys(self._path), stamp, ""
            except ConfigError as error:
                # Tried again each time: what it lacked (a mode, a free descriptor) may come without a change of it.
                if str(error) != self._refused:
                    self._refused = str(error)
                    _log.error("the key file is not usable; the keys stay as they were", reason=error)
        return self._keys


def parse_keys(text: bytes, name: str) -> tuple[bytes, ...]:
    """Return the keys in a key file's text; `name` is for error messages."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    keys = tuple(_parse_key(line, f"{name}:{number}") for number, line in lines if line and not line.startswith(b"#"))
    if not 1 <= len(keys) <= KEYS_MAX:
        raise ConfigError(f"key file {name}: holds {len(keys)} keys, needs 1 or {KEYS_MAX}")
    if len(set(keys)) != len(keys):
        raise ConfigError(f"key file {name}: holds the same key twice")
    return keys


def _check_access(name: str, path: str | Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{name} {path}: not a regular file")
    if status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(f"{name} {path}: others may use it (mode {mode:04o}); chmod 0600 {path}")
    if status.st_uid not in _trusted_uids():
        raise ConfigError(f"{name} {path}: belongs to uid {status.st_uid}; it must belong to this user or root")


def _trusted_uids() -> set[int]:
    # A machine that lends as the service's own user, and borrows as root, has one key file for both.
    trusted = {os.geteuid(), 0}
    if os.geteuid() == 0:
        with suppress(KeyError):
            trusted.add(pwd.getpwnam(SERVICE_USER).pw_uid)
    return trusted


def _parse_key(line: bytes, where: str) -> bytes:
    try:
        key = bytes.fromhex(line.decode("ascii")) if len(line) == 2 * KEY_BYTES else _base64(line)
    except (ValueError, binascii.Error):
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(f"key file {where}: not {KEY_BYTES} bytes in hex or base64")
    return key


def _base64(line: bytes) -> bytes:
    return base64.b64decode(line, validate=True)
