"""Philly's jobs in the CSV of later simulators: submit_time, duration, gpus, vc.

``submit_time`` is a date of the cluster's local time (seconds do as well), ``duration`` seconds from the start of the
first attempt to the end of the last. There are no ids: a job is called by how many rows stand above it. ``vc`` may be
missing; ``complete_vc`` (whether the file has all jobs of that virtual cluster) is passed over, as other columns are.
"""

import math
from collections.abc import Iterator

from farside.scheduler.sim.trace.format.row import Item, Problem, Row
from farside.scheduler.sim.trace.format.source import Source
from farside.scheduler.sim.trace.format.table import read_table
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.log import Logged, Status
from farside.scheduler.state import Job


def read_philly_csv(source: Source, attempts: str) -> Iterator[Item]:
    """Jobs of Philly's CSV."""
    return read_table(source, _job)


def _job(row: Row) -> TraceJob:
    job = Job(
        job_id=str(row.ordinal),
        sequence=row.ordinal,
        submit_s=row.moment("submit_time"),
        gpus=row.gpus("gpus"),
        vc=row.text("vc"),
        user=row.text("user"),
    )
    return TraceJob(job=job, duration_s=row.duration_s("duration"), line=row.line)


def log_philly_csv(source: Source) -> Iterator[Logged | Problem]:
    """Read jobs of Philly's CSV, which has neither starts nor final status."""
    return read_table(source, _logged)


def _logged(row: Row) -> Logged:
    found = _job(row)
    job = found.job
    return Logged(
        job_id=job.job_id,
        submit_s=job.submit_s,
        start_s=math.nan,
        duration_s=found.duration_s,
        gpus=job.gpus,
        cpus=math.nan,
        status=Status.UNKNOWN,
        user=job.user,
        vc=job.vc,
        line=row.line,
    )
