"""Output of ``sacct --parsable2``: columns between bars, as chosen with ``--format``.

Needed are JobID (or JobIDRaw), Submit, a duration (ElapsedRaw, Elapsed, or Start and End) and a number of GPUs
(AllocTRES, ReqTRES, or, of old versions, AllocGRES or ReqGRES, which count by node and so need NNodes or AllocNodes).
Used where they are: User, JobName, Partition (the virtual cluster), State, Start, Timelimit(Raw), AllocCPUS or NCPUS,
Account and QOS (with ``--tenants``).
``sacct --allusers --parsable2 --format=JobID,User,JobName,Partition,State,Submit,Start,End,Elapsed,ReqTRES,AllocTRES,
NNodes,AllocCPUS,Timelimit --starttime=...`` gives all of it.

  * Job steps (``12.batch``, ``12.0``) are part of their job and left out. A task of an array (``12_3``) is a job; what
    was left of an array when it was cancelled (``12_[4-9]``) never ran. Each part of a heterogeneous job (``12+0``) is
    taken for a job, though Slurm starts all parts at once.
  * Left out too: jobs without GPUs, jobs that never started, jobs that still run (nobody knows how long they would).
  * GPUs are those of AllocTRES if it names any, otherwise of ReqTRES: what a job really held, which on nodes given out
    whole is more than it asked for. ``gres/gpu=4`` counts; without it ``gres/gpu:a100=2,gres/gpu:v100=2`` are added up.
    A slice of a GPU (MIG) counts as one.
  * A model of GPU binds a job only if it was asked for, so it comes from ReqTRES alone, and only if it is one.
  * Times are dates without a zone, or seconds since 1970 (SLURM_TIME_FORMAT=%s).
"""

import math
import re

from farside.errors import ConfigError
from farside.scheduler.sim.trace.format.row import (
    MAX_DURATION_S,
    MAX_GPUS,
    BadRow,
    LeftOut,
    Row,
    real,
    shown,
    whole,
)
from farside.scheduler.sim.trace.format.source import Source
from farside.scheduler.sim.trace.format.table import header
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.log import Logged, status_of
from farside.scheduler.state import Job

_STEP = LeftOut("left out: steps of jobs")
_NO_GPU = LeftOut("left out: have no GPU")
_NEVER_RAN = LeftOut("left out: never started")
_RUNNING = LeftOut("left out: still running")

_UNFINISHED = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT", "COMPLETING"})
_UNSTARTED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"})

