"""Read planned maintenance of a simulated cluster from a file.

CSV, plain or gzip, with a header: ``nodes,begin,end``, and where wanted ``planned`` and ``reason``. ``nodes`` is a list
such as ``n[0-3],n7`` (in quotes, for its comma) or ``*`` for all of them. Times are dates or the trace's own seconds.
"""

from collections.abc import Collection
from pathlib import Path

from farside.config.hostlist import expand
from farside.errors import ConfigError
from farside.scheduler.settings import suggestion
from farside.scheduler.sim.closure import Closure
from farside.scheduler.sim.trace.format.row import BadRow, Problem, moment, plain, shown
from farside.scheduler.sim.trace.format.source import open_source
from farside.scheduler.sim.trace.format.table import header, separator_of, split

ALL = "*"
LONG = 200  # characters: a list of names that is longer helps nobody
_NEEDED, _KNOWN = ("nodes", "begin", "end"), ("nodes", "begin", "end", "planned", "reason")


def read_closures(path: Path, nodes: Collection[str], *, has_calendar: bool) -> tuple[Closure, ...]:
    """The maintenance of a file.

    Args:
        path: The file.
        nodes: Names of the cluster's nodes.
        has_calendar: The trace has dates; otherwise its times are seconds.

    Raises:
        ConfigError: It can't be read, has other columns, a row is wrong, or names a node that there is not.
    """
    found: list[Closure] = []
    with open_source(path) as source:
        columns = header(source)
        wrong = [name for name in columns if name not in _KNOWN]
        if wrong or not columns.keys() >= set(_NEEDED):
            told = f"no column '{wrong[0]}' is known" if wrong else "a column is missing"
            hint = "give nodes,begin,end and, where wanted, planned,reason"
            raise ConfigError(f"{source.path}, line {source.first_line}: {told}", hint=hint)
        separator = separator_of(source.first)
        for line, text in source.lines():
            try:
                cells = [cell.strip() for cell in split(text, separator)]
                if len(cells) != len(columns):
                    raise BadRow("", f"{len(cells)} cells, the header has {len(columns)}", "fix the row")
                row = {name: cells[at] for name, at in columns.items()}
                found.append(_closure(row, nodes, has_calendar=has_calendar))
            except BadRow as bad:
                raise ConfigError(Problem(line, bad.column, bad.reason, bad.fix).told(source.path)) from None
        if not found:
            raise ConfigError(f"{source.path}: has no rows", hint="give at least one row, or leave the file out")
    return tuple(found)


def _closure(row: dict[str, str], nodes: Collection[str], *, has_calendar: bool) -> Closure:
    begin_s, end_s = (_time(row, column, has_calendar=has_calendar) for column in ("begin", "end"))
    if end_s <= begin_s:
        raise BadRow("end", f"{shown(row['end'])} is not after {shown(row['begin'])}", "give a later one")
    more = {"planned_s": _time(row, "planned", has_calendar=has_calendar)} if row.get("planned") else {}
    if more and more["planned_s"] > begin_s:
        raise BadRow("planned", f"{shown(row['planned'])} is after {shown(row['begin'])}", "give an earlier one")
    return Closure(
        nodes=_nodes(row["nodes"], nodes),
        begin_s=begin_s,
        end_s=end_s,
        why=plain("reason", row.get("reason", "")),
        **more,
    )


def _like(nodes: Collection[str]) -> str:
    return f"its nodes are called as {min(nodes)}"


def _time(row: dict[str, str], column: str, *, has_calendar: bool) -> float:
    at_s, is_date = moment(column, row[column])
    # Compared as numbers, a date on a time line of seconds would lie after all jobs.
    if is_date and not has_calendar:
        raise BadRow(column, f"{shown(row[column])} is a date, and the trace counts seconds", "give its seconds")
    if has_calendar and not is_date:
        raise BadRow(column, f"{shown(row[column])} is a number, and the trace has dates", "give YYYY-MM-DD HH:MM:SS")
    return at_s


def _nodes(text: str, nodes: Collection[str]) -> frozenset[str]:
    if text == ALL:
        return frozenset(nodes)
    try:
        names = expand(text.replace(" ", ""))
    except ValueError as error:
        raise BadRow("nodes", str(error), "give a list such as n[0-3]") from None
    if not names:
        raise BadRow("nodes", "is empty", f"give a list such as n[0-3], or {ALL} for all nodes")
    known = frozenset(nodes)
    for name in names:
        if name not in known:
            near = suggestion(name, sorted(known), "it has")
            raise BadRow("nodes", f"the cluster has no node {shown(name)}", near if len(near) < LONG else _like(known))
    return frozenset(names)
