"""Comparison of Slurm's decisions with ours, and the gain that ours would have brought. PURE.

The gain is expected, not measured: the jobs that ended while we looked are put through the simulator, under the policy
in question and under first come, first served with backfill. That stands for Slurm and tells how good the simulation
is: it should give about what Slurm really did.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from farside.scheduler.domain import Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.predict.estimator import left_s
from farside.scheduler.preemption_cost import SteppedCost
from farside.scheduler.sim.estimator import Foreknown
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.slurm.decide import Decision
from farside.scheduler.slurm.domain import Group, is_managed
from farside.scheduler.slurm.expected_time import expected_gpu_s
from farside.scheduler.slurm.job_memory import Memory
from farside.scheduler.slurm.shadow_job import Ended, job_of_ended
from farside.scheduler.slurm.snapshot import JobPhase, SlurmJob, Snapshot
from farside.scheduler.state import Cluster, Job, Node, VirtualCluster

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
        earlier_s = past.executed_s if past is not None else 0.0
        first_s = min(job.start_s, past.first_start_s) if past is not None else job.start_s
        found.append(
            Ended(
                job_id=job.job_id, user=job.user, name=job.name, partition=job.partitions[0], gpus=job.gpus,
                submit_s=job.submit_s, start_s=first_s, end_s=job.end_s, held_s=earlier_s + job.end_s - job.start_s,
                limit_s=job.limit_s if job.limit_s < math.inf else 0.0, is_requeueable=job.is_requeueable,
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
    requeue_cost_s: float,
) -> Gain | None:  # fmt: skip
    """Expected gain of the policy over the jobs that have ended; None: they are too few.

    ``requeue_cost_s``: work that a requeue loses, and the time until Slurm lets the job start again.
    """
    named = {str(at): group for at, group in enumerate(groups)}
    jobs = [(name, job) for job in ended for name, group in named.items() if job.partition in group.partitions]
    nodes = {name: _nodes(group, snapshot) for name, group in named.items()}
    gpus = {name: sum(node.gpus for node in there) for name, there in nodes.items()}
    jobs = sorted(
        ((name, job) for name, job in jobs if job.gpus <= gpus[name] and job.held_s > 0),
        key=lambda one: (one[1].submit_s, int(one[1].job_id)),
    )
    if len(jobs) < LEAST_JOBS:
        return None
    cluster = Cluster(virtual_clusters=tuple(VirtualCluster(name=name, nodes=there) for name, there in nodes.items()))
    trace = [
        TraceJob(job=job_of_ended(job, vc=name, sequence=at, may_preempt=may_preempt), duration_s=job.held_s)
        for at, (name, job) in enumerate(jobs)
    ]
    cost = SteppedCost(one_s=requeue_cost_s, few_s=requeue_cost_s, many_s=requeue_cost_s)
    only = [job for _, job in jobs]
    return Gain(
        jobs=len(jobs),
        slurm=_means("slurm", only, [job.end_s for job in only]),
        control=_simulated(cluster, replace(rules, order=Fifo(is_strict=False), preemption_cost=cost), trace, only),
        policy=_simulated(cluster, replace(rules, preemption_cost=cost), trace, only),
    )


def _nodes(group: Group, snapshot: Snapshot) -> tuple[Node, ...]:
    seen = (snapshot.nodes[name] for name in group.nodes if name in snapshot.nodes)
    return tuple(Node(name=node.name, gpus=node.gpus, gpu_model=node.gpu_model) for node in seen)


class _AsItCame(Foreknown):
    """Estimator that knows what is known in life of a job's length when it comes: never how long it will run."""

    def __init__(self, expected_gpu_s: Mapping[str, float], trace: Sequence[TraceJob]) -> None:
        super().__init__(lambda one: expected_gpu_s[one.job.job_id], trace)

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is left of its time limit; without one, of what is expected of it."""
        return left_s(job, done_s, expected_s=self.predicted_gpu_s(job, job.submit_s) / job.gpus)


def _simulated(cluster: Cluster, rules: Rules, trace: Sequence[TraceJob], jobs: Sequence[Ended]) -> Means:
    runs = Simulation(cluster, rules, trace, estimator=_AsItCame(expected_gpu_s(jobs), trace)).run()
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
