"""CSV of Tiresias's simulator: job_id, num_gpu, submit_time, iterations, model_name, duration, interval.

``submit_time`` and ``duration`` are seconds; ``interval`` is the time since the job above and ``iterations`` what the
duration came from: neither adds anything. The file says nothing of parameter servers: a job of several GPUs has as many
of them as GPUs, as in the paper's experiments [tiresias §3.5.1].
"""

import math
from collections.abc import Iterator

from farside.scheduler.model_zoo import find_model
from farside.scheduler.sim.trace.format.row import Item, Problem, Row
from farside.scheduler.sim.trace.format.source import Source
from farside.scheduler.sim.trace.format.table import read_table
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.log import Logged, Status
from farside.scheduler.state import Job


def read_tiresias(source: Source, attempts: str) -> Iterator[Item]:
    """Jobs of Tiresias's CSV. A model that is known brings its size and skew."""
    return read_table(source, _job)


def _job(row: Row) -> TraceJob:
    gpus = row.gpus("num_gpu")
    name = row.text("model_name")
    model = find_model(name)
    job = Job(
        job_id=row.key("job_id"),
        sequence=row.ordinal,
        submit_s=row.moment("submit_time"),
        gpus=gpus,
        name=name,
        parameter_servers=gpus if gpus > 1 else 0,
        model=name,
        model_bytes=model.model_bytes if model else 0,
        skew=model.skew if model else 0.0,
    )
    return TraceJob(job=job, duration_s=row.duration_s("duration"), line=row.line)


def log_tiresias(source: Source) -> Iterator[Logged | Problem]:
    """Read jobs of Tiresias's CSV, which has neither starts nor users nor final status."""
    return read_table(source, _logged)


def _logged(row: Row) -> Logged:
    return Logged(
        job_id=row.key("job_id"),
        submit_s=row.moment("submit_time"),
        start_s=math.nan,
        duration_s=row.duration_s("duration"),
        gpus=row.gpus("num_gpu"),
        cpus=math.nan,
        status=Status.UNKNOWN,
        user="",
        vc="",
        line=row.line,
    )
