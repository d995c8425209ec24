"""Estimates of jobs' GPU time: one interface for the simulator, the manager and Slurm. PURE.

Which policies need one is in the catalog of orders (order/catalog.py). Behind the door is an oracle or a service that
learns (sim/estimator.py), what similar jobs took as sacct knows it (slurm/expected_time.py), or the time limit alone.
"""

import math
from collections.abc import Mapping
from typing import Protocol

from farside.scheduler.predict.service import JobEnded
from farside.scheduler.state import Job


class Estimator(Protocol):
    """Estimator of jobs' GPU time. It has no clock, only what it has learned so far."""

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """GPU seconds that a job is expected to take in total; NaN: unknown.

        Asked again about the same job it says the same, or what it has learned since.
        """
        ...

    def remaining_s(self, job: Job, done_s: float) -> float:
        """Seconds that a job still has to run after ``done_s``; infinite: unknown. Never NaN."""
        ...

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """Learn from an ended job; returns new estimates of other jobs, by sequence."""
        ...


def left_s(job: Job, done_s: float, *, expected_s: float) -> float:
    """What is left of a job's time limit after ``done_s``; without one, of the seconds that it is expected to run."""
    return job.limit_s - done_s if job.limit_s < math.inf else max(0.0, expected_s - done_s)


class TimeLimits:
    """Estimator that only knows time limits; without a limit, the estimate is infinite or NaN."""

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """All of its time limit."""
        return job.limit_s * job.gpus

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is left of its time limit."""
        return left_s(job, done_s, expected_s=math.inf)

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """Nothing new to it."""
        return {}
