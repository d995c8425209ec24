"""Job data remembered between two turns, because Slurm forgets it. PURE.

Slurm counts a job that was requeued from zero again; what it was served before is what 2DAS orders by. And an order
whose queues are lists needs each job's place in its list. All times are seconds since 1970 of the snapshots' clock.

A run interval is seen to have ended a turn late at most; it is counted up to the last turn at which it was seen.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from farside.scheduler.slurm.snapshot import SlurmJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is remembered of one job.

    Attributes:
        executed_s: In run intervals that are over, since it was submitted or last promoted.
        held_before_s: In all run intervals before that promotion.
        waited_s: In waits that are over, since then.
        since_s: Since when it waits or runs as it does now; a promotion counts as a new wait.
        is_running: Whether that is a run interval.
        first_start_s: When it was started first; infinite before that.
        eligible_s: From then on it could have started first, as Slurm said before anybody held or requeued it; 0: that
            is not known.
        is_unlimited: Whether it had no time limit when it waited first; when it starts, Slurm gives it the partition's.
        restarts: How often Slurm had requeued it when it was seen last.
        place: In the order of the last turn; infinite for one that has just come.
        change_at_s: When its policy wants it to be looked at again.
        room_made_s: When others were last requeued for this wait of its; minus infinity: they were not.
    """

    executed_s: float = 0.0
    held_before_s: float = 0.0
    waited_s: float = 0.0
    since_s: float
    is_running: bool = False
    first_start_s: float = math.inf
    eligible_s: float = 0.0
    is_unlimited: bool = False
    restarts: int = 0
    place: float = math.inf
    change_at_s: float = math.inf
    room_made_s: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What is remembered of all jobs, as of the turn at ``at_s``."""

    at_s: float = 0.0
    jobs: Mapping[str, Past] = field(default_factory=dict)


def recall(memory: Memory, jobs: Iterable[SlurmJob], now_s: float) -> Memory:
    """The memory of just these jobs, moved on to what is seen now. Slurm's clock may be a little ahead of ours."""
    found = {job.job_id: _moved_on(memory.jobs.get(job.job_id), job, memory.at_s, now_s) for job in jobs}
    return Memory(at_s=now_s, jobs=found)


def eligible_s_of(past: Past | None, job: SlurmJob) -> float:
    """Return when a job could have started first, 0 where nobody knows: after a requeue Slurm says another time."""
    if past is not None and past.eligible_s:
        return past.eligible_s
    return 0.0 if job.restarts or math.isnan(job.eligible_s) else job.eligible_s


def limit_s_of(past: Past | None, job: SlurmJob) -> float:
    """Return the time limit that a job's user gave it, seconds; infinite where that is none."""
    return math.inf if past is not None and past.is_unlimited else job.limit_s


def _first_seen(job: SlurmJob, now_s: float) -> Past:
    # Slurm's clock may be ahead of ours.
    submit_s = min(now_s, job.submit_s)
    if not job.is_holding:
        return Past(
            since_s=_latest(submit_s, job.eligible_s, now_s), restarts=job.restarts,
            eligible_s=eligible_s_of(None, job), is_unlimited=_is_unlimited(None, job),
        )  # fmt: skip
    start_s = _latest(submit_s, job.start_s, now_s)
    return Past(
        waited_s=start_s - submit_s,
        since_s=start_s,
        is_running=True,
        first_start_s=start_s,
        restarts=job.restarts,
        eligible_s=eligible_s_of(None, job),
    )


def _latest(submit_s: float, other_s: float, now_s: float) -> float:
    return min(now_s, submit_s if math.isnan(other_s) else max(submit_s, other_s))


def _moved_on(past: Past | None, job: SlurmJob, before_s: float, now_s: float) -> Past:
    if past is None:
        return _first_seen(job, now_s)
    start_s = job.start_s if not math.isnan(job.start_s) else now_s
    # By the count of restarts as well: between two turns a job may be requeued and started again.
    is_anew = past.is_running and (not job.is_holding or job.restarts > past.restarts)
    if is_anew:  # its run interval has ended since the last turn
        past = replace(
            past,
            executed_s=past.executed_s + max(0.0, before_s - past.since_s),
            since_s=max(before_s, past.since_s),
            is_running=False,
            change_at_s=math.inf,
            room_made_s=-math.inf,
        )
    if job.is_holding and not past.is_running:
        start_s = min(now_s, max(start_s, past.since_s))
        past = replace(
            past,
            waited_s=past.waited_s + start_s - past.since_s,
            since_s=start_s,
            is_running=True,
            first_start_s=min(past.first_start_s, start_s),
            change_at_s=math.inf,
        )
    return replace(
        past, restarts=job.restarts, eligible_s=eligible_s_of(past, job), is_unlimited=_is_unlimited(past, job)
    )


def _is_unlimited(past: Past | None, job: SlurmJob) -> bool:
    # Until its first start, whoever may change the limit is its user.
    if job.is_holding or job.restarts:
        return past is not None and past.is_unlimited
    return job.limit_s == math.inf
