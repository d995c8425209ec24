"""Read traces from files: detect the format, read the jobs, and report every bad row.

A row is a job, or left out because this simulator has no such jobs (that is counted, and said), or bad. Bad rows refuse
the whole trace, with all of them told, or are skipped and counted: the operator chooses.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from farside.errors import ConfigError
from farside.scheduler.settings import chosen, suggestion
from farside.scheduler.sim.trace.format import farside, helios, openb, philly_csv, slurm, tiresias
from farside.scheduler.sim.trace.format.philly_json import log_philly_json, read_philly_json
from farside.scheduler.sim.trace.format.row import Item, LeftOut, Noted, Problem, Row
from farside.scheduler.sim.trace.format.source import Source, open_source
from farside.scheduler.sim.trace.format.table import header, read_table, separator_of
from farside.scheduler.sim.trace.job import Trace, TraceJob
from farside.scheduler.sim.trace.log import Logged, logged_of
from farside.scheduler.sim.trace.row_problems import Intake, OnBad

Attempts = Literal["whole", "each"]

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Format:
    """A format of traces.

    ``log``: reads the whole log instead, see read_log.py. ``needed``: columns without which a table is not of this
    format, sets of which one column each must be there; empty for what is no table. ``id_column``: what a message about
    an id names. ``check``: refuses a table by more than its needed columns.
    """

    read: Callable[[Source, str], Iterator[Item]]
    log: Callable[[Source], Iterator[Logged | LeftOut | Problem]]
    needed: tuple[frozenset[str], ...] = ()
    id_column: str = "job_id"
    separator: str = ","
    check: Callable[[Source], None] | None = None


def _table(
    to_job: Callable[[Row], TraceJob | LeftOut | Noted],
    to_logged: Callable[[Row], Logged | LeftOut],
    needed: str,
    id_column: str = "job_id",
    **others: Any,
) -> Format:
    return Format(
        read=lambda source, _: read_table(source, to_job),
        log=lambda source: read_table(source, to_logged),
        needed=tuple(frozenset(names.split("|")) for names in needed.split()),
        id_column=id_column,
        **others,
    )


# A header may fit several: the first one counts.
FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "farside": _table(farside.to_job, farside.to_logged, "job_id gpus duration_s submit_s|submit_time"),
        "tiresias": _table(tiresias.to_job, tiresias.to_logged, "job_id num_gpu submit_time duration model_name"),
        "helios": _table(helios.to_job, helios.to_logged, "job_id gpu_num submit_time duration|end_time"),
        "openb": _table(
            openb.to_job, openb.to_logged, "name num_gpu creation_time scheduled_time deletion_time", "name"
        ),
        "philly-csv": _table(
            philly_csv.to_job, lambda row: logged_of(philly_csv.to_job(row)), "submit_time duration gpus", "submit_time"
        ),
        "slurm": _table(
            slurm.to_job, slurm.to_logged, "jobid|jobidraw submit", "JobID", separator="|", check=slurm.check_columns
        ),
        "philly-json": Format(read_philly_json, log_philly_json, id_column="jobid"),
    }
)


def read_trace(
    path: Path, *, fmt: str | None = None, on_bad: OnBad | None = None, attempts: Attempts = "whole"
) -> Trace:
    """The jobs of a file, plain or gzip, by submit time; ``builtin:NAME`` is a trace that comes with Farside.

    Args:
        path: The file.
        fmt: A name of `FORMATS`; ``auto`` finds out from the header; None: so too, where nobody can name one.
        on_bad: What to do about rows that cannot be used: refuse the file, or skip and count them; None: refuse it,
            where nobody can choose.
        attempts: Whether a job that was started several times is one job or several; only ``philly-json`` has those.

    Raises:
        ConfigError: The file cannot be read, no format fits, rows are bad, or it holds no job at all.
    """
    with opened(path, fmt) as (source, name):
        return _collect(FORMATS[name].read(source, attempts), source.path, name, on_bad)


@contextmanager
def opened(path: Path, fmt: str | None) -> Iterator[tuple[Source, str]]:
    """A file, and the name of its format; ``auto`` and None find out from the header, as `read_trace` does.

    Raises:
        ConfigError: It cannot be read, there is no such format, or it does not fit.
    """
    if fmt is not None and fmt != AUTO:
        chosen(fmt, FORMATS, "format of traces")
    with open_source(path) as source:
        name = format_of(source, has_option=fmt is not None) if fmt is None or fmt == AUTO else fmt
        _check_columns(source, name)
        yield source, name


def format_of(source: Source, *, has_option: bool) -> str:
    """The name of the format that a file has.

    Raises:
        ConfigError: None fits; with the nearest one, and with --format where the caller's command has that option.
    """
    if source.first.lstrip()[:1] in ("[", "{"):
        return "philly-json"
    columns = header(source).keys()
    separator = separator_of(source.first)
    tables = {name: fmt for name, fmt in FORMATS.items() if fmt.needed and fmt.separator == separator}
    for name, fmt in tables.items():
        if all(columns & one_of for one_of in fmt.needed):
            return name
    lacking = {name: [one_of for one_of in fmt.needed if not columns & one_of] for name, fmt in tables.items()}
    nearest = min(lacking, key=lambda name: len(lacking[name]) / len(tables[name].needed))
    example = tables[nearest].separator.join(min(one_of) for one_of in tables[nearest].needed)
    option = f"; or say --format, one of {', '.join(FORMATS)}" if has_option else ""
    raise ConfigError(
        f"{source.path}: no format has these columns; {nearest} lacks {_told(lacking[nearest])}",
        hint=f"{nearest} begins with a line such as '{example}'{option}",
    )


def _check_columns(source: Source, name: str) -> None:
    """Refuses a table that lacks columns of this format.

    Raises:
        ConfigError: It does.
    """
    fmt = FORMATS[name]
    if not fmt.needed:
        return
    columns = header(source)
    lacking = [one_of for one_of in fmt.needed if not columns.keys() & one_of]
    if lacking:
        near = suggestion(min(lacking[0]), columns, "columns")
        raise ConfigError(
            f"{source.path}, line {source.first_line}: as {name} it lacks the column {_told(lacking)}", hint=near
        )
    if fmt.check is not None:
        fmt.check(source)


def _told(lacking: Iterable[frozenset[str]]) -> str:
    return ", ".join(" or ".join(sorted(one_of)) for one_of in lacking)


def _collect(items: Iterable[Item], path: str, name: str, on_bad: OnBad | None) -> Trace:
    intake = Intake(path, id_column=FORMATS[name].id_column, on_bad=on_bad)
    jobs: list[TraceJob] = []
    for item in items:
        job = item.job if isinstance(item, Noted) else item
        if not isinstance(job, TraceJob):
            intake.add(job)
        elif intake.is_new(job.job.job_id, job.line):
            jobs.append(job)
            if isinstance(item, Noted):
                intake.note(item.note)
    intake.close(len(jobs))
    jobs.sort(key=lambda entry: entry.job.submit_s)  # stable: jobs of one second stay in the order of the file
    return Trace(
        jobs=tuple(jobs), path=path, fmt=name, skipped=intake.bad, problems=tuple(intake.problems), notes=intake.notes
    )
