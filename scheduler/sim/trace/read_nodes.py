"""Read the number of nodes of each virtual cluster from a file.

Two forms, plain or gzip, told apart by their header:

* a row a virtual cluster: its name, then its nodes (``vc,nodes``; ``vc,node num`` as Philly's); a third column ``from``
  may say since when, as a date or in the trace's own seconds, and then a virtual cluster may have several rows;
* a row a day, a column a virtual cluster, GPUs in the cells: Helios's ``cluster_gpu_number.csv``. A column ``total`` is
  passed over.
"""

from pathlib import Path

from farside.errors import ConfigError
from farside.scheduler.sim.cluster import VcSize
from farside.scheduler.sim.trace.format.row import MAX_GPUS, BadRow, Problem, moment, plain, whole
from farside.scheduler.sim.trace.format.source import Source, open_source
from farside.scheduler.sim.trace.format.table import header, separator_of, split

_DATES = ("date", "day", "time")
_FROM = "from"
_TOTAL = "total"


def read_vc_sizes(path: Path, gpus_per_node: int) -> tuple[VcSize, ...]:
    """The GPUs of each virtual cluster, by time where the file says so.

    Raises:
        ConfigError: It cannot be read, has another form, or a row is wrong.
    """
    with open_source(path) as source:
        names = list(header(source))
        is_by_day = names[0] in _DATES
        if not is_by_day and not 2 <= len(names) <= 3:
            raise ConfigError(
                f"{source.path}, line {source.first_line}: {len(names)} columns",
                hint="give vc,nodes or vc,nodes,from, or a column for each virtual cluster after a column date",
            )
        separator = separator_of(source.first)
        # Names of virtual clusters keep their capitals, which `header` takes away.
        titles = [_title(title.strip(), source) for title in split(source.first.rstrip("\n"), separator)]
        sizes: list[VcSize] = []
        for line, text in source.lines():
            try:
                cells = _cells(text, separator, len(titles))
                sizes += _day(titles, cells) if is_by_day else [_vc(names, cells, gpus_per_node)]
            except BadRow as bad:
                told = Problem(line, bad.column, bad.reason, bad.fix).told(source.path)
                raise ConfigError(told) from None
        _check(sizes, source.path)
    return tuple(sizes)


def _title(text: str, source: Source) -> str:
    try:
        return plain("", text)
    except BadRow as bad:
        raise ConfigError(f"{source.path}, line {source.first_line}: {bad.reason}", hint=bad.fix) from None


def _cells(text: str, separator: str, width: int) -> list[str]:
    cells = [cell.strip() for cell in split(text, separator)]
    if len(cells) != width:
        raise BadRow("", f"{len(cells)} cells, the header has {width}", "fix the row")
    return cells


def _vc(names: list[str], cells: list[str], gpus_per_node: int) -> VcSize:
    nodes = whole(names[1], cells[1], highest=MAX_GPUS)
    from_s = float("-inf")
    if len(cells) > 2 and cells[2]:
        from_s, _ = moment(_FROM, cells[2])
    return VcSize(vc=plain(names[0], cells[0]), gpus=nodes * gpus_per_node, from_s=from_s)


def _day(titles: list[str], cells: list[str]) -> list[VcSize]:
    from_s, _ = moment(titles[0], cells[0])
    return [
        VcSize(vc=title, gpus=whole(title, cell, highest=MAX_GPUS), from_s=from_s)
        for title, cell in zip(titles[1:], cells[1:], strict=True)
        if title.lower() != _TOTAL
    ]


def _check(sizes: list[VcSize], path: str) -> None:
    if not sizes:
        raise ConfigError(f"{path}: names no virtual cluster", hint="give at least one row")
    seen = set[tuple[str, float]]()
    for size in sizes:
        if (size.vc, size.from_s) in seen:
            raise ConfigError(f"{path}: virtual cluster '{size.vc}' is listed twice", hint="leave one out")
        seen.add((size.vc, size.from_s))
