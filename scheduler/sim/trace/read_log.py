"""Read whole job logs from files: same formats and checks as `read`, but all jobs that ran.

Rows are read as a stream into columns, so that a million of them need tens of megabytes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from farside.scheduler.sim.trace.format.row import LeftOut, Problem, is_missing, shown
from farside.scheduler.sim.trace.log import JobLog, LogBuilder, Logged, Status
from farside.scheduler.sim.trace.read import AUTO, FORMATS, opened
from farside.scheduler.sim.trace.row_problems import Intake, OnBad

_WORDS, _TOLD_WORDS, _MORE = 1000, 5, "others"
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
    with opened(path, fmt) as (source, name):
        return _collect(FORMATS[name].log(source), source.path, name, on_bad)


def _collect(items: Iterable[Logged | LeftOut | Problem], path: str, name: str, on_bad: OnBad) -> JobLog:
    intake = Intake(path, id_column=FORMATS[name].id_column, on_bad=on_bad)
    builder, unknown = LogBuilder(), Counter[str]()
    for item in items:
        if not isinstance(item, Logged):
            intake.add(item)
        elif intake.is_new(item.job_id, item.line):
            builder.add(item)
            if item.status is Status.UNKNOWN and not is_missing(item.status_word):
                unknown[item.status_word if len(unknown) < _WORDS else _MORE] += 1
            if item.start_s < item.submit_s:
                intake.note(_EARLY)
    intake.close(len(builder))
    notes = (*intake.notes, *_of_unknown(unknown))
    return builder.build(path=path, fmt=name, skipped=intake.bad, problems=intake.problems, notes=notes)


def _of_unknown(words: Counter[str]) -> Iterator[tuple[int, str]]:
    """Note on unknown words for a final status: the most frequent ones."""
    if words:
        told = ", ".join(shown(word) for word, _ in words.most_common(_TOLD_WORDS))
        more = " and others" if len(words) > _TOLD_WORDS else ""
        yield words.total(), f"end with a status that is not known here: {told}{more}"
