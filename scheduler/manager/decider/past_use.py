"""Past use that a new scheduler process begins with, from all jobs that the log still has. PURE."""

from collections import defaultdict
from collections.abc import Iterable

from farside.scheduler.admission.history import History
from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.admission.rules import Rules
from farside.scheduler.fair_share import FairShare
from farside.scheduler.manager.decider.adapter import job_of, partition_of
from farside.scheduler.manager.model.record import LiveJob, RunInterval
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.order.catalog import Needs, needs_of
from farside.scheduler.placement.measured_speed import MeasuredStart
from farside.scheduler.predict.learned_times import REPLAYED_JOBS, LearnedTimes
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.tenancy import Tenancy

# What was used so many half-lives ago counts for less than a millionth.
FORGOTTEN_HALF_LIVES = 20


def fair_share_of(tenancy: Tenancy | None, state: LiveState, now_s: float) -> FairShare | None:
    """The accounts' use as of now; None where accounts are not compared."""
    if tenancy is None or not tenancy.half_life_s:
        return None
    share = FairShare(tenancy)
    share.advance(now_s)
    since_s = now_s - FORGOTTEN_HALF_LIVES * tenancy.half_life_s
    for job in state.jobs.values():
        account = job.spec.account or job.user
        for run_interval in job.stints:
            if run_interval.end_s > since_s:
                share.note_past(account, job.spec.gpus, run_interval.begin_s, run_interval.end_s, now_s)
    return share


Histories = defaultdict[str, History]
"""What each partition has learned, by its name; of one that no job has ended in, nothing."""


def histories_of(
    rules: Rules, state: LiveState, times: LearnedTimes | None = None, partitions: Partitions = NO_PARTITIONS
) -> Histories:
    """Histories of the policies from the ended jobs that are still known, in the order of their ends.

    They are looked through only for a policy that needs them: of some hundred thousand jobs that takes a moment.
    ``times`` hears of all jobs as they came and ended, and has what it had before the restart.
    """
    histories = _histories(times, rules, state, partitions)
    if rules.placement.is_learning:
        for job, run_interval in measured_of(state.jobs.values()):
            histories[partition_of(job, partitions)].add_start(start_of(job, run_interval))
    return histories


def measured_of(jobs: Iterable[LiveJob]) -> list[tuple[LiveJob, RunInterval]]:
    """The starts of these jobs that have ended and reported iterations, in the order of their ends."""
    found = [(job, one) for job in jobs for one in job.stints if has_told(one)]
    return sorted(found, key=lambda pair: pair[1].ended_at)


def has_told(run_interval: RunInterval) -> bool:
    """Whether a start has ended, was of several GPUs, and reported how long its iterations took."""
    return run_interval.iterations is not None and run_interval.spread is not None


def start_of(job: LiveJob, run_interval: RunInterval) -> MeasuredStart:
    """A start that `has_told`, as placements learn from it."""
    told, spread = run_interval.iterations, run_interval.spread
    assert told is not None
    assert spread is not None
    # Without a name, the whole command line says what the work is: all scripts of a language have one program.
    work = job.spec.name or (job.spec.argv, *(role.argv for role in job.spec.roles))
    return MeasuredStart(
        kind=(job.user, work, job.spec.model, job.spec.gpus, run_interval.gpu_models),
        at_s=run_interval.end_s,
        skew=run_interval.skew,
        spread=spread,
        iterations=told.count,
        iteration_s=told.median_s,
        user=job.user,
    )


def _histories(times: LearnedTimes | None, rules: Rules, state: LiveState, partitions: Partitions) -> Histories:
    if times is not None:
        return _histories_with(times, rules, state, partitions)
    histories = Histories(lambda: History(rules.order, rules.placement, is_measured=True))
    if needs_of(rules.order) is Needs.ENDED_JOBS:
        ended = [job for job in state.jobs.values() if has_run(job)]
        for job in sorted(ended, key=lambda job: (job.end_s, job.sequence)):
            histories[partition_of(job, partitions)].add(service_gpu_s(job))
    return histories


def _histories_with(times: LearnedTimes, rules: Rules, state: LiveState, partitions: Partitions) -> Histories:
    order = times.primed(rules.order)
    histories = Histories(lambda: History(order, rules.placement, is_measured=True))
    jobs = [job for job in state.jobs.values() if not job.spec.colocate and (has_run(job) or not job.is_over)]
    ended = sorted((job for job in jobs if job.is_over), key=lambda job: (job.end_s, job.sequence))
    older = frozenset(job.job_id for job in ended[:-REPLAYED_JOBS])
    for job in ended[:-REPLAYED_JOBS]:
        times.remember(job_of(job), job.held_s)
        histories[partition_of(job, partitions)].add(service_gpu_s(job))
    jobs = [job for job in jobs if job.job_id not in older]
    # At one instant jobs end before others come, as everywhere.
    facts = [(job.end_s, 0, job.sequence, job) for job in jobs if job.is_over]
    facts += [(job.submit_s, 1, job.sequence, job) for job in jobs]
    for at_s, is_coming, _, job in sorted(facts, key=lambda fact: fact[:3]):
        seen = job_of(job)
        expected_gpu_s = times.predicted_gpu_s(seen, at_s)
        if not is_coming:
            histories[partition_of(job, partitions)].add(service_gpu_s(job), expected_gpu_s)
            times.learn(JobEnded(at_s=at_s, job=seen, ran_s=job.held_s))
    return histories


def has_run(job: LiveJob) -> bool:
    """Whether a job is over and says how long jobs of its kind run: it held GPUs."""
    return job.is_over and job.held_s > 0 and not job.spec.colocate


def service_gpu_s(job: LiveJob) -> float:
    """GPU seconds that a job had in all, once it is over."""
    return job.held_s * job.spec.gpus
