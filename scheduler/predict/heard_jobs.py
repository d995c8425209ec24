"""Estimator of a simulation of real jobs: it hears of them when the real one did, and learns what they took. PURE.

A simulation asks about a job when it is ready to run. A scheduler of real jobs asks when it is submitted, which is
earlier for a job that was held or that waited for others, and also about jobs that never ran: what was known then is
what counts.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from farside.scheduler.predict.estimator import Estimator
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.state import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A job as the real estimator heard of it, when it was submitted.

    ``held_s``: seconds that it held GPUs in all, once it was over; NaN where it was not.
    """

    job: Job
    held_s: float


class HeardTimes:
    """Estimator for the jobs of a simulation, by what was known when each was submitted.

    Args:
        times: The estimator as it was before the first job.
        heard: All jobs that there were, in the order of their submission.
        simulated: Sequences of those that the simulation has.
    """

    def __init__(self, times: Estimator, heard: Iterable[Heard], simulated: Iterable[int]) -> None:
        self._times = times
        self._coming = deque(heard)
        self._held_s = {one.job.sequence: one.held_s for one in self._coming}
        self._simulated = frozenset(simulated)

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """What was expected of it when it was submitted, or since another estimator has taken over."""
        while self._coming and self._coming[0].job.submit_s <= now_s:
            self._hear()
        return self._times.predicted_gpu_s(job, now_s)

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is left of its time limit; without one, of what is expected of it."""
        return self._times.remaining_s(job, done_s)

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """Learns from it; new estimates of the simulation's other jobs, by sequence."""
        # At one instant jobs end before others come.
        while self._coming and self._coming[0].job.submit_s < ended.at_s:
            self._hear()
        held_s = self._held_s.get(ended.job.sequence, ended.ran_s)
        told = self._times.learn(replace(ended, ran_s=held_s))
        return {sequence: gpu_s for sequence, gpu_s in told.items() if sequence in self._simulated}

    def _hear(self) -> None:
        one = self._coming.popleft()
        self._times.predicted_gpu_s(one.job, one.job.submit_s)
