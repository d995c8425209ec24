"""Nodes needed by waiting jobs: idle ones that must stay on, and sleeping ones that are woken. PURE.

The check is the simulator's and Slurm's too, `Headroom`. What the log adds is here: a job wakes no node that it could
not use, as it is of another partition or model, of other users, reserved or too small; nor does a job that its account
or QOS holds back. What a node could hold, and what caps leave, the cycle's own tables say: `NodeSets` and `QuotaUse`.

A job that waits for memory of other nodes needs donors: those on idle nodes stay on as far as it takes, and those on
sleeping nodes are woken as far as others lack it. A job that waits for Aggregators needs nodes that offer one, as many
as it asked for, whatever GPUs these have.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.energy.job_arrival import Headroom
from farside.scheduler.lent_memory import promise_of
from farside.scheduler.manager.decider.adapter import (
    awaited_aggregators,
    is_holding,
    is_ready,
    job_of,
    node_of,
    partition_of,
)
from farside.scheduler.manager.model.lending import lenders_needed, lending_of, promised_memory
from farside.scheduler.manager.model.record import LiveJob, LiveNode
from farside.scheduler.manager.model.record import Phase as JobPhase
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.node_set import bits
from farside.scheduler.nodes import NodeSets
from farside.scheduler.placement.on_nodes import demand_of
from farside.scheduler.power.state import Phase
from farside.scheduler.quota_use import QuotaUse
from farside.scheduler.state import Node
from farside.scheduler.tenancy import PriorityClass, Tenancy

# The scheduler process has looked at a job that has waited for so long: what is free is not for it.
SETTLED_S = 5.0
# Jobs of each kind that nodes are looked for: those which accounts and QOS let start, and those that lack Aggregators.
# Jobs behind them wait for these jobs rather than for nodes.
LOOKED_AT = 1000
_REACHABLE = (Phase.OFF, Phase.BOOTING)


def nodes_needed(
    state: LiveState,
    tenancy: Tenancy | None,
    now_s: float,
    *,
    set_aside: frozenset[str] = frozenset(),
    partitions: Partitions = NO_PARTITIONS,
) -> tuple[str, ...]:
    """The nodes that waiting jobs would fill: first idle ones that are on, then those on their way up, then others.

    A job that has just come may get an idle node at any moment; it wakes none before the scheduler process has looked
    at it.
    """
    if next(_waiting(state), None) is None:
        return ()
    rooms = _Rooms(state, set_aside, partitions)
    for job in islice((one for one in _waiting(state) if one.spec.aggregation), LOOKED_AT):
        if awaited_aggregators(state, job, set_aside):
            rooms.call_aggregators(job, is_settled=_is_settled(job, now_s))
    quota_use = QuotaUse()
    for job in state.live_jobs():
        if is_holding(job):
            quota_use.take(_priority_class(tenancy, job), job.spec.gpus)
    for job in islice(_allowed(_waiting(state), tenancy, quota_use), LOOKED_AT):
        if rooms.headroom.is_spent:
            break
        fits = rooms.fits(job, now_s)
        if not rooms.headroom.could_hold(job.spec.gpus, fits):
            continue
        if not rooms.call_lenders(job, fits, is_settled=_is_settled(job, now_s)):
            continue
        rooms.headroom.fill(job.spec.gpus, fits, may_wake=_is_settled(job, now_s))
    rooms.keep_lenders()
    return rooms.called


def _waiting(state: LiveState) -> Iterator[LiveJob]:
    """Without co-located jobs, whose nodes never sleep."""
    live = (job for job in state.live_jobs() if not job.spec.colocate)
    return (job for job in live if job.phase is JobPhase.WAITING and is_ready(state, job))


def _allowed(waiting: Iterable[LiveJob], tenancy: Tenancy | None, quota_use: QuotaUse) -> Iterator[LiveJob]:
    """Jobs that accounts and QOS let start beside those before them, each of which is thought to get its GPUs."""
    refused: dict[tuple[str, str, str], int] = {}  # the fewest GPUs, by all that caps depend on: use only grows here
    for job in waiting:
        key = job.user, job.spec.account, job.spec.qos
        if job.spec.gpus >= refused.get(key, math.inf):
            continue
        priority_class = _priority_class(tenancy, job)
        if quota_use.why_not(priority_class, job.spec.gpus):
            refused[key] = job.spec.gpus
            continue
        quota_use.take(priority_class, job.spec.gpus)
        yield job


def _is_settled(job: LiveJob, now_s: float) -> bool:
    return now_s - max(job.since_s, job.submit_s) >= SETTLED_S


def _priority_class(tenancy: Tenancy | None, job: LiveJob) -> PriorityClass:
    return PriorityClass() if tenancy is None else tenancy.priority_class(job_of(job))


class _Rooms:
    """The nodes by their place in the state, and what jobs which wait may still be thought to get there."""

    def __init__(self, state: LiveState, set_aside: frozenset[str], partitions: Partitions) -> None:
        self._state, self._set_aside, self._partitions = state, set_aside, partitions
        self._nodes = tuple(state.nodes.values())
        self._sets = NodeSets([_empty(node) for node in self._nodes])
        self._asks_users = any(node.users for node in self._nodes)
        busy = {name for job in state.live_jobs() for name in job.nodes if is_holding(job)}
        order: Mapping[Phase, int] = {Phase.BOOTING: 0, Phase.DRAINING: 1, Phase.OFF: 2}
        found = [
            (order[node.power.phase], node.name, at)
            for at, node in enumerate(self._nodes)
            if node.power is not None and node.power.phase in order
        ]
        self._idle = [
            at for at, node in enumerate(self._nodes) if node.is_taking and not node.tasks and node.name not in busy
        ]
        self.headroom = Headroom(
            # Nodes that are set aside for co-located jobs give none to those that wait for GPUs.
            [0 if node.name in set_aside else node.device_count for node in self._nodes],
            idle=self._idle,
            asleep=[at for _, _, at in sorted(found)],
            reachable={at for at, node in enumerate(self._nodes) if node.is_up or _is_off(node)},
        )
        self._at = {node.name: at for at, node in enumerate(self._nodes)}

        self._memory = promised_memory(state)
        self._lenders = [at for _, _, at in sorted(found) if (one := self._nodes[at].donor) and one.capacity_bytes]
        in_use = {state.aggregation.node_of(number) for number in state.aggregation.in_use()}
        offering = (state.aggregation.offers.keys() | state.aggregation.numbers.keys()) - in_use - set_aside
        self._aggregators = [node.name for node in self._nodes if node.name in offering and node.is_taking]
        self._asleep_aggregators = [name for _, name, _ in sorted(found) if name in offering]

    def call_aggregators(self, job: LiveJob, *, is_settled: bool) -> None:
        """Takes nodes that offer an Aggregator, those first that are on; none if all of them are too few."""
        lacking = job.spec.aggregators
        if lacking > len(self._aggregators) + len(self._asleep_aggregators):
            return
        for names, may_call in ((self._aggregators, True), (self._asleep_aggregators, is_settled)):
            taken, names[:lacking] = names[:lacking], []
            lacking -= len(taken)
            if may_call:
                self._call(taken)

    def call_lenders(self, job: LiveJob, fits: Mapping[int, int], *, is_settled: bool) -> bool:
        """Whether all donors lend what a job is to have of other nodes' memory, those of sleeping nodes too.

        It is thought to get that then, with as many copies of each page as any node keeps where it ``fits``; and of the
        sleeping ones as many are called as it takes.
        """
        copies = max((self._nodes[at].swap_copies for at in fits), default=1)
        needs, memory = copies * promise_of(job.spec.gpus, job.spec.swap_bytes_per_gpu), self._memory
        if not needs:
            return True
        asleep = {at: donor.capacity_bytes for at in self._lenders if (donor := self._nodes[at].donor) is not None}
        if needs - memory.free_bytes > sum(asleep.values()):
            return False
        while needs > memory.free_bytes:
            at = self._lenders.pop(0)
            memory.set_node(self._nodes[at].name, lends_bytes=asleep[at])
            if is_settled:
                self._call([self._nodes[at].name])
        memory.promise("", needs)
        return True

    def keep_lenders(self) -> None:
        """Takes the idle nodes that are on whose donors are to lend what those who wait need."""
        idle = {self._nodes[at].name for at in self._idle}
        kept = lenders_needed(self._memory, lending_of(self._state))
        self._call(sorted(kept & idle))

    def _call(self, names: Iterable[str]) -> None:
        """Notes nodes that are needed for what they have besides GPUs."""
        self.headroom.called.update(dict.fromkeys(self._at[name] for name in names))

    @property
    def called(self) -> tuple[str, ...]:
        """The nodes that are needed, in the order in which that was found."""
        return tuple(self._nodes[at].name for at in self.headroom.called)

    def fits(self, job: LiveJob, now_s: float) -> Mapping[int, int]:
        """GPUs of a job by node, were the node empty; without nodes where it may not start now."""
        end_s = now_s + job.limit_s
        pending = [one for one in self._state.maintenance.values() if one.is_pending(now_s) and end_s > one.begin_s]
        reserved = {name for one in pending for name in one.nodes}
        demand = demand_of(job_of(job, asks_users=self._asks_users), is_consolidated=False)
        places = ((at, gpus) for gpus, nodes in self._sets.capacities(demand) for at in bits(nodes))
        return {at: gpus for at, gpus in places if self._is_open(at, job) and self._nodes[at].name not in reserved}

    def _is_open(self, at: int, job: LiveJob) -> bool:
        node, partitions = self._nodes[at], self._partitions
        if partitions.owner_of(node.name) != partition_of(job, partitions):
            return False
        return not (node.drain_reason or node.unhealthy or node.name in self._set_aside)


def _is_off(node: LiveNode) -> bool:
    return node.power is not None and node.power.phase in _REACHABLE


def _empty(node: LiveNode) -> Node:
    """The node as the cycle would know it with nobody there; what ran on it before it slept is gone."""
    own_bytes = node.swap_own_bytes if node.is_up else 0
    return replace(
        node_of(node),
        memory_bytes=float(node.memory_bytes) or math.inf,
        swap_bytes=float(max(0, node.swap_bytes - own_bytes)),
    )
