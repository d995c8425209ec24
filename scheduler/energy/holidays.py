"""Files of public holidays, for forecasts of busy nodes: a date a line."""

from datetime import date
from pathlib import Path

from farside.errors import ConfigError

# A list of dates of many years is still small.
LONGEST_BYTES = 1 << 20
_EPOCH = date(1970, 1, 1)


def read_holidays(path: Path) -> frozenset[int]:
    """Holidays of a file, as days since 1970-01-01. Each line has a date such as 2024-12-25; ``#`` begins a remark.

    Raises:
        ConfigError: It can't be read, is larger than 1 MiB, has a line without a date, or no date at all.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(LONGEST_BYTES + 1)
        text = raw.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"{path}: can't be read: {why}", hint="a file with a date a line, such as 2024-12-25"
        ) from error
    if len(raw) > LONGEST_BYTES:
        raise ConfigError(f"{path}: is larger than 1 MiB", hint="a file with a date a line, such as 2024-12-25")
    found = frozenset(
        holiday(words, of=f"{path}, line {number}")
        for number, line in enumerate(text.splitlines(), 1)
        if (words := line.partition("#")[0].strip())
    )
    if not found:
        raise ConfigError(f"{path}: has no date", hint="write a date a line, such as 2024-12-25, or leave the file out")
    return found


def holiday(text: str, *, of: str) -> int:
    """Day since 1970-01-01 of a date such as 2024-12-25.

    Raises:
        ConfigError: It is none.
    """
    try:
        return (date.fromisoformat(text.strip()) - _EPOCH).days
    except ValueError as error:
        raise ConfigError(f"{of}: '{text:.40}' is not a date", hint="write it as 2024-12-25") from error
