"""Row of a trace, and conversion of its fields; each error names its column, reason and remedy.

A reader's parse function gets a `Row` and returns a job, or `LeftOut` for a row that is right but is no job of ours (a
job step, a job without GPUs); it lets `BadRow` through. Bounds are wide: what lies outside is a slip, not a cluster.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from farside.scheduler.sim.trace.job import TraceJob

MAX_GPUS = 1_000_000  # no job has that many
MAX_DURATION_S = 100 * 365 * 86400.0  # a century
MAX_TIME_S = 253402300799.0  # the year 9999
MAX_TEXT = 1024  # characters of a name; Slurm's own limit for job names is of that order

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
# Control characters, separators of lines, what turns the direction of the text behind it, and halves of characters that
# a broken encoding leaves.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# As `repr` shows what reading made of a byte that is not UTF-8.
_STRAY_BYTE = re.compile(r"(?<!\\)\\udc([89a-f][0-9a-f])")
# What programs write for a value that is not there.
MISSING = frozenset({"", "none", "null", "nan", "na", "n/a", "unknown", "(null)", "\\n"})
_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class BadRow(Exception):
    """A row that cannot be used. ``column``: empty when the whole row is meant; ``fix``: what to do about it."""

    def __init__(self, column: str, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.column = column
        self.reason = reason
        self.fix = fix


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that is right, and no job of this simulator."""

    reason: str


@dataclass(frozen=True, slots=True)
class Noted:
    """A job that is not quite what its row says; rows with the same note are counted."""

    job: TraceJob
    note: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A row that could not be used, with its line."""

    line: int
    column: str
    reason: str
    fix: str

    def told(self, path: str) -> str:
        """One line: where, what, what to do."""
        column = f", column {self.column}" if self.column else ""
        return f"{path}, line {self.line}{column}: {self.reason}; {self.fix}"


Item = TraceJob | Noted | LeftOut | Problem


def shown(text: str) -> str:
    """A cell's text for a message: quoted, one line, not long; a byte that is not UTF-8 as ``\\xff``."""
    return _STRAY_BYTE.sub(r"\\x\1", repr(text if len(text) <= 40 else text[:37] + "..."))


def is_missing(text: str) -> bool:
    """Whether a cell says that there is no value."""
    return text.lower() in MISSING


def plain(column: str, text: str) -> str:
    """A name, unchanged from the file.

    Raises:
        BadRow: It is too long, or has characters that are none.
    """
    if len(text) > MAX_TEXT:
        raise BadRow(column, f"{len(text)} characters", f"give at most {MAX_TEXT}")
    if not text.isprintable() and (found := UNPRINTABLE.search(text)):
        if found.group() >= "\ud800":
            raise BadRow(column, f"{shown(text)} is not UTF-8", "convert the file, for example with iconv -t utf-8")
        raise BadRow(column, f"{shown(text)} has a control character", "take it out")
    return text


def real(column: str, text: str, *, lowest: float = 0.0, highest: float) -> float:
    """A number within bounds; never NaN or infinite.

    Raises:
        BadRow: It is no such number.
    """
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if lowest <= value <= highest:
        return value
    wrong = "not a number" if math.isnan(value) else "out of range"
    raise BadRow(column, f"{shown(text)} is {wrong}", f"give a number from {lowest:.15g} to {highest:.15g}")


def whole(column: str, text: str, *, lowest: int = 0, highest: int) -> int:
    """A whole number within bounds; 4.0 is one.

    Raises:
        BadRow: It is no such number.
    """
    if text.isascii() and text.isdigit() and len(text) < 16:
        value = int(text)
        if lowest <= value <= highest:
            return value
    number = real(column, text, lowest=lowest, highest=highest)
    if number != int(number):
        raise BadRow(column, f"{shown(text)} is not a whole number", f"give one from {lowest} to {highest}")
    return int(number)


