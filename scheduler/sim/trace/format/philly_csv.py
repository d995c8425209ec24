"""Philly's jobs in the CSV of later simulators: submit_time, duration, gpus, vc.

``submit_time`` is a date of the cluster's local time (seconds do as well), ``duration`` seconds from the start of the
first attempt to the end of the last. There are no ids: a job is called by how many rows stand above it. ``vc`` may be
missing; ``complete_vc`` (whether the file has all jobs of that virtual cluster) is passed over, as other columns are.
"""

from farside.scheduler.sim.trace.format.row import Row
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Job


def to_job(row: Row) -> TraceJob:
    """Job of Philly's CSV."""
    job = Job(
        job_id=str(row.ordinal),
        sequence=row.ordinal,
        submit_s=row.moment("submit_time"),
        gpus=row.gpus("gpus"),
        vc=row.text("vc"),
        user=row.text("user"),
    )
    return TraceJob(job=job, duration_s=row.duration_s("duration"), line=row.line)
