"""Tables with a header row: CSV, and sacct's columns between bars. One line is one row.

A quoted cell may hold commas, but no line break: so a stray quote spoils its own row, and not the file.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from farside.errors import ConfigError
from farside.scheduler.sim.trace.format.row import BadRow, Problem, Row, TimeLine, shown
from farside.scheduler.sim.trace.format.source import Source

T = TypeVar("T")


def read_table(source: Source, parse: Callable[[Row], T]) -> Iterator[T | Problem]:
    """What ``parse`` makes of it, or what was wrong, for every row of a table.

    Raises:
        ConfigError: The header is no header, or the file is broken.
    """
    separator = separator_of(source.first)
    columns = header(source)
    width = len(columns) + _has_last_bar(source.first)
    times = TimeLine()
    for ordinal, (line, text) in enumerate(source.lines()):
        try:
            cells = split(text, separator)
            if len(cells) != width:
                raise BadRow("", f"{len(cells)} cells, the header has {width}", _fix_of_width(separator))
            yield parse(Row(columns, cells, line, ordinal, times))
        except BadRow as bad:
            yield Problem(line, bad.column, bad.reason, bad.fix)


def _fix_of_width(separator: str) -> str:
    if separator == "|":
        return "leave out columns that may hold a |, such as JobName, or fix the row"
    return "put cells with commas into double quotes, or fix the row"


def header(source: Source) -> Mapping[str, int]:
    """The columns' places by name, in lower case.

    Raises:
        ConfigError: A name is listed twice, or a quote does not end.
    """
    try:
        names = [name.strip().lower() for name in split(source.first.rstrip("\n"), separator_of(source.first))]
    except BadRow as bad:
        raise ConfigError(f"{source.path}, line {source.first_line}: {bad.reason}", hint="fix the header") from None
    if _has_last_bar(source.first):
        names.pop()
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise ConfigError(
            f"{source.path}, line {source.first_line}: two columns are called {shown(twice)}", hint="rename one"
        )
    return {name: at for at, name in enumerate(names)}


def separator_of(first: str) -> str:
    """Separator between the cells of a table with this header."""
    return "|" if first.count("|") > first.count(",") else ","


def split(text: str, separator: str) -> list[str]:
    """The cells of a line. Only CSV has quotes: sacct writes names as they are.

    Raises:
        BadRow: A quote does not end on its line.
    """
    if separator == "|" or '"' not in text:
        return text.split(separator)
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise BadRow("", f"quotes are not as in CSV ({error})", "double each quote inside a quoted cell") from None


def _has_last_bar(first: str) -> bool:
    # sacct --parsable ends each line with one, --parsable2 does not.
    return separator_of(first) == "|" and first.rstrip().endswith("|")
