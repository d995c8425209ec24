"""Nodes needed by waiting jobs: idle ones that must stay on, and sleeping ones that are woken. PURE.

The simulator counts in whole nodes of one size [helios §4.3.2, JobArrivalCheck]; here nodes differ, so they are named,
and a job wakes none that it could not use: of another partition or model, of other users, reserved, too small.
Nor does a job that its account or QOS holds back. What a node could hold, and what caps leave, the cycle's own tables
say: `NodeSets` and `QuotaUse`.

A job that waits for memory of other nodes needs donors: those on idle nodes stay on as far as it takes, and those on
sleeping nodes are woken as far as others lack it. A job that waits for Aggregators needs nodes that offer one, as many
as it asked for, whatever GPUs these have.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
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
# So many are looked at; who stands behind them waits for others than nodes anyway.
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
    waiting = list(islice(_waiting(state), LOOKED_AT))
    if not waiting:
        return ()
    rooms = _Rooms(state, set_aside, partitions)
    for job in waiting:
        if job.spec.aggregation and awaited_aggregators(state, job, set_aside):
            rooms.call_aggregators(job, is_settled=_is_settled(job, now_s))
    quota_use = QuotaUse()
    for job in state.live_jobs():
        if is_holding(job):
            quota_use.take(_priority_class(tenancy, job), job.spec.gpus)
    for job in waiting:
        if not rooms.has_any():
            break
        priority_class = _priority_class(tenancy, job)
        if quota_use.why_not(priority_class, job.spec.gpus):
            continue
        quota_use.take(priority_class, job.spec.gpus)  # it is thought to get its GPUs, whoever gives them
        fits = rooms.fits(job, now_s)
        # All nodes that it could use together are too few: waking some of them would help nobody.
        if rooms.most(fits) < job.spec.gpus:
            continue
        if not rooms.call_lenders(job, fits, is_settled=_is_settled(job, now_s)):
            continue
        left = rooms.fill(fits, job.spec.gpus, rooms.free)
        if _is_settled(job, now_s):
            rooms.fill(fits, left, rooms.asleep)
    rooms.keep_lenders()
    return tuple(rooms.called)


def _waiting(state: LiveState) -> Iterator[LiveJob]:
    """Without co-located jobs, whose nodes never sleep."""
    live = (job for job in state.live_jobs() if not job.spec.colocate)
    return (job for job in live if job.phase is JobPhase.WAITING and is_ready(state, job))


def _is_settled(job: LiveJob, now_s: float) -> bool:
    return now_s - max(job.since_s, job.submit_s) >= SETTLED_S


def _priority_class(tenancy: Tenancy | None, job: LiveJob) -> PriorityClass:
    return PriorityClass() if tenancy is None else tenancy.priority_class(job_of(job))


class _Rooms:
    """The nodes by their place in the state, and the GPUs there that jobs which wait may still be thought to fill.

    Attributes:
        free: Nodes that are on and have no job.
        asleep: Others, those first that are up soonest.
        called: The names of those that were filled, in the order in which they were.
    """

    def __init__(self, state: LiveState, set_aside: frozenset[str], partitions: Partitions) -> None:
        self._state, self._set_aside, self._partitions = state, set_aside, partitions
        self._nodes = tuple(state.nodes.values())
        self._sets = NodeSets([_empty(node) for node in self._nodes])
        self._asks_users = any(node.users for node in self._nodes)
        # Nodes that are set aside for co-located jobs give none to those that wait for GPUs.
        self._gpus = [0 if node.name in set_aside else node.device_count for node in self._nodes]
        self.called: dict[str, None] = {}
        busy = {name for job in state.live_jobs() for name in job.nodes if is_holding(job)}
        self.free = [
            at for at, node in enumerate(self._nodes) if node.is_taking and not node.tasks and node.name not in busy
        ]
        order: Mapping[Phase, int] = {Phase.BOOTING: 0, Phase.DRAINING: 1, Phase.OFF: 2}
        found = [
            (order[node.power.phase], node.name, at)
            for at, node in enumerate(self._nodes)
            if node.power is not None and node.power.phase in order
        ]
        self.asleep = [at for _, _, at in sorted(found)]

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
            self.called.update(dict.fromkeys(taken) if may_call else {})

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
                self.called[self._nodes[at].name] = None
        memory.promise("", needs)
        return True

    def keep_lenders(self) -> None:
        """Takes the idle nodes that are on whose donors are to lend what those who wait need."""
        idle = {self._nodes[at].name for at in self.free}
        kept = lenders_needed(self._memory, lending_of(self._state))
        self.called.update(dict.fromkeys(sorted(kept & idle)))

    def has_any(self) -> bool:
        """Whether any GPU is left."""
        return any(self._gpus[at] for at in (*self.free, *self.asleep))

    def fits(self, job: LiveJob, now_s: float) -> Mapping[int, int]:
        """GPUs of a job by node, were the node empty; without nodes where it may not start now."""
        end_s = now_s + (job.spec.time_limit_s or math.inf)
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

    def most(self, fits: Mapping[int, int]) -> int:
        """GPUs that it could have with every node on and nobody else there."""
        return sum(gpus for at, gpus in fits.items() if self._nodes[at].is_up or _is_off(self._nodes[at]))

    def fill(self, fits: Mapping[int, int], gpus: int, within: Sequence[int]) -> int:
        """Takes GPUs for a job where it fits; how many it still lacks."""
        for at in within:
            taken = min(gpus, self._gpus[at], fits.get(at, 0))
            if taken > 0:
                self._gpus[at] -= taken
                gpus -= taken
                self.called[self._nodes[at].name] = None
            if not gpus:
                break
        return gpus


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