_TRES_GPU = re.compile(r"(?:^|,)gres/gpu(?::([^=,]+))?=(\d{1,9})(?=,|$)", re.ASCII)
_GRES_GPU = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::[^:,(]+)?:(\d{1,9})(?=[,(]|$)", re.ASCII)
_TRES_MEMORY = re.compile(r"(?:^|,)mem=(\d{1,9}(?:\.\d{1,6})?)([KMGTP]?)(?=,|$)", re.ASCII)
_TRES_CPU = re.compile(r"(?:^|,)cpu=(\d{1,9})(?=,|$)", re.ASCII)
_MEMORY_UNIT = {"": 20, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}  # powers of two; without a letter MiB
_CLOCK = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(?:(\d{1,6}):)?(\d{1,6})(?:\.\d+)?", re.ASCII)
_NO_LIMIT = frozenset({"unlimited", "partition_limit"})


def check_columns(source: Source) -> None:
    """Refuse sacct's output that lacks what every job needs.

    Raises:
        ConfigError: No column tells the number of GPUs, or none the duration.
    """
    columns = header(source).keys()
    if not columns & {"alloctres", "reqtres", "allocgres", "reqgres"}:
        raise ConfigError(f"{source.path}: no column has the number of GPUs", hint="add AllocTRES to sacct's --format")
    if not columns & {"elapsed", "elapsedraw"} and not {"start", "end"} <= columns:
        raise ConfigError(f"{source.path}: no column has the jobs' run times", hint="add Elapsed to sacct's --format")


def to_job(row: Row) -> TraceJob | LeftOut:
    """GPU job of sacct's output, whatever became of it."""
    job_id = _job_id(row)
    state = _state(row)
    left_out = _left_out(row, job_id, state)
    if left_out:
        return left_out
    gpus = _gpus(row)
    if not gpus:
        return _NO_GPU
    duration_s = _duration_s(row)
    if not duration_s and state == "CANCELLED":
        return _NEVER_RAN
    tres = row.cell("alloctres") or row.cell("reqtres")
    job = Job(
        job_id=job_id,
        sequence=row.ordinal,
        submit_s=row.moment("submit"),
        gpus=gpus,
        vc=row.text("partition"),
        user=row.text("user"),
        account=row.text("account"),
        qos=row.text("qos"),
        name=row.text("jobname"),
        cpus_per_gpu=_cpus(row, tres) / gpus,
        memory_bytes_per_gpu=_memory_bytes(tres) / gpus,
        gpu_model=_model_asked_for(row.cell("reqtres")),
        limit_s=_limit_s(row),
    )
    return TraceJob(job=job, duration_s=duration_s, line=row.line)


def to_logged(row: Row) -> Logged | LeftOut:
    """Job of sacct's output that ran and has ended, with GPUs or without."""
    job_id, state = _job_id(row), _state(row)
    left_out = _left_out(row, job_id, state)
    if left_out:
        return left_out
    duration_s = _duration_s(row)
    if not duration_s and state == "CANCELLED":
        return _NEVER_RAN
    return Logged(
        job_id=job_id,
        submit_s=row.moment("submit"),
        start_s=row.moment("start") if row.has("start") else math.nan,
        duration_s=duration_s,
        gpus=_gpus(row),
        cpus=_cpus(row, row.cell("alloctres") or row.cell("reqtres")) or math.nan,
        status=status_of(state),
        status_word=state,
        user=row.text("user"),
        vc=row.text("partition"),
        line=row.line,
    )


def _job_id(row: Row) -> str:
    return row.key("jobid" if row.has("jobid") else "jobidraw")


def _state(row: Row) -> str:
    # "CANCELLED by 1000" has a user behind the word, and a + ends a word that sacct cut.
    return row.cell("state").upper().rstrip("+").partition(" ")[0]


def _left_out(row: Row, job_id: str, state: str) -> LeftOut | None:
    if "." in job_id:
        return _STEP
    if state in _UNFINISHED:
        return _RUNNING
    # Brackets: the tasks of an array that were cancelled before they became jobs.
    if state in _UNSTARTED or "[" in job_id or ("start" in row.columns and not row.has("start")):
        return _NEVER_RAN
    return None


def _gpus(row: Row) -> int:
    for column in ("alloctres", "reqtres"):
        if found := _TRES_GPU.findall(row.cell(column)):
            # A count without a type is the sum of those with one, where both are given.
            untyped = [int(count) for model, count in found if not model]
            return _bounded(row, column, untyped[0] if untyped else sum(int(count) for _, count in found))
    for column in ("allocgres", "reqgres"):
        if by_node := sum(map(int, _GRES_GPU.findall(row.cell(column)))):
            nodes = "nnodes" if row.has("nnodes") else "allocnodes"
            count = whole(nodes, row.cell(nodes), lowest=1, highest=MAX_GPUS) if row.has(nodes) else 1
            return _bounded(row, column, by_node * count)
    return 0


def _bounded(row: Row, column: str, gpus: int) -> int:
    if gpus > MAX_GPUS:
        raise BadRow(column, f"{gpus} GPUs in {shown(row.cell(column))}", f"give at most {MAX_GPUS}")
    return gpus


def _model_asked_for(tres: str) -> str:
    models = {model for model, _ in _TRES_GPU.findall(tres) if model}
    return models.pop() if len(models) == 1 else ""


def _cpus(row: Row, tres: str) -> float:
    for column in ("alloccpus", "ncpus", "reqcpus"):
        if row.has(column):
            return real(column, row.cell(column), highest=1e9)
    found = _TRES_CPU.search(tres)
    return float(found.group(1)) if found else 0.0


def _memory_bytes(tres: str) -> float:
    found = _TRES_MEMORY.search(tres)
    return float(found.group(1)) * 2 ** _MEMORY_UNIT[found.group(2)] if found else 0.0


def _duration_s(row: Row) -> float:
    if row.has("elapsedraw"):
        return row.duration_s("elapsedraw")
    if row.has("elapsed"):
        return clock_s("elapsed", row.cell("elapsed"))
    return row.between_s("start", "end")


def clock_s(column: str, text: str) -> float:
    """Seconds of Slurm's ``[days-]hours:minutes:seconds``, ``minutes:seconds`` or ``days-hours``.

    Raises:
        BadRow: It is no such time, or longer than a century.
    """
    found = _CLOCK.fullmatch(text)
    parts = [int(part) for part in found.groups()[1:] if part is not None] if found else []
    days = int(found.group(1) or 0) if found else 0
    if found is None or (len(parts) == 1 and found.group(1) is None):
        raise BadRow(column, f"{shown(text)} is not a duration", "give [DAYS-]HH:MM:SS as sacct prints it")
    # With days in front the parts begin with hours; otherwise they end with seconds.
    units = (3600, 60, 1) if found.group(1) is not None or len(parts) == 3 else (60, 1)
    seconds = days * 86400.0 + sum(part * unit for part, unit in zip(parts, units, strict=False))
    if seconds > MAX_DURATION_S:
        raise BadRow(column, f"{shown(text)} is longer than a century", "fix the row")
    return seconds


def _limit_s(row: Row) -> float:
    column = "timelimitraw" if row.has("timelimitraw") else "timelimit"
    text = row.cell(column)
    if not row.has(column) or text.lower() in _NO_LIMIT:
        return math.inf
    if column == "timelimitraw":
        return 60.0 * real(column, text, highest=MAX_DURATION_S / 60)  # minutes
    return clock_s(column, text)
