"""Farside's own CSV format: each column is a field of a job. docs/simulator.md lists them."""

import math

from farside.scheduler.sim.trace.format.row import MAX_DURATION_S, Row, flag, real, whole
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.log import Logged, status_of
from farside.scheduler.state import Job

MAX_BYTES = 1 << 60
MAX_CPUS = 1e6  # of a job, by GPU


def to_job(row: Row) -> TraceJob:
    """Job of our own CSV. Other columns than ours are passed over, so that results can be read as traces."""
    time = "submit_time" if row.has("submit_time") else "submit_s"
    job = Job(
        job_id=row.key("job_id"),
        sequence=row.ordinal,
        submit_s=row.moment(time),
        gpus=row.gpus("gpus"),
        vc=row.text("vc"),
        user=row.text("user"),
        name=row.text("name"),
        parameter_servers=_whole(row, "parameter_servers", 10**6),
        cpus_per_gpu=_real(row, "cpus_per_gpu", 0.0, MAX_CPUS),
        memory_bytes_per_gpu=_real(row, "memory_bytes_per_gpu", 0.0, MAX_BYTES),
        gpu_model=row.text("gpu_model"),
        model=row.text("model"),
        model_bytes=_whole(row, "model_bytes", MAX_BYTES),
        skew=_real(row, "skew", 0.0, 1.0),
        preemptible=flag("preemptible", row.cell("preemptible")) if row.has("preemptible") else True,
        limit_s=_real(row, "limit_s", float("inf"), MAX_DURATION_S),
    )
    return TraceJob(job=job, duration_s=row.duration_s("duration_s"), line=row.line)


def to_logged(row: Row) -> Logged:
    """Logged job of our own CSV, with ``start_s`` and ``status`` where it has such columns, as results of a run do."""
    time = "submit_time" if row.has("submit_time") else "submit_s"
    gpus = row.gpus("gpus", lowest=0)
    return Logged(
        job_id=row.key("job_id"),
        submit_s=row.moment(time),
        start_s=row.moment("start_s") if row.has("start_s") else math.nan,
        duration_s=row.duration_s("duration_s"),
        gpus=gpus,
        cpus=gpus * _real(row, "cpus_per_gpu", math.nan, MAX_CPUS) if gpus else _real(row, "cpus", math.nan, MAX_CPUS),
        status=status_of(row.cell("status")),
        status_word=row.cell("status"),
        user=row.text("user"),
        vc=row.text("vc"),
        line=row.line,
    )


def _real(row: Row, column: str, default: float, highest: float) -> float:
    return real(column, row.cell(column), highest=highest) if row.has(column) else default


def _whole(row: Row, column: str, highest: int) -> int:
    return whole(column, row.cell(column), highest=highest) if row.has(column) else 0
