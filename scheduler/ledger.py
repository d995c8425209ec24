"""Free and used GPUs, CPUs and memory on the nodes of one domain: the plan that placements read. PURE.

How it works
  Nodes with the same number of free GPUs stand in one bucket, a bucket being one integer with a bit for each node. So
  the best fit of a single node is the lowest bit of the first bucket that is not empty, whatever the number of nodes.
  CPUs, memory and swap are kept for the nodes that count them. Swap is other nodes' memory as well, and jobs' memory
  some that donors could lend: both are booked once for all ledgers of a cluster (lent_memory.py). Free memory has what
  a node's donor has lent: it comes back first where a job needs it, unless others were promised it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from farside.scheduler.lent_memory import NO_MEMORY, LentMemory, lent_by, memory_of, promise_of, to_recall
from farside.scheduler.node_set import lowest, node_set_of
from farside.scheduler.nodes import EDGE_BYTES, EDGE_CPUS, NodeSets
from farside.scheduler.state import Allocation, Demand, Node
from farside.scheduler.table import Floats

ALL_BYTES = float(1 << 62)
"""As a whole number, more memory than any node has: where nobody counts it."""
NOTHING_BUT_GPUS = Demand(gpus=0)


class Ledger:
    """Ledger of free GPUs, CPUs, memory and swap by node. Allocations name nodes by index in ``nodes``.

    Nodes may leave and come back (`set_nodes`): one that has left gives nothing more, and what is held there is held on
    until it is given back. ``is_pooled``: all nodes stand as one, and only the sum of their GPUs counts. ``lent``: what
    donors lend, and jobs were promised of it; its owner puts one in its place that ledgers of other nodes have too.
    """

    def __init__(self, nodes: Sequence[Node], *, is_pooled: bool = False) -> None:
        self.is_pooled = is_pooled
        if is_pooled:
            nodes = (Node(name="all", gpus=sum(node.gpus for node in nodes)),)
        self.nodes = tuple(nodes)
        self.sets = NodeSets(self.nodes)
        self.capacity = [node.gpus for node in nodes]
        self.free = [node.gpus for node in nodes]
        self.free_cpus = np.array([node.cpus for node in nodes], dtype=float)
        self.free_memory_bytes = np.array([node.memory_bytes for node in nodes], dtype=float)
        self.free_swap_bytes = np.array([node.swap_bytes for node in nodes], dtype=float)
        self.lent = lent_by(nodes)
        self._lent_then: tuple[LentMemory, int, _Lent] | None = None  # of which memory at which version
        self.total_gpus = self.free_gpus = sum(self.free)
        self.buckets = [0] * (max(self.free, default=0) + 1)
        for gpus, node_set in self.sets.by_size:
            self.buckets[gpus] = node_set

    def fitting(self, demand: Demand, need_gpus: int) -> int:
        """Nodes that suit a demand in model, user, CPUs, memory and swap for ``need_gpus``, free or not."""
        node_set = self.sets.suitable(demand)
        each = demand.swap_bytes_per_gpu
        if each > 0 and self.lent.lacks(promise_of(demand.gpus, each)):
            return 0
        if node_set and self.sets.counts(demand):
            cpus, memory_bytes = demand.cpus_per_gpu * need_gpus, demand.memory_bytes_per_gpu * need_gpus
            is_fitting = self.free_cpus >= cpus - EDGE_CPUS
            is_fitting &= self.free_memory_bytes >= memory_bytes - EDGE_BYTES
            if each > 0:
                is_fitting &= self.free_swap_bytes >= each * need_gpus - EDGE_BYTES
                is_fitting &= self._lent().room >= promise_of(need_gpus, each)
            if memory_bytes and self.lent.lent_bytes and self.lent.is_counted and (each > 0 or self.lent.is_asked):
                is_fitting &= self._keeps_promises(demand, need_gpus)
            node_set &= node_set_of(is_fitting)
        return node_set

    def _lent(self) -> "_Lent":
        found, lent = self._lent_then, self.lent
        if found is None or found[0] is not lent or found[1] != lent.version:
            found = self._lent_then = lent, lent.version, _lent_of(lent, self.nodes)
        return found[2]

    def _keeps_promises(self, demand: Demand, need_gpus: int) -> NDArray[np.bool_]:
        """By node, whether others could have what they were promised if its donor stopped lending that memory."""
        lent, more = self._lent(), promise_of(demand.gpus, demand.swap_bytes_per_gpu)
        left = np.maximum(0.0, lent.left - memory_of(need_gpus, demand.memory_bytes_per_gpu))
        lost = np.maximum(0.0, lent.lends - left)
        is_kept: NDArray[np.bool_] = (lost == 0) | (lost <= np.minimum(lent.spare, self.lent.free_bytes - more))
        return is_kept

    def is_lent(self, demand: Demand, allocation: Allocation) -> bool:
        """Whether donors lend what a job with this allocation would be promised besides, and all others were promised.

        No donor of any domain lends more than the jobs on its node leave of its memory, whether it has lent that by now
        or not.
        """
        each = demand.swap_bytes_per_gpu
        needs = {self.nodes[at].name: promise_of(gpus, each) for at, gpus in allocation} if each else NO_MEMORY
        return self.lent.fits(needs, self._takes(demand, allocation))

    def draws_on_lent(self, demand: Demand, allocation: Allocation) -> bool:
        """Whether a job with this allocation is promised memory of other nodes, or takes some that donors lend."""
        return demand.swap_bytes_per_gpu > 0 or self.lent.is_lent(self._takes(demand, allocation))

    def _takes(self, demand: Demand, allocation: Allocation) -> Mapping[str, int]:
        """Bytes of its nodes' own memory that a job is to have, by the node's name."""
        each = demand.memory_bytes_per_gpu
        if self.is_pooled or not each:
            return NO_MEMORY
        return {self.nodes[at].name: memory_of(gpus, each) for at, gpus in allocation}

    def least_backed(self, demand: Demand, allocation: Allocation) -> int:
        """Node of an allocation on which donors back a job least: the first to be left out."""
        lent, spare = self._lent(), dict[int, float]()
        for at, gpus in allocation:
            left = max(0.0, lent.left[at] - memory_of(gpus, demand.memory_bytes_per_gpu))
            lost = max(0.0, lent.lends[at] - left)
            spare[at] = min(lent.room[at] - promise_of(gpus, demand.swap_bytes_per_gpu), lent.spare[at] - lost)
        return min(spare, key=lambda at: spare[at])

    def recalls(self, demand: Demand, allocation: Allocation) -> dict[int, int]:
        """Bytes that donors would have to take back before a job has its memory there, by node; none are left out."""
        if self.is_pooled or not self.lent.borrowed_bytes or not demand.memory_bytes_per_gpu:
            return {}
        borrowed, found = self._lent().borrowed, dict[int, int]()
        for at, gpus in allocation:
            if borrowed[at]:
                free_bytes = min(self.free_memory_bytes[at], ALL_BYTES)
                need_bytes = memory_of(gpus, demand.memory_bytes_per_gpu)
                found[at] = to_recall(need_bytes, int(free_bytes), int(borrowed[at]))
        return {at: size_bytes for at, size_bytes in found.items() if size_bytes}

    def recall_bytes(self, demand: Demand) -> Floats:
        """Bytes to take back by node, with as many of a job's GPUs there as are free, each node by itself."""
        borrowed = self._lent().borrowed
        gpus = np.minimum(demand.gpus, np.array(self.free, dtype=float))
        lacking = gpus * demand.memory_bytes_per_gpu - (self.free_memory_bytes - borrowed)
        return np.where(borrowed > 0, np.clip(lacking, 0.0, borrowed), 0.0)

    def best_fit(self, demand: Demand, need_gpus: int, within: int = -1) -> int:
        """Node with the fewest free GPUs that fits ``need_gpus``, the first on ties; -1: none."""
        if need_gpus >= len(self.buckets):
            return -1
        within &= self.fitting(demand, need_gpus)
        for bucket in self.buckets[need_gpus:]:
            node_set = bucket & within
            if node_set:
                return lowest(node_set)
        return -1

    def rooms(self, demand: Demand) -> list[int]:
        """Sets of nodes by how many more GPUs of a demand fit there; the first one, that of full nodes, is 0."""
        if self.sets.all_suit(demand):
            return [0, *self.buckets[1:]]
        rooms = [0] * len(self.buckets)
        more = have = 0
        for gpus in range(len(rooms) - 1, 0, -1):
            have |= self.buckets[gpus]
            fitting = have & self.fitting(demand, gpus)
            rooms[gpus] = fitting & ~more
            more |= fitting
        return rooms

    def idle(self) -> int:
        """Nodes on which nothing is allocated, as a set."""
        node_set = 0
        for gpus, nodes in self.sets.by_size:
            node_set |= self.buckets[gpus] & nodes
        return node_set

    def fits(self, demand: Demand, allocation: Allocation) -> bool:
        """Whether exactly these GPUs are free; `is_lent` says the same of what donors lend."""
        if any(self.free[at] < gpus for at, gpus in allocation):
            return False
        return not self.sets.counts(demand) or all(
            self.free_cpus[at] >= gpus * demand.cpus_per_gpu - EDGE_CPUS
            and self.free_memory_bytes[at] >= gpus * demand.memory_bytes_per_gpu - EDGE_BYTES
            and self.free_swap_bytes[at] >= gpus * demand.swap_bytes_per_gpu - EDGE_BYTES
            for at, gpus in allocation
        )

    def take(self, demand: Demand, allocation: Allocation) -> None:
        """Book free GPUs."""
        for at, gpus in allocation:
            self._move(at, -gpus, demand)

    def give(self, demand: Demand, allocation: Allocation) -> None:
        """Free what `take` booked."""
        for at, gpus in allocation:
            self._move(at, gpus, demand)

    def take_back(self, demand: Demand, allocation: Allocation) -> None:
        """Book again what `give` has just freed; a node that left meanwhile owes as much as before."""
        for at, gpus in allocation:
            self._move(at, -gpus, demand, is_owed=True)

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """Set which of the ledger's nodes are present from now on."""
        if self.is_pooled:
            self._set_capacity(0, sum(node.gpus for node in nodes))
            return
        gpus = {node.name: node.gpus for node in nodes}
        for at, node in enumerate(self.nodes):
            self._set_capacity(at, gpus.get(node.name, 0))
        self.sets = NodeSets([replace(node, gpus=self.capacity[at]) for at, node in enumerate(self.nodes)])

    def _set_capacity(self, at: int, gpus: int) -> None:
        free = self.free[at] + gpus - self.capacity[at]  # below 0 while more is held than there is
        self.total_gpus += gpus - self.capacity[at]
        self.capacity[at] = gpus
        self._set_free(at, free)

    def _set_free(self, at: int, free: int) -> None:
        before, after, bit = max(0, self.free[at]), max(0, free), 1 << at
        while len(self.buckets) <= after:
            self.buckets.append(0)
        # A node is in one bucket: XOR takes it out of one and puts it into the other, or leaves it where both are the
        # same. A node that owes GPUs counts as full.
        self.buckets[before] ^= bit
        self.buckets[after] ^= bit
        self.free[at] = free
        self.free_gpus += after - before

    def _move(self, at: int, gpus: int, demand: Demand, *, is_owed: bool = False) -> None:
        after = self.free[at] + gpus
        # Only `take_back` may book below 0, on a node that has left.
        assert gpus > 0 or after >= 0 or is_owed, "over-committed"
        self._set_free(at, after)
        if demand.swap_bytes_per_gpu and not self.is_pooled:
            promised = promise_of(abs(gpus), demand.swap_bytes_per_gpu)
            self.lent.promise(self.nodes[at].name, -promised if gpus > 0 else promised)
        if demand.memory_bytes_per_gpu and not self.is_pooled:
            taken = memory_of(abs(gpus), demand.memory_bytes_per_gpu)
            self.lent.take(self.nodes[at].name, -taken if gpus > 0 else taken)
        if not self.sets.is_counting_more:
            return
        if after == self.capacity[at]:  # nobody is left there: what rounding has taken comes back
            node = self.nodes[at]
            self.free_cpus[at], self.free_memory_bytes[at] = node.cpus, node.memory_bytes
            self.free_swap_bytes[at] = node.swap_bytes
        else:
            self.free_cpus[at] += gpus * demand.cpus_per_gpu
            self.free_memory_bytes[at] += gpus * demand.memory_bytes_per_gpu
            self.free_swap_bytes[at] += gpus * demand.swap_bytes_per_gpu


@dataclass(frozen=True, slots=True)
class _Lent:
    """Bytes by node: what jobs there may be promised besides, what its donor lends beside jobs, what others have of
    that, how much less it may lend with all others having what they were promised, and what jobs leave of its memory.
    """

    room: Floats
    lends: Floats
    borrowed: Floats
    spare: Floats
    left: Floats


def _lent_of(lent: LentMemory, nodes: Sequence[Node]) -> _Lent:
    names = [node.name for node in nodes]
    room = np.array([lent.free_on(name) for name in names], dtype=float)
    return _Lent(
        room=room if lent.is_counted else np.full_like(room, math.inf),
        lends=np.array([lent.lends(name) for name in names], dtype=float),
        borrowed=np.array([lent.borrowed_from(name) for name in names], dtype=float),
        spare=np.array(lent.may_lose(names), dtype=float),
        left=np.array([lent.left(name) for name in names], dtype=float),
    )
