"""Expected time that a job holds its GPUs, from similar jobs: for policies that use it, such as QSSF. PURE.

The rolling estimate of the prediction service (scheduler/predict/rolling_estimate.py, [helios §4.2.2, Algorithm 1]),
fed by the jobs that were seen to end and by what sacct tells of those before. As long as nothing is known, and where it
comes to more than that, a job's time limit is taken.

An estimate is that of a job's submission, as in the manager: what is learned later is of use to jobs that come later. A
job that was submitted before anybody looked is expected to take what the jobs say that had ended by then (`hear`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from farside.scheduler.predict.estimator import TimeLimits, left_s
from farside.scheduler.predict.rolling_estimate import RollingEstimator, RollingParams
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.slurm.shadow_job import Ended, fact_of, job_of_ended
from farside.scheduler.state import Job


class ExpectedTimes(TimeLimits):
    """An estimator by what jobs took, by user, name and GPUs."""

    def __init__(self) -> None:
        self._estimator = RollingEstimator(RollingParams())
        self._expected_gpu_s: dict[str, float] = {}  # by id, of jobs that have not ended

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """A job has ended. Those that come from now on are expected to take another time."""
        self._expected_gpu_s.pop(ended.job.job_id, None)
        self._estimator.add(ended.job, ended.ran_s)
        return {}

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is left of its time limit; without one, of what is expected of it."""
        return left_s(job, done_s, expected_s=self.predicted_gpu_s(job, 0.0) / job.gpus)

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """GPU seconds that a job is expected to take; infinite where it has no limit and nothing is known.

        Asked again about a job that has not ended it says the same.
        """
        known = self._expected_gpu_s.get(job.job_id)
        if known is None:
            known = self._expected_gpu_s[job.job_id] = self._estimated_gpu_s(job)
        return known

    def _estimated_gpu_s(self, job: Job) -> float:
        estimate = self._estimator.expect(job)
        if not estimate.nearest:
            return job.limit_s * job.gpus
        return min(estimate.duration_s, job.limit_s) * job.gpus

    def forget_others(self, job_ids: Collection[str]) -> None:
        """Forget what was expected of all jobs but these."""
        self._expected_gpu_s = {name: gpu_s for name, gpu_s in self._expected_gpu_s.items() if name in job_ids}


def hear(times: ExpectedTimes, ended: Iterable[Ended], coming: Iterable[Job]) -> dict[str, float]:
    """Tells an estimator of jobs that came and ended, and of others that came, in the order of these times.

    Returns:
        By id what was expected of each of them when it came, GPU seconds.
    """
    over = [(job_of_ended(one), one) for one in ended]
    # At one instant jobs end before others come, as everywhere.
    facts: list[tuple[float, int, int, Job, Ended | None]] = [
        (one.end_s, 0, int(job.job_id), job, one) for job, one in over
    ]
    facts += [(job.submit_s, 1, int(job.job_id), job, None) for job in (*(job for job, _ in over), *coming)]
    found: dict[str, float] = {}
    for at_s, _, _, job, one in sorted(facts, key=lambda fact: fact[:3]):
        if one is None:
            found[job.job_id] = times.predicted_gpu_s(job, at_s)
        else:
            times.learn(fact_of(one))
    return found


def expected_gpu_s(ended: Sequence[Ended]) -> Mapping[str, float]:
    """Expected GPU seconds of each job at its submission, from the jobs that had ended by then."""
    return hear(ExpectedTimes(), ended, ())
