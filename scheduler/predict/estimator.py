"""Estimates of jobs' GPU time: one interface for the simulator, the manager and Slurm. PURE.

Which policies need one is in the catalog of orders (order/catalog.py). Behind the door is an oracle or a service that
learns (sim/estimator.py), what similar jobs took as sacct knows it (slurm/expected_time.py), or the time limit alone.
"""

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


class TimeLimits:
    """Estimator that only knows time limits; without a limit, the estimate is infinite or NaN."""

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """All of its time limit."""
        return job.limit_s * job.gpus

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is left of its time limit."""
        return job.limit_s - done_s

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """Nothing new to it."""
        return {}
