"""Helios's ``cluster_log.csv``: meaning of each column in its documentation, and how Farside uses it.

job_id (unique), user and vc (hashed), gpu_num, cpu_num and node_num (what was asked for), state (COMPLETED, CANCELLED,
FAILED, TIMEOUT, NODE_FAIL), submit_time, start_time, end_time (dates of local time), duration (end less start, seconds)
and queue (start less submit). Some releases add jobname, which recurs and so tells durations. Half of all rows ask for
no GPU: those are left out, as are those that never started.

``queue`` and ``node_num`` are what that cluster's scheduler made of the job, which is what is simulated here: not used.
"""

import math

from farside.scheduler.sim.trace.format.row import LeftOut, Row
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.log import Logged, status_of
from farside.scheduler.state import Job

MAX_CPUS = 1e7  # of a job

# One object for all rows: there are millions, and notes are counted by their text.
_NO_GPU = LeftOut("left out: ask for no GPU")
_NEVER_RAN = LeftOut("left out: never started")


def to_job(row: Row) -> TraceJob | LeftOut:
    """GPU job of Helios's log, whatever became of it."""
    gpus = row.gpus("gpu_num", lowest=0)
    if not gpus:
        return _NO_GPU
    if not _has_run(row):
        return _NEVER_RAN
    cpus = row.real("cpu_num", 0.0, MAX_CPUS)
    job = Job(
        job_id=row.key("job_id"),
        sequence=row.ordinal,
        submit_s=row.moment("submit_time"),
        gpus=gpus,
        vc=row.text("vc"),
        user=row.text("user"),
        name=row.text("jobname"),
        cpus_per_gpu=cpus / gpus,
    )
    return TraceJob(job=job, duration_s=_duration_s(row), line=row.line)


def to_logged(row: Row) -> Logged | LeftOut:
    """Job of Helios's log that ran, with GPUs or without."""
    if not _has_run(row):
        return _NEVER_RAN
    return Logged(
        job_id=row.key("job_id"),
        submit_s=row.moment("submit_time"),
        start_s=row.moment("start_time") if row.has("start_time") else math.nan,
        duration_s=_duration_s(row),
        gpus=row.gpus("gpu_num", lowest=0),
        cpus=row.real("cpu_num", math.nan, MAX_CPUS),
        status=status_of(row.cell("state")),
        status_word=row.cell("state"),
        user=row.text("user"),
        vc=row.text("vc"),
        line=row.line,
    )


def _has_run(row: Row) -> bool:
    return row.has("duration") or (row.has("start_time") and row.has("end_time"))


def _duration_s(row: Row) -> float:
    return row.duration_s("duration") if row.has("duration") else row.between_s("start_time", "end_time")
