"""Pre-shared keys of NBD clients, as psktool writes them: USER:HEX, one a line."""

import string
from collections.abc import Mapping
from pathlib import Path

from farside.daemon.control.keys import read_private
from farside.errors import ConfigError
from farside.kmod_shim.engine.tls import KEY_BYTES_MAX, KEY_BYTES_MIN, USER_BYTES_MAX, USERS_MAX

_FILE_BYTES_MAX = USERS_MAX * (USER_BYTES_MAX + 2 * KEY_BYTES_MAX + 2)


def read_users(path: Path) -> Mapping[bytes, bytes]:
    """Keys by user.

    Raises:
        ConfigError: the file is missing, can be read by others, belongs to somebody else, or a line is not right.
    """
    text = read_private("tls_psk_file", path, _FILE_BYTES_MAX, made_by=f"make one: psktool -u USER -p {path}")
    return parse_users(text, str(path))


def parse_users(text: bytes, name: str) -> Mapping[bytes, bytes]:
    """The keys in such a file's text; ``name`` is for error messages. Raises ConfigError."""
    users: dict[bytes, bytes] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            user, key = _parse_line(line.strip(), f"tls_psk_file {name}:{number}")
            if user in users:
                raise ConfigError(f"tls_psk_file {name}:{number}: this user has a key above", hint="take one out")
            users[user] = key
    if not 1 <= len(users) <= USERS_MAX:
        raise ConfigError(f"tls_psk_file {name}: holds {len(users)} keys, needs 1 to {USERS_MAX}")
    return users


def _parse_line(line: bytes, where: str) -> tuple[bytes, bytes]:
    # The name may have colons; hex has none. The key itself is in no message.
    user, colon, text = line.rpartition(b":")
    if not colon or not user or len(user) > USER_BYTES_MAX:
        raise ConfigError(f"{where}: not USER:HEX", hint=f"a user has 1 to {USER_BYTES_MAX} bytes")
    # GnuTLS's programs take what follows # for a name in hex: they and we would mean two users.
    if user.startswith(b"#"):
        raise ConfigError(f"{where}: begins with #", hint="there are no comments here; take the line out")
    try:
        is_hex = all(byte in string.hexdigits.encode() for byte in text)
        key = bytes.fromhex(text.decode("ascii")) if is_hex else b""
    except ValueError:
        key = b""
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise ConfigError(f"{where}: the key is not {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes in hex")
    return user, key
