"""Co-located jobs in the manager: what their groups are decided by, and the entries that follow from a plan. PURE.

A plan says where each job is to be (`farside.scheduler.manager.colocation`). Here one step at a time follows from it: a
job that waits is given its node; one that runs elsewhere is stopped as a preempted job is, and given its node once its
process has gone. The cycle knows neither these jobs nor the GPUs of their nodes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from farside.group_time import BOUND_WORDS
from farside.scheduler.manager.colocation.node_size import NodeSize, common_size
from farside.scheduler.manager.colocation.outlook import Candidate, ColocationRules, Outlook, Site
from farside.scheduler.manager.colocation.plan import replan, why_waiting
from farside.scheduler.manager.decider.adapter import is_holding, may_wait
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.maintenance import first_reservations, latest_end_s, words_of
from farside.scheduler.manager.model.record import LiveJob, LiveNode, Maintenance, Phase
from farside.scheduler.manager.model.state import LiveState

_PLAN_WORDS = "co-located jobs were grouped anew"
Step = log.GroupsPlanned | log.JobAllocated | log.AllocationReleased | log.JobStopping


def outlook_of(state: LiveState, now_s: float, rules: ColocationRules) -> Outlook:
    """What groups are decided by."""
    nodes = [state.nodes[name] for name in sorted(rules.nodes) if name in state.nodes]
    size, reserved = size_of(state, rules.nodes), first_reservations(state, now_s)
    sites = {
        node.name: _site(
            _why_not(state, node) or size.unlike(_size(node)),
            why_alone(state, node),
            why_unspilled(node),
            reserved.get(node.name),
        )
        for node in nodes
    }  # fmt: skip
    jobs = {job_id: _candidate(state, state.jobs[job_id], now_s) for job_id in state.colocation.jobs}
    alone = frozenset(name for name, at_s in _leaves_at_s(state, rules).items() if at_s <= now_s)
    return Outlook(state=state.colocation, size=size, sites=sites, jobs=jobs, now_s=now_s, rules=rules, alone=alone)


def _leaves_at_s(state: LiveState, rules: ColocationRules) -> dict[str, float]:
    """By node with jobs of groups whose executor alone is away: when they are to go elsewhere, if they can."""
    used = {node for group in state.colocation.groups for node in group.nodes}
    return {
        name: since_s + rules.away_s
        for name, since_s in state.colocation.alone_since_s.items()
        if name in used & rules.nodes and name in state.nodes and state.nodes[name].is_taking
    }


def size_of(state: LiveState, set_aside: frozenset[str]) -> NodeSize:
    """What each node for co-located jobs has, of all that have joined, whether they take jobs now or not."""
    return common_size([_size(state.nodes[name]) for name in sorted(set_aside) if name in state.nodes])


def _size(node: LiveNode) -> NodeSize:
    return NodeSize(cpus=node.cpus, memory_bytes=node.memory_bytes)


def _site(why_not: str, why_alone: str, why_unspilled: str, reserved: Maintenance | None) -> Site:
    site = Site(why_not=why_not, why_alone=why_alone, why_unspilled=why_unspilled)
    if reserved is None:
        return site
    return replace(site, closes_s=reserved.begin_s, closes_why=words_of(reserved))


def _why_not(state: LiveState, node: LiveNode) -> str:
    if not node.is_taking:
        return node.why_not
    if node.users:
        return "it runs jobs of some users only"
    if not has_executor(node):
        return "no executor answers there: start `farside executor`, or update the agent"
    if any(not state.jobs[job_id].spec.colocate for job_id in state.jobs_on(node.name) if job_id in state.jobs):
        return "another job, with GPUs, is still there"
    return ""


def has_executor(node: LiveNode) -> bool:
    """Whether its agent says that an executor answers there; one of the version before says nothing of it."""
    return node.executor.is_there


def why_alone(state: LiveState, node: LiveNode) -> str:
    """Why a node can't be in a group of several; empty: it can. Agents of the version before say nothing of it."""
    if not node.executor.listen:
        return "its executor takes no links of other nodes: start it with --group-listen HOST:PORT, or update the agent"
    return _no_aggregator(state, node)


def _no_aggregator(state: LiveState, node: LiveNode) -> str:
    """Why workers on several nodes can't sum at a node's Aggregator; empty: they can."""
    offer = state.aggregation.offers.get(node.name)
    if offer is None or not offer.cores or not offer.tcp:
        return "no Aggregator there is reached by other nodes: start `farside aggregator` with a tcp address"
    if not offer.takes_grants:
        return "its Aggregator or its agent is of the version before: update it"
    return ""


def why_unspilled(node: LiveNode) -> str:
    """Why a node takes no job whose input does not fit in its memory; empty: it does."""
    if node.executor.spills:
        return ""
    return (
        "it has no place for input that does not fit in memory: set spill_dir in agent.toml there, or update its agent "
        "and executor"
    )


def can_group(state: LiveState, set_aside: frozenset[str]) -> int:
    """How many of the nodes that are set aside can be in a group of several, whether they take jobs now or not."""
    return sum(name in state.nodes and not why_alone(state, state.nodes[name]) for name in set_aside)


