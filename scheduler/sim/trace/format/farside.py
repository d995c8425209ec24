"""Farside's own CSV format: each column is a field of a job. docs/simulator.md lists them."""

import math

from farside.scheduler.sim.trace.format.row import MAX_DURATION_S, Row, flag
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
        account=row.text("account"),
        qos=row.text("qos"),
        name=row.text("name"),
        parameter_servers=row.whole("parameter_servers", 0, 10**6),
        cpus_per_gpu=row.real("cpus_per_gpu", 0.0, MAX_CPUS),
        memory_bytes_per_gpu=row.real("memory_bytes_per_gpu", 0.0, MAX_BYTES),
        gpu_model=row.text("gpu_model"),
        model=row.text("model"),
        model_bytes=row.whole("model_bytes", 0, MAX_BYTES),
        skew=row.real("skew", 0.0, 1.0),
        preemptible=flag("preemptible", row.cell("preemptible")) if row.has("preemptible") else True,
        limit_s=row.real("limit_s", float("inf"), MAX_DURATION_S),
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
        cpus=gpus * row.real("cpus_per_gpu", math.nan, MAX_CPUS) if gpus else row.real("cpus", math.nan, MAX_CPUS),
        status=status_of(row.cell("status")),
        status_word=row.cell("status"),
        user=row.text("user"),
        vc=row.text("vc"),
        line=row.line,
    )
