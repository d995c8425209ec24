"""The command `farside keygen`: makes and changes the cluster's key file.

A change without a gap: `add` on one node, copy the file to all, then `retire` and copy again. No process is restarted:
each reads the file again when it has changed. While the change lasts, any key that both sides know is good.
"""

import os
import secrets
from pathlib import Path

from farside.daemon.control.keys import KEY_BYTES, KEYS_MAX, read_keys
from farside.errors import ConfigError

_HEAD = "# Farside cluster key: whoever has it can lend and borrow memory. The first line is preferred.\n"


def make_key(path: Path) -> None:
    """Writes a new key file of mode 0600.

    Raises:
        ConfigError: It is there already, or can't be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)  # /etc/farside; a path with more than its last folder missing is a slip
        _write_new(path, (secrets.token_bytes(KEY_BYTES),))
    except FileExistsError as error:
        raise ConfigError(f"{path}: exists already", hint="use --add to put a new key before the old one") from error
    except OSError as error:
        raise _cannot_write(path, error) from error


def add_key(path: Path) -> None:
    """Puts a new key before the one that is there, which stays valid.

    Raises:
        ConfigError: There are two keys already, or the file can't be read or written.
    """
    keys = read_keys(path)
    if len(keys) >= KEYS_MAX:
        raise ConfigError(f"{path}: holds {len(keys)} keys already", hint="finish that change first, with --retire")
    _replace(path, (secrets.token_bytes(KEY_BYTES), *keys))


def retire_key(path: Path) -> None:
    """Takes the older of two keys out.

    Raises:
        ConfigError: There is only one key, or the file can't be read or written.
    """
    keys = read_keys(path)
    if len(keys) < 2:
        raise ConfigError(f"{path}: holds one key only", hint="there is no old key to retire")
    _replace(path, keys[:1])


def _replace(path: Path, keys: tuple[bytes, ...]) -> None:
    # A reader sees the old file or the new one, whole, whenever it looks.
    # In the same folder, as a rename is atomic within one file system only.
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.unlink(missing_ok=True)
        _write_new(beside, keys)
        # A program that runs as a user of its own owns the file and reads it again at a change. With mode 0600 a file
        # of root's would shut it out.
        status = path.stat()
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(beside, status.st_uid, status.st_gid)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _cannot_write(path, error) from error


def _write_new(path: Path, keys: tuple[bytes, ...]) -> None:
    # O_EXCL: never over a key that is there, nor through a link. The mode is given here, and not by chmod afterwards,
    # so that no other user can open the file in between.
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as stream:
            stream.write(_HEAD)
            stream.writelines(f"{key.hex()}\n" for key in keys)
            stream.flush()
            # Before the rename of `_replace`: after a crash the new name must not lead to an empty file.
            os.fsync(stream.fileno())
    except OSError:
        path.unlink()  # part of a key would be taken for one, and keep the next attempt from writing
        raise


def _cannot_write(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path}: {error.strerror}", hint="name a path that this user may write, or run as root")
