"""Whole job logs from files: the same formats and the same checks as `read`, but every job that ran, whatever it asked.

Rows are read as a stream into columns, so that a million of them need tens of megabytes.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from farside.errors import ConfigError
from farside.scheduler.settings import chosen
from farside.scheduler.sim.trace.format.row import LeftOut, Problem, shown
from farside.scheduler.sim.trace.format.source import open_source
from farside.scheduler.sim.trace.log import JobLog, LogBuilder, Logged
from farside.scheduler.sim.trace.read import AUTO, FORMATS, TOLD, OnBad, check_columns, format_of, refusal

_EARLY = "start before they were submitted: how long they waited is not known"


def read_log(path: Path, *, fmt: str = AUTO, on_bad: OnBad = "refuse") -> JobLog:
    """The jobs of a log, plain or gzip, as columns by submit time.

    Args:
        path: The file; ``builtin:NAME`` is one that comes with Farside.
        fmt: A name of `FORMATS`; ``auto`` finds out from the header.
        on_bad: What to do about rows that cannot be used: refuse the file, or skip and count them.

    Raises:
        ConfigError: The file cannot be read, no format fits, rows are bad, or it holds no job at all.
    """
    if fmt != AUTO:
        chosen(fmt, FORMATS, "format of traces")
    with open_source(path) as source:
        name = format_of(source) if fmt == AUTO else fmt
        check_columns(source, name)
        return _collect(FORMATS[name].log(source), source.path, name, is_refusing=on_bad == "refuse")


def _collect(items: Iterable[Logged | LeftOut | Problem], path: str, name: str, *, is_refusing: bool) -> JobLog:
    builder, lines = LogBuilder(), dict[str, int]()
    problems: list[str] = []
    notes: Counter[str] = Counter()
    bad = 0
    for item in items:
        if isinstance(item, Logged):
            first = lines.setdefault(item.job_id, item.line)
            if first == item.line:
                builder.add(item)
                if item.start_s < item.submit_s:
                    notes[_EARLY] += 1
                continue
            item = _twin(item, first, FORMATS[name].id_column)
        if isinstance(item, LeftOut):
            notes[item.reason] += 1
        else:
            bad += 1
            if len(problems) < TOLD:
                problems.append(item.told(path))
    if bad and is_refusing:
        raise refusal(path, bad, problems)
    if not len(builder):
        told = problems[:1] or [f"{count} {note}" for note, count in notes.items()]
        why = f" ({'; '.join(told)})" if told else ""
        raise ConfigError(f"{path}: holds no job{why}", hint="name a file with at least one")
    told_notes = [(count, note) for note, count in notes.items()]
    return builder.build(path=path, fmt=name, skipped=bad, problems=problems, notes=told_notes)


def _twin(item: Logged, first: int, column: str) -> Problem:
    reason = f"{shown(item.job_id)} is on line {first} already"
    return Problem(item.line, column, reason, "keep one of them, or give it an id of its own")
