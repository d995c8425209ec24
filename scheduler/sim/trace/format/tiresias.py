"""CSV of Tiresias's simulator: job_id, num_gpu, submit_time, iterations, model_name, duration, interval.

``submit_time`` and ``duration`` are seconds; ``interval`` is the time since the job above and ``iterations`` what the
duration came from: neither adds anything. The file says nothing of parameter servers: a job of several GPUs has as many
of them as GPUs, as in the paper's experiments [tiresias §3.5.1].
"""

from farside.scheduler.model_zoo import find_model
from farside.scheduler.sim.trace.format.row import Row
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.log import Logged
from farside.scheduler.state import Job


def to_job(row: Row) -> TraceJob:
    """Job of Tiresias's CSV. A model that is known brings its size and skew."""
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


def to_logged(row: Row) -> Logged:
    """Logged job of Tiresias's CSV, which has neither starts nor users nor final status."""
    return Logged(
        job_id=row.key("job_id"),
        submit_s=row.moment("submit_time"),
        duration_s=row.duration_s("duration"),
        gpus=row.gpus("num_gpu"),
        line=row.line,
    )
