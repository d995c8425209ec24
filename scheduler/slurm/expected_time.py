"""Expected time that a job holds its GPUs, from similar jobs: for policies that use it, such as QSSF. PURE.

The rolling estimate of the prediction service (scheduler/predict/rolling_estimate.py, [helios §4.2.2, Algorithm 1]),
fed by the jobs that were seen to end and by what sacct tells of those before. As long as nothing is known, and where it
comes to more than that, a job's time limit is taken.
"""

import heapq
from collections.abc import Mapping, Sequence

from farside.scheduler.predict.estimator import TimeLimits, left_s
from farside.scheduler.predict.rolling_estimate import RollingEstimator, RollingParams
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.slurm.shadow_job import Ended, fact_of, job_of_ended
from farside.scheduler.state import Job


class ExpectedTimes(TimeLimits):
    """An estimator by what jobs took, by user, name and GPUs."""

    def __init__(self) -> None:
        self._estimator = RollingEstimator(RollingParams())

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """A job has ended. Others are expected to take another time from now on, which the next turn asks for."""
        self._estimator.add(ended.job, ended.ran_s)
        return {}

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is left of its time limit; without one, of what is expected of it."""
        return left_s(job, done_s, expected_s=self.predicted_gpu_s(job, 0.0) / job.gpus)

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """GPU seconds that a job is expected to take; infinite where it has no limit and nothing is known."""
        estimate = self._estimator.expect(job)
        if not estimate.nearest:
            return job.limit_s * job.gpus
        return min(estimate.duration_s, job.limit_s) * job.gpus


def expected_gpu_s(ended: Sequence[Ended]) -> Mapping[str, float]:
    """Expected GPU seconds of each job at its submission, from the jobs that had ended by then."""
    expected, ending = ExpectedTimes(), [(one.end_s, int(one.job_id), one) for one in ended]
    heapq.heapify(ending)
    found: dict[str, float] = {}
    for one in sorted(ended, key=lambda one: one.submit_s):
        while ending and ending[0][0] <= one.submit_s:
            expected.learn(fact_of(heapq.heappop(ending)[2]))
        found[one.job_id] = expected.predicted_gpu_s(job_of_ended(one), one.submit_s)
    return found