def flag(column: str, text: str) -> bool:
    """Yes or no.

    Raises:
        BadRow: Neither.
    """
    value = _FLAGS.get(text.lower())
    if value is None:
        raise BadRow(column, f"{shown(text)} is neither true nor false", "give true or false")
    return value


def moment(column: str, text: str) -> tuple[float, bool]:
    """A time and whether it was a date: ``2017-10-01 08:00:00`` or a number of seconds.

    A date is a clock on the cluster's wall: where a zone stands behind it, it is not counted, and an hour that a change
    to summer time skips or repeats is not corrected.

    Raises:
        BadRow: It is neither, or lies before 1970 or after 9999.
    """
    if len(text) >= 10 and text[4] == "-" == text[7]:
        try:
            value = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise BadRow(column, f"{shown(text)} is not a date", "give YYYY-MM-DD HH:MM:SS") from None
        if value < 0:
            raise BadRow(column, f"{shown(text)} is before 1970", "give a later date")
        return value, True
    if not _NUMBER.fullmatch(text):
        raise BadRow(column, f"{shown(text)} is not a time", "give YYYY-MM-DD HH:MM:SS, or seconds")
    return real(column, text, highest=MAX_TIME_S), False


class TimeLine:
    """Times of one file, all dates or all seconds: mixed, the origin of the seconds is unknown."""

    def __init__(self) -> None:
        self._is_date: bool | None = None

    def moment(self, column: str, text: str) -> float:
        """A time on this line.

        Raises:
            BadRow: It is no time, or of the other kind.
        """
        value, is_date = moment(column, text)
        if self._is_date is None:
            self._is_date = is_date
        elif is_date != self._is_date:
            other = "a date" if is_date else "a number of seconds"
            raise BadRow(column, f"{shown(text)} is {other}, unlike the rows above", "give all times in one form")
        return value


@dataclass(slots=True)
class Row:
    """Cells of a table by the name of their column, in lower case.

    ``ordinal``: how many rows stand above it, bad ones too. A column that the file lacks reads as empty.
    """

    columns: Mapping[str, int]
    cells: list[str]
    line: int
    ordinal: int
    times: TimeLine

    def cell(self, column: str) -> str:
        """The cell's text without spaces around it; empty when the file has no such column."""
        at = self.columns.get(column)
        return "" if at is None else self.cells[at].strip()

    def has(self, column: str) -> bool:
        """Whether the cell has a value."""
        return column in self.columns and not is_missing(self.cell(column))

    def text(self, column: str) -> str:
        """A name; empty when there is none."""
        return plain(column, self.cell(column))

    def key(self, column: str) -> str:
        """A name that must be there."""
        text = self.text(column)
        if not text:
            raise BadRow(column, "is empty", "give every job an id of its own")
        return text

    def moment(self, column: str) -> float:
        """A time on the file's own time line."""
        return self.times.moment(column, self.cell(column))

    def duration_s(self, column: str) -> float:
        """Seconds that a job ran: 0 up to a century."""
        return real(column, self.cell(column), highest=MAX_DURATION_S)

    def real(self, column: str, default: float, highest: float) -> float:
        """Number of at most ``highest``; the default where the cell is empty. Raises BadRow."""
        return real(column, self.cell(column), highest=highest) if self.has(column) else default

    def whole(self, column: str, default: int, highest: int) -> int:
        """Whole number of at most ``highest``; the default where the cell is empty. Raises BadRow."""
        return whole(column, self.cell(column), highest=highest) if self.has(column) else default

    def gpus(self, column: str, *, lowest: int = 1) -> int:
        """A number of GPUs."""
        return whole(column, self.cell(column), lowest=lowest, highest=MAX_GPUS)

    def between_s(self, start: str, end: str) -> float:
        """Seconds from one column's time to another's."""
        seconds = self.moment(end) - self.moment(start)
        if seconds < 0:
            raise BadRow(end, f"{shown(self.cell(end))} is before {start}", "fix one of the two")
        if seconds > MAX_DURATION_S:
            raise BadRow(end, f"is {seconds:.0f} s after {start}", "fix one of the two")
        return seconds
