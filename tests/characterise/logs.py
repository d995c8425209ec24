"""Logs of a few jobs, written out."""

import math
from collections.abc import Iterable

from farside.scheduler.sim.trace.log import JobLog, LogBuilder, Logged, Status

MONDAY_S = 1_585_526_400.0  # 2020-03-30


def job(
    submit_s: float = 0.0,
    *,
    wait_s: float = math.nan,
    duration_s: float = 100.0,
    gpus: int = 1,
    cpus: float = math.nan,
    status: Status = Status.UNKNOWN,
    user: str = "",
    vc: str = "",
) -> Logged:
    """``submit_s``: after a Monday's midnight."""
    at_s = MONDAY_S + submit_s
    return Logged(
        job_id="", submit_s=at_s, start_s=at_s + wait_s, duration_s=duration_s, gpus=gpus, cpus=cpus, status=status,
        user=user, vc=vc, line=0,
    )  # fmt: skip


def log(jobs: Iterable[Logged]) -> JobLog:
    builder = LogBuilder()
    for one in jobs:
        builder.add(one)
    return builder.build(path="made up", fmt="helios")
