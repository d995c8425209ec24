"""Comparison of Slurm's decisions with ours, and the gain that ours would have brought. PURE.

The gain is expected, not measured: the jobs that ended while we looked are put through the simulator, under the policy
in question and under first come, first served with backfill. That stands for Slurm and tells how good the simulation
is: it should give about what Slurm really did.

The policy is simulated as `farside slurm run` would follow it with the same settings: without the gate jobs that have
room pass the first in line, as Slurm starts them; an estimator of the same class hears of each job when it is
submitted and when it ends, and has models fitted by the same rule; and a job that waits for another, or for a date, is
ready when Slurm says so. No allocation slows a job down: Slurm and its users choose the nodes under any policy, so a
job takes as long as it took.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from farside.scheduler.domain import Rules
from farside.scheduler.order.catalog import passing
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.predict.estimator import Estimator, TimeLimits
from farside.scheduler.predict.heard_jobs import Heard, HeardTimes
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.preemption_cost import SteppedCost
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.slurm.decide import Decision
from farside.scheduler.slurm.domain import Group, is_managed
from farside.scheduler.slurm.job_memory import Memory, eligible_s_of, limit_s_of
from farside.scheduler.slurm.learned_jobs import expected_job_of_ended
from farside.scheduler.slurm.shadow_job import Ended, job_of_ended
from farside.scheduler.slurm.snapshot import JobPhase, SlurmJob, Snapshot
from farside.scheduler.state import Cluster, Node, VirtualCluster

# Fewer jobs say nothing.
LEAST_JOBS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """One job: what Slurm did with it, and what would have been done."""

    job_id: str
    gpus: int
    slurm: str
    farside: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Average seconds from submission to the first start, waiting in all, and to the end."""

    name: str
    wait_s: float
    completion_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The gain over ``jobs`` jobs: what Slurm did, first come first served simulated, the policy simulated."""

    jobs: int
    slurm: Means
    control: Means
    policy: Means


def ended_between(before: Memory, snapshot: Snapshot, groups: Sequence[Group]) -> tuple[Ended, ...]:
    """The jobs that ran at the last turn, or came after it, and have ended since."""
    found: list[Ended] = []
    for job in snapshot.jobs:
        past = before.jobs.get(job.job_id)
        if job.phase is not JobPhase.OVER or not job.end_s > job.start_s:
            continue
        # Of the others nobody knows whether they were over before. Slurm's times are whole seconds, rounded down.
        if not before.at_s or (past is None and job.submit_s < before.at_s - 1):
            continue
        if not any(is_managed(job, group) for group in groups):
            continue
        earlier_s = past.held_before_s + past.executed_s if past is not None else 0.0
        first_s = min(job.start_s, past.first_start_s) if past is not None else job.start_s
        found.append(
            Ended(
                job_id=job.job_id, user=job.user, name=job.name, partition=job.partitions[0], gpus=job.gpus,
                submit_s=job.submit_s, start_s=first_s, end_s=job.end_s, held_s=earlier_s + job.end_s - job.start_s,
                limit_s=limit_s if (limit_s := limit_s_of(past, job)) < math.inf else 0.0,
                is_requeueable=job.is_requeueable,
                eligible_s=eligible_s_of(past, job),
            )
        )  # fmt: skip
    return tuple(found)


def compared(before: Memory, then: Decision, snapshot: Snapshot) -> tuple[Beside, ...]:
    """Differences between Slurm's actions since the last turn and that turn's decision."""
    would = {one.job_id: one for one in then.starting}
    found: list[Beside] = []
    for job in snapshot.jobs:
        past = before.jobs.get(job.job_id)
        if past is None or past.is_running:
            continue
        chosen = would.get(job.job_id)
        has_started = job.is_holding or (job.phase is JobPhase.OVER and job.end_s > job.start_s)
        if has_started and chosen is not None:
            found.append(_beside(job, "started it", "too", chosen.reason))
        elif has_started and job.job_id in then.queue:
            place = then.queue.index(job.job_id) + 1
            found.append(_beside(job, "started it", "kept it waiting", f"place {place} of {len(then.queue)}"))
    return tuple(found)


def _beside(job: SlurmJob, slurm: str, farside: str, reason: str) -> Beside:
    return Beside(job_id=job.job_id, gpus=job.gpus, slurm=slurm, farside=farside, reason=reason)


def expected_gain(
    ended: Iterable[Ended], groups: Sequence[Group], snapshot: Snapshot, rules: Rules, *, may_preempt: bool,
    requeue_cost_s: float, is_gating: bool = False,
    make_times: Callable[[], LearnedTimes | None] = lambda: None,
) -> Gain | None:  # fmt: skip
    """Expected gain of the policy over the jobs that have ended; None: they are too few.

    Args:
        ended: The jobs.
        groups: Those whose jobs are scheduled.
        snapshot: What Slurm has now, for its nodes.
        rules: The policy.
        may_preempt: Jobs would be requeued.
        requeue_cost_s: Work that a requeue loses, and the time until Slurm lets the job start again.
        is_gating: Jobs would be held until it is their turn; otherwise Slurm backfills.
        make_times: Makes an estimator as `run` begins with, which fits models itself; None: the policy asks for none.
    """
    named = {group.name: group for group in groups}
    jobs = [(name, job) for job in ended for name, group in named.items() if job.partition in group.partitions]
    nodes = {name: _nodes(group, snapshot) for name, group in named.items()}
    gpus = {name: sum(node.gpus for node in there) for name, there in nodes.items()}
    jobs = sorted(
        ((name, job) for name, job in jobs if job.gpus <= gpus[name] and job.held_s > 0),
        key=lambda one: (one[1].ready_s, int(one[1].job_id)),
    )
    if len(jobs) < LEAST_JOBS:
        return None
    cluster = Cluster(virtual_clusters=tuple(VirtualCluster(name=name, nodes=there) for name, there in nodes.items()))
    trace = [
        TraceJob(
            job=job_of_ended(job, vc=name, sequence=int(job.job_id), may_preempt=may_preempt),
            duration_s=job.held_s,
            ready_s=job.ready_s,  # its wait counts from its submission, as in `run`, which sees it from then on
        )
        for name, job in jobs
    ]
    cost = SteppedCost(one_s=requeue_cost_s, few_s=requeue_cost_s, many_s=requeue_cost_s)
    only = [job for _, job in jobs]
    estimator: Estimator = TimeLimits()
    order = rules.order if is_gating else passing(rules.order)
    if (times := make_times()) is not None:
        order, estimator = times.primed(order), _heard(times, only, groups)
    return Gain(
        jobs=len(jobs),
        slurm=_means("slurm", only, [job.end_s for job in only]),
        control=_simulated(
            cluster, replace(rules, order=Fifo(is_strict=False), preemption_cost=cost), trace, only, TimeLimits()
        ),
        policy=replace(
            _simulated(cluster, replace(rules, order=order, preemption_cost=cost), trace, only, estimator),
            name=rules.order.name,
        ),
    )


def _heard(times: LearnedTimes, jobs: Sequence[Ended], groups: Sequence[Group]) -> HeardTimes:
    """The estimator of `run`, which hears of each job when it is submitted."""
    heard = [Heard(job=expected_job_of_ended(one, groups), held_s=one.held_s) for one in jobs]
    by_submission = sorted(heard, key=lambda one: (one.job.submit_s, one.job.sequence))
    return HeardTimes(times, by_submission, [one.job.sequence for one in heard])


def _nodes(group: Group, snapshot: Snapshot) -> tuple[Node, ...]:
    seen = (snapshot.nodes[name] for name in group.nodes if name in snapshot.nodes)
    return tuple(Node(name=node.name, gpus=node.gpus, gpu_model=node.gpu_model) for node in seen)


def _simulated(
    cluster: Cluster, rules: Rules, trace: Sequence[TraceJob], jobs: Sequence[Ended], estimator: Estimator
) -> Means:
    runs = Simulation(
        cluster, rules, trace, estimator=estimator, is_in_whole_seconds=False, is_knowing_progress=False
    ).run()  # fmt: skip
    return _means(rules.order.name, jobs, [run.end_s for run in runs])


def _means(name: str, jobs: Sequence[Ended], ends_s: Sequence[float]) -> Means:
    pairs = list(zip(jobs, ends_s, strict=True))
    wait_s = fmean(end_s - job.submit_s - job.held_s for job, end_s in pairs)
    return Means(name=name, wait_s=wait_s, completion_s=fmean(end_s - job.submit_s for job, end_s in pairs))


def told_gain(gain: Gain) -> str:
    """The gain in one line."""
    rows = ", ".join(
        f"{means.name}{note} {means.wait_s:.0f} s and {means.completion_s:.0f} s"
        for means, note in ((gain.slurm, ""), (gain.control, " (simulated)"), (gain.policy, " (simulated)"))
    )
    return f"average wait and completion of {gain.jobs} jobs: {rows}"


def kept(ended: Mapping[str, Ended], new: Iterable[Ended], most: int) -> dict[str, Ended]:
    """The newest of them by job."""
    found = {**ended, **{one.job_id: one for one in new}}
    return dict(list(found.items())[-most:])
