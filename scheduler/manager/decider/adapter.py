"""Adapter from live jobs and nodes to the scheduling cycle's own `Job` and `Node`. PURE."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from farside.scheduler.admission.figures import Figures
from farside.scheduler.admission.partitions import Partitions
from farside.scheduler.manager.aggregation.decide import AggregationRules, Outlook, Site, WantingJob, admission
from farside.scheduler.manager.model.event import NodeAllocation
from farside.scheduler.manager.model.record import ACTIVE, LiveJob, LiveNode, LiveTask, Phase, members_of
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.predict.estimator import Estimator, TimeLimits
from farside.scheduler.state import Allocation, Job, Node

TIME_LIMITS = TimeLimits()
DEFAULT_RULES = AggregationRules()


def partition_of(job: LiveJob, partitions: Partitions) -> str:
    """The partition that a job waits in, and that its service counts for."""
    return partitions.name_of(job.spec.partition)


def is_ready(state: LiveState, job: LiveJob) -> bool:
    """Whether all jobs that it waits for have ended well."""
    return all(other in state.jobs and state.jobs[other].phase is Phase.DONE for other in job.spec.after)


def is_holding(job: LiveJob) -> bool:
    """Whether the plan gives it the GPUs of its places: not if it has to leave them to another."""
    return job.phase is Phase.ALLOCATED or (job.phase in ACTIVE and not job.is_leaving)


def may_wait(state: LiveState, job: LiveJob, set_aside: frozenset[str] = frozenset()) -> bool:
    """Whether the plan has it among those that wait for GPUs: also while it leaves its own to another."""
    is_leaving = job.is_leaving and not job.cancelled_by
    is_free = (job.phase is Phase.WAITING or is_leaving) and not job.held_by and is_ready(state, job)
    return is_free and not awaited_aggregators(state, job, set_aside)


def awaited_aggregators(state: LiveState, job: LiveJob, set_aside: frozenset[str] = frozenset()) -> str:
    """For which Aggregators a job waits, none of nodes ``set_aside``; empty: it wants none, has or can have them."""
    if not job.spec.aggregation or job.phase in ACTIVE or job.job_id in state.aggregation.jobs:
        return ""
    return admission(outlook_of(state, 0.0, set_aside=set_aside), job.job_id)


def outlook_of(
    state: LiveState, now_s: float, rules: AggregationRules = DEFAULT_RULES, *, set_aside: frozenset[str] = frozenset()
) -> Outlook:
    """What shared aggregation is decided by; nodes that are ``set_aside`` for co-located jobs are not in the pool."""
    shared = state.aggregation
    sites = {name: _site_of(state, state.nodes[name]) for name in shared.offers if name in state.nodes}
    sites |= {name: replace(sites[name], is_taking=False) for name in set_aside & sites.keys()}
    jobs = {job_id: _wanting(state.jobs[job_id]) for job_id in shared.wanting}
    return Outlook(state=shared, sites=sites, jobs=jobs, now_s=now_s, rules=rules)


def _site_of(state: LiveState, node: LiveNode) -> Site:
    there = (task for key in node.tasks if (task := state.task(key)) is not None)
    asked = sum(_cpus_of(state.jobs[task.job_id], task) for task in there)
    return Site(
        node=node.name,
        cores=state.aggregation.offers[node.name].cores,
        is_up=node.is_up,
        is_taking=node.is_taking,
        has_gpus=bool(node.gpus),
        free_cpus=node.cpus - asked,
    )


def _cpus_of(job: LiveJob, task: LiveTask) -> float:
    role = job.spec.role(task.role)
    return job.spec.cpus_per_gpu * len(task.gpus) if role is None else role.cpus


def _wanting(job: LiveJob) -> WantingJob:
    tasks = members_of(job) if job.phase in ACTIVE else ()
    return WantingJob(
        job_id=job.job_id,
        start=job.start,
        nodes=frozenset(task.node for task in tasks),
        idle_s=math.inf if job.phase in ACTIVE else job.since_s,
    )


def job_of(job: LiveJob, *, asks_users: bool = False) -> Job:
    """A live job as the cycle knows jobs. ``asks_users``: some node runs jobs of some users only."""
    spec = job.spec
    return Job(
        job_id=job.job_id,
        sequence=job.sequence,
        submit_s=job.submit_s,
        gpus=spec.gpus,
        vc=spec.partition,
        user=job.user,
        account=spec.account,
        qos=spec.qos,
        name=spec.title,
        cpus_per_gpu=spec.cpus_per_gpu,
        memory_bytes_per_gpu=spec.memory_bytes_per_gpu,
        swap_bytes_per_gpu=spec.swap_bytes_per_gpu,
        gpu_model=spec.gpu_model,
        runs_as=job.user if asks_users else "",
        choice=spec.choice,
        preemptible=spec.preemptible,
        grace_s=spec.grace_s,
        limit_s=job.limit_s,
        parameter_servers=sum(role.count for role in spec.roles if not role.gpus),
        model=spec.model,
        model_bytes=job.profile.model_bytes if job.profile is not None else 0,
        skew=job.profile.skew if job.profile is not None else 0.0,
    )


def figures_of(
    job: LiveJob, seen: Job, now_s: float, *, estimator: Estimator = TIME_LIMITS, share_level: float | None = None
) -> Figures:
    """What a live job, as the cycle has ``seen`` it, has behind it, but for what it holds; and what is expected of it.

    One that leaves its GPUs to another waits in the plan, while its processes still go.
    """
    # The first start has nothing to load; each later one begins from a checkpoint.
    is_first_start = job.phase in ACTIVE and is_holding(job) and job.start == 1
    return Figures(
        remaining_s=estimator.remaining_s(seen, job.spent_s),
        predicted_gpu_s=estimator.predicted_gpu_s(seen, now_s),
        executed_s=job.executed_s,
        waited_s=job.waited_s,
        since_s=max(job.since_s, job.submit_s),
        first_start_s=job.start_s if job.start else math.inf,
        has_to_resume=bool(job.start) and not is_first_start,
        share_level=share_level,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """Resources booked by jobs on a node."""

    gpus: int = 0
    memory_bytes: float = 0.0
    swap_bytes: float = 0.0


NOTHING = Booked()


def node_of(node: LiveNode, promised: Booked = NOTHING, *, aggregating: int = 0, is_set_aside: bool = False) -> Node:
    """A live node as the cycle knows nodes; ``aggregating``: cores that its Aggregator has in the pool.

    One that ``is_set_aside`` for co-located jobs has no GPUs but those that jobs hold there already.

    Its memory is what jobs there have been promised and what the agent would give besides: what other programs use is
    not there to be given, nor the swap that they use. GPUs are whole ones, or the parts that they are cut into. It has
    no fewer and no less swap than are booked, however much it lost meanwhile.
    """
    memory = math.inf
    if node.memory_bytes:
        memory = min(float(node.memory_bytes), node.headroom_bytes + promised.memory_bytes)
    return Node(
        name=node.name,
        gpus=max(0 if is_set_aside else node.device_count, promised.gpus),
        cpus=max(0, node.cpus - aggregating) if node.cpus else math.inf,
        memory_bytes=max(memory, promised.memory_bytes),
        swap_bytes=max(float(node.swap_bytes - node.swap_own_bytes), promised.swap_bytes),
        lends_bytes=float(node.lends_bytes),
        gpu_model=node.gpu_model,
        rack=node.rack,
        rdma_domain=node.rdma_domain or node.rdma_subnet,
        users=node.users,
        features=node.labels,
    )


def allocation_of(places: tuple[NodeAllocation, ...], node_index: Mapping[str, int]) -> Allocation:
    """GPUs by the nodes' places in the cycle's ledger."""
    return tuple(sorted((node_index[place.node], place.gpus) for place in places))


def node_allocations_of(allocation: Allocation, nodes: Sequence[Node]) -> tuple[NodeAllocation, ...]:
    """An allocation of the cycle's by the names of its nodes."""
    return tuple(NodeAllocation(node=nodes[at].name, gpus=gpus) for at, gpus in allocation)


def booked(state: LiveState) -> dict[str, Booked]:
    """Resources booked by jobs, on each node that has any."""
    found: dict[str, Booked] = {}
    for job in state.live_jobs():
        for place in job.places if is_holding(job) else ():
            before = found.get(place.node, NOTHING)
            found[place.node] = Booked(
                gpus=before.gpus + place.gpus,
                memory_bytes=before.memory_bytes + place.gpus * job.spec.memory_bytes_per_gpu,
                swap_bytes=before.swap_bytes + place.gpus * job.spec.swap_bytes_per_gpu,
            )
    return found
