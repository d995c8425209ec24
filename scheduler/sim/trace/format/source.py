"""Trace file as text: plain or gzip, any line ends, from the disk or shipped with Farside.

Whatever is wrong with the file as a whole is a ConfigError here: not there, not gzip to its end, not text. It is read
as a stream, once, so that a pipe will do.
"""

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TextIO

from farside.errors import ConfigError
from farside.scheduler.settings import suggestion

MAX_LINE = 1 << 20  # characters; a row is thousands of times shorter, so this file has no lines
MAX_BLANK = 1 << 20  # characters of blank lines in a row: a small archive may hold hours of nothing
BUILTIN = "builtin:"

_GZIP = b"\x1f\x8b"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Source:
    """A file that is being read.

    Attributes:
        path: As messages name it.
        first: Its first line that is not blank, or the beginning of it; empty for an empty file.
        first_line: The number of that line.
    """

    def __init__(self, path: str, text: TextIO) -> None:
        self.path = path
        self._text = text
        self.first, self.first_line = "", 0
        blank = 0
        for number, line in enumerate(iter(lambda: self._read(text.readline, MAX_LINE), ""), 1):
            if line.strip():
                self.first, self.first_line = line, number
                return
            blank = self._blank(blank + len(line), number)

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of every line after the first, without its end; blank lines are passed over.

        Raises:
            ConfigError: A line without an end, or the file broke off.
        """
        readline = self._text.readline
        number, blank = self.first_line, 0
        while line := self._read(readline, MAX_LINE):
            number += 1
            if len(line) == MAX_LINE and not line.endswith("\n"):
                raise ConfigError(f"{self.path}, line {number}: longer than {MAX_LINE} characters", hint=_NO_TABLE)
            if line.isspace():
                blank = self._blank(blank + len(line), number)
            else:
                blank = 0
                yield number, line.rstrip("\n")

    def chunks(self, size: int) -> Iterator[str]:
        """All of the text from the first line on, in pieces of about ``size`` characters.

        Raises:
            ConfigError: The file broke off.
        """
        yield self.first
        while chunk := self._read(self._text.read, size):
            yield chunk

    def _blank(self, characters: int, number: int) -> int:
        if characters > MAX_BLANK:
            raise ConfigError(f"{self.path}, line {number}: {MAX_BLANK} characters of blank lines", hint=_NO_TABLE)
        return characters

    def _read(self, read: Callable[[int], str], size: int) -> str:
        try:
            return read(size)
        except _FAULTS as error:
            raise _fault(self.path, error) from error


_NO_TABLE = "is this a table of jobs?"


@contextmanager
def open_source(path: Path) -> Iterator[Source]:
    """Opens a trace; ``builtin:NAME`` is one that comes with Farside.

    Raises:
        ConfigError: It cannot be opened, or holds nothing.
    """
    shown = str(path)
    with _faults(shown), _open(path) as raw, _unpacked(raw) as stream, _as_text(stream) as text:
        source = Source(shown, text)
        if not source.first:
            raise ConfigError(f"{shown}: is empty", hint="name another file")
        yield source


def builtin_names() -> tuple[str, ...]:
    """The names of the traces that come with Farside."""
    return tuple(sorted(entry.name.removesuffix(".csv.gz") for entry in _shipped().glob("*.csv.gz")))


def _shipped() -> Path:
    folder = files("farside.scheduler.sim.trace") / "builtin"
    assert isinstance(folder, Path), "Farside is installed as files"
    return folder


def _open(path: Path) -> io.BufferedReader:
    name = str(path)
    if not name.startswith(BUILTIN):
        return path.open("rb")
    name = name.removeprefix(BUILTIN)
    if name not in builtin_names():
        hint = suggestion(name, builtin_names(), "those there are")
        raise ConfigError(f"no trace '{name}' comes with Farside", hint=hint)
    return (_shipped() / f"{name}.csv.gz").open("rb")


def _unpacked(raw: io.BufferedReader) -> gzip.GzipFile | io.BufferedReader:
    return gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == _GZIP else raw


def _as_text(stream: gzip.GzipFile | io.BufferedReader) -> io.TextIOWrapper:
    if stream.peek(2)[:2] in _UTF_16:
        return io.TextIOWrapper(stream, encoding="utf-16")
    # Bytes that are not UTF-8 become characters that no name may have, so that the row is reported and the file is not
    # refused.
    return io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape")


# All that reading a file can raise.
_FAULTS = (OSError, EOFError, zlib.error, UnicodeError)


@contextmanager
def _faults(path: str) -> Iterator[None]:
    try:
        yield
    except _FAULTS as error:
        raise _fault(path, error) from error


def _fault(path: str, error: Exception) -> ConfigError:
    if isinstance(error, UnicodeError):
        return ConfigError(f"{path}: is not text: {error}", hint="convert it to UTF-8, for example with iconv")
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        return ConfigError(f"{path}: {error.strerror or error}", hint="name a file that can be read")
    return ConfigError(f"{path}: is not whole: {error}", hint="copy it again; gzip -t tells")
