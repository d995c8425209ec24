"""BMC passwords: each in a file that only its owner can read. Never in argv, logs or messages."""

import stat
from pathlib import Path

from farside.errors import ConfigError


def check_secret(path: Path) -> None:
    """Refuse a file that others can read, or that cannot be read.

    Raises:
        ConfigError: With what to do.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="put the BMC's password there, chmod 600") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{path}: others can read the BMC's password", hint=f"chmod 600 {path}")


def read_secret(path: Path) -> str:
    """Read the first line of the file.

    Raises:
        ConfigError: It cannot be read, is empty, or others can read it.
    """
    check_secret(path)
    try:
        secret = path.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text", hint="put the password there, in one line") from error
    if not secret:
        raise ConfigError(f"{path}: its first line is empty", hint="put the BMC's password there")
    return secret