def _candidate(state: LiveState, job: LiveJob, now_s: float) -> Candidate:
    is_leaving = job.phase is Phase.STOPPING
    return Candidate(
        nodes=job.nodes if is_holding(job) else (),
        may_start=may_wait(state, job),
        threads=job.spec.threads,
        # It has not waited yet: its processes still go.
        since_s=now_s if is_leaving else job.since_s,
        waited_s=0.0 if is_leaving else _waited_s(job),
        is_running=job.phase is Phase.RUNNING,
        ends_s=latest_end_s(job, now_s),
        spills=state.colocation.spills(job.job_id),
    )


def _waited_s(job: LiveJob) -> float:
    """For how long a job had waited before its latest start was decided."""
    if not job.stints:
        return 0.0
    *before, latest = job.stints
    return latest.begin_s - (before[-1].end_s if before else job.submit_s)


def next_wake_s(state: LiveState, now_s: float, rules: ColocationRules) -> float:
    """When to look again though nothing has happened; infinite: never.

    A reservation is over then, an executor has been away for too long, or a job has waited too long.
    """
    over_s = [one.end_s for one in state.maintenance.values() if one.is_pending(now_s)]
    leaving_s = [at_s for at_s in _leaves_at_s(state, rules).values() if at_s > now_s]
    return min((*over_s, *leaving_s, *_owed_s(state, now_s, rules)), default=math.inf)


def _owed_s(state: LiveState, now_s: float, rules: ColocationRules) -> Iterator[float]:
    """When jobs will have waited too long; and where one has, when another may make room for it."""
    planned = state.colocation.nodes_of
    found = {job_id: _candidate(state, state.jobs[job_id], now_s) for job_id in state.colocation.jobs}
    owed_s = [rules.owed_at_s(one) for job_id, one in found.items() if one.may_start and job_id not in planned]
    yield from (at_s for at_s in owed_s if at_s > now_s)
    if any(at_s <= now_s for at_s in owed_s):
        yielding_s = (rules.yields_at_s(one) for job_id, one in found.items() if job_id in planned)
        yield from (at_s for at_s in yielding_s if at_s > now_s)


def next_events(state: LiveState, outlook: Outlook) -> tuple[Step, ...]:
    """The next plan, or what follows from the last one; nothing where all is as it says."""
    if not state.colocation.jobs and not state.colocation.groups:
        return ()
    plan = replan(outlook)
    return (plan,) if plan is not None else tuple(_followed(state))


def _followed(state: LiveState) -> Iterator[Step]:
    grouped = state.colocation
    nodes_of = grouped.nodes_of
    for job_id in grouped.jobs:
        job, nodes = state.jobs[job_id], nodes_of.get(job_id, ())
        if job.phase is Phase.WAITING and nodes and may_wait(state, job):
            places = tuple(log.NodeAllocation(node=node, gpus=0) for node in nodes)
            yield log.JobAllocated(job_id=job_id, places=places, reason=_why_there(state, job_id))
        elif job.nodes == nodes:
            continue
        elif job.phase is Phase.ALLOCATED:
            yield log.AllocationReleased(job_id=job_id, reason=_why_elsewhere(nodes))
        elif job.phase in (Phase.STARTING, Phase.RUNNING):
            yield log.JobStopping(
                job_id=job_id, start=job.start, cause=log.StopCause.PREEMPTED, reason=_why_elsewhere(nodes)
            )


def _why_there(state: LiveState, job_id: str) -> str:
    group = state.colocation.group_of(job_id)
    others = len(group.jobs) - 1 if group is not None else 0
    beside = f"beside {others} other job{'s' if others > 1 else ''}" if others else "alone"
    return f"{beside}, to be measured" if job_id in state.colocation.measuring else beside


def _why_elsewhere(nodes: Sequence[str]) -> str:
    return f"{_PLAN_WORDS}: it {'goes to ' + ', '.join(nodes) if nodes else 'waits'}"


def explain(state: LiveState, now_s: float, rules: ColocationRules, job: LiveJob) -> tuple[str, ...]:
    """Why a co-located job waits."""
    group = state.colocation.group_of(job.job_id)
    if group is not None:
        return (f"it is to start on {', '.join(group.nodes)}",)
    return (why_waiting(outlook_of(state, now_s, rules), job.job_id),)


def group_lines(state: LiveState, job: LiveJob) -> Iterator[str]:
    """Lines about the group that a job is in."""
    group = state.colocation.group_of(job.job_id)
    if group is None or job.is_over:
        return
    count = len(group.jobs) - 1
    line = f"group on {', '.join(group.nodes)}: " + (
        f"{count} other job{'s' if count > 1 else ''}" if count else "no other job"
    )
    if job.phase is Phase.STARTING and group.beside:
        lacking = ((name, _no_aggregator(state, state.nodes[name])) for name in job.nodes)
        yield from (f"its workers begin once this is mended: {name}: {why}" for name, why in lacking if why)
    if group.predicted_s is None or group.bound is None:
        yield line + "; not all of them are measured"
    else:
        yield f"{line}; an iteration of all was to take {group.predicted_s:.3g} s, bound by {BOUND_WORDS[group.bound]}"
