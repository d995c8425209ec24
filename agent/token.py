"""Read the file of this node's token."""

import os
import stat
from pathlib import Path

from farside.errors import ConfigError

TOKEN_BYTES_MAX = 512


def read_token(path: Path) -> str:
    """The token: one line of printable characters without spaces.

    Raises:
        ConfigError: the file is missing, can be read by others, or holds something else.
    """
    try:
        # O_NONBLOCK: a fifo in its place must not hang the start.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"token_file {path}: {error.strerror}", hint="the manager's operator makes one") from error
    try:
        # Of the open file: the path may name another one by then.
        told = os.fstat(fd)
        if stat.S_IMODE(told.st_mode) & 0o077:
            raise ConfigError(f"token_file {path}: others may read it", hint=f"chmod 600 {path}")
        # One byte more than may be there shows that it is too long.
        text = os.read(fd, TOKEN_BYTES_MAX + 1)
    finally:
        os.close(fd)
    token = text.decode(errors="replace").strip()
    is_plain = token.isascii() and token.isprintable() and " " not in token
    if not token or not is_plain or len(text) > TOKEN_BYTES_MAX:
        raise ConfigError(f"token_file {path}: holds no token", hint="one line, as the manager printed it")
    return token
