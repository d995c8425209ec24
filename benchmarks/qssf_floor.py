"""Reference estimator for made traces: it knows how the trace was made, but no run time in advance.

It knows the name behind a slip of a finger, and how far run times spread within a name and between names. What a name's
jobs take it learns as they end, as anybody must: the posterior of a log-normal, whose mean orders the queue. It is one
index among many, and no proven bound: by luck, or by another index, an order can be better on a draw.
"""

import math
from collections.abc import Mapping

import numpy as np

from benchmarks.qssf_runs import Lesson
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.predict.rolling_estimate import bounded_s
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.state import Job


class RecipeEstimator:
    """Expectations of one who has the recipe. ``recurrence``: of the workload, the share of variance between names."""

    def __init__(self, lesson: Lesson, recurrence: float) -> None:
        self._kinds = lesson.kinds
        gpus = np.log2([job.gpus for job, _ in lesson.past])
        log_s = np.log([bounded_s(ran_s) for _, ran_s in lesson.past])
        self._slope, self._level = (float(one) for one in np.polyfit(gpus, log_s, 1))
        self._variance = float(np.var(log_s - self._slope * gpus - self._level))
        self._within = self._variance * (1 - recurrence)
        self._ratio = (1 - recurrence) / recurrence if recurrence else math.inf
        self._seen: dict[int, tuple[float, int]] = {}  # sum of what was off the prior, jobs
        for job, ran_s in lesson.past:
            self._learn(job, ran_s)

    def _prior(self, job: Job) -> float:
        return self._level + self._slope * math.log2(job.gpus)

    def _learn(self, job: Job, ran_s: float) -> None:
        total, jobs = self._seen.get(self._kinds[job.sequence], (0.0, 0))
        self._seen[self._kinds[job.sequence]] = total + math.log(bounded_s(ran_s)) - self._prior(job), jobs + 1

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """GPU seconds."""
        total, jobs = self._seen.get(self._kinds[job.sequence], (0.0, 0))
        if not jobs:
            return math.exp(self._prior(job) + self._variance / 2) * job.gpus
        variance = self._within * (1 + 1 / (jobs + self._ratio))
        return math.exp(self._prior(job) + total / (jobs + self._ratio) + variance / 2) * job.gpus

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is expected of it, without what is done."""
        return max(0.0, self.predicted_gpu_s(job, 0.0) / job.gpus - done_s)

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """Learns from it."""
        self._learn(ended.job, ended.ran_s)
        return {}

    def primed(self, order: OrderPolicy) -> OrderPolicy:
        """As it was."""
        return order


def load_of(lesson: Lesson, gpus: int) -> float:
    """What the jobs that are run ask for, by what there is while they come: above 1 the queue grows to the end."""
    jobs = lesson.scene.jobs
    span_s = jobs[-1].job.submit_s - jobs[0].job.submit_s
    return sum(job.duration_s * job.job.gpus for job in jobs) / (gpus * span_s)
