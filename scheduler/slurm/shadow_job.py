"""A finished Slurm job, as observed or as sacct reports it. Frozen, PURE."""

import math
from dataclasses import dataclass

from farside.scheduler.state import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A job that has ended.

    ``held_s``: it had its GPUs for so long, in all of its run intervals. ``limit_s``: 0 where it had none, as JSON has
    no infinity. ``eligible_s``: from then on it could have started; 0 where that is not known.
    """

    job_id: str
    user: str
    partition: str
    gpus: int
    submit_s: float
    start_s: float
    end_s: float
    held_s: float
    limit_s: float
    is_requeueable: bool
    name: str = ""
    eligible_s: float = 0.0

    @property
    def ready_s(self) -> float:
        """From when on it waited for GPUs alone, as far as is known: not for another job, a date or a release."""
        return min(max(self.submit_s, self.eligible_s), self.start_s)


def job_of_ended(one: Ended, *, vc: str = "", sequence: int = 0, may_preempt: bool = False) -> Job:
    """A finished job as the cycle's `Job`; Slurm may requeue it if ``may_preempt`` and its user allow that."""
    return Job(
        job_id=one.job_id, sequence=sequence, submit_s=one.submit_s, gpus=one.gpus, vc=vc, user=one.user, name=one.name,
        preemptible=may_preempt and one.is_requeueable, limit_s=one.limit_s or math.inf,
    )  # fmt: skip
