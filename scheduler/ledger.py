"""Who holds what on the nodes of one domain: the working plan that placements look at. PURE.

How it works
  Nodes with the same number of free GPUs stand in one bucket, a bucket being one integer with a bit for each node. So
  the best fit of a single node is the lowest bit of the first bucket that is not empty, whatever the number of nodes.
  CPUs and memory are kept for the nodes that count them.
"""

import math
from collections.abc import Iterator, Sequence

from farside.scheduler.state import Allocation, Demand, Node


def lowest(mask: int) -> int:
    """Number of the lowest bit that is set."""
    return (mask & -mask).bit_length() - 1


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Ledger:
    """Free GPUs, CPUs and memory by node. A node's place in ``nodes`` is what allocations name.

    Nodes may leave and come back (`set_nodes`): one that has left gives nothing more, and what is held there is held on
    until it is given back. ``is_pooled``: all nodes stand as one, and only the sum of their GPUs counts.
    """

    def __init__(self, nodes: Sequence[Node], *, is_pooled: bool = False) -> None:
        self.is_pooled = is_pooled
        if is_pooled:
            nodes = (Node(name="all", gpus=sum(node.gpus for node in nodes)),)
        self.nodes = tuple(nodes)
        self.capacity = [node.gpus for node in nodes]
        self.free = [node.gpus for node in nodes]
        self.free_cpus = [node.cpus for node in nodes]
        self.free_memory_bytes = [node.memory_bytes for node in nodes]
        self.node_gpus = max(self.free, default=0)
        self.total_gpus = self.free_gpus = sum(self.free)
        self.is_counting_more = any(node.cpus < math.inf or node.memory_bytes < math.inf for node in nodes)
        self.models: dict[str, int] = {}
        self.buckets = [0] * (self.node_gpus + 1)
        for at, node in enumerate(nodes):
            self.buckets[node.gpus] |= 1 << at
            self.models[node.gpu_model] = self.models.get(node.gpu_model, 0) | 1 << at

    def candidates(self, demand: Demand, free_gpus: int, need_gpus: int) -> int:
        """The nodes with exactly ``free_gpus`` free where ``need_gpus`` of this demand would fit, as a mask."""
        mask = self.buckets[free_gpus]
        if mask and demand.gpu_model:
            mask &= self.models.get(demand.gpu_model, 0)
        if mask and self.is_counting_more and (demand.cpus_per_gpu or demand.memory_bytes_per_gpu):
            cpus, memory = demand.cpus_per_gpu * need_gpus, demand.memory_bytes_per_gpu * need_gpus
            for at in bits(mask):
                if self.free_cpus[at] < cpus or self.free_memory_bytes[at] < memory:
                    mask ^= 1 << at
        return mask

    def best_fit(self, demand: Demand, need_gpus: int, without: int = 0) -> int:
        """The node with the fewest free GPUs that fits ``need_gpus``, the first on ties; -1: none does."""
        for free_gpus in range(need_gpus, self.node_gpus + 1):
            mask = self.candidates(demand, free_gpus, need_gpus) & ~without
            if mask:
                return lowest(mask)
        return -1

    def fits(self, demand: Demand, allocation: Allocation) -> bool:
        """Whether just these GPUs are free."""
        return all(
            self.free[at] >= gpus
            and self.free_cpus[at] >= gpus * demand.cpus_per_gpu
            and self.free_memory_bytes[at] >= gpus * demand.memory_bytes_per_gpu
            for at, gpus in allocation
        )

    def take(self, demand: Demand, allocation: Allocation) -> None:
        """Books GPUs that are free."""
        for at, gpus in allocation:
            self._move(at, -gpus, demand)

    def give(self, demand: Demand, allocation: Allocation) -> None:
        """Frees what `take` booked."""
        for at, gpus in allocation:
            self._move(at, gpus, demand)

    def set_nodes(self, nodes: Sequence[Node]) -> None:
        """These nodes, of those that the ledger was made with, are there from now on; the others are not."""
        if self.is_pooled:
            self._set_capacity(0, sum(node.gpus for node in nodes))
            return
        gpus = {node.name: node.gpus for node in nodes}
        for at, node in enumerate(self.nodes):
            self._set_capacity(at, gpus.get(node.name, 0))

    def _set_capacity(self, at: int, gpus: int) -> None:
        free = self.free[at] + gpus - self.capacity[at]  # below 0 while more is held than there is
        self.total_gpus += gpus - self.capacity[at]
        self.capacity[at] = gpus
        self._set_free(at, free)

    def _set_free(self, at: int, free: int) -> None:
        before, after, bit = max(0, self.free[at]), max(0, free), 1 << at
        while len(self.buckets) <= after:
            self.buckets.append(0)
        self.buckets[before] ^= bit
        self.buckets[after] ^= bit
        self.free[at] = free
        self.free_gpus += after - before

    def _move(self, at: int, gpus: int, demand: Demand) -> None:
        after = self.free[at] + gpus
        assert gpus > 0 or after >= 0, "over-committed"
        self._set_free(at, after)
        if self.is_counting_more:
            self.free_cpus[at] += gpus * demand.cpus_per_gpu
            self.free_memory_bytes[at] += gpus * demand.memory_bytes_per_gpu
