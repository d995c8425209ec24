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
    """Free GPUs, CPUs and memory by node.

    ``nodes`` may be grown with `set_nodes`; a node's place in it is what allocations name.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
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

    def _move(self, at: int, gpus: int, demand: Demand) -> None:
        before, bit = self.free[at], 1 << at
        after = before + gpus
        assert 0 <= after <= self.nodes[at].gpus, "over-committed"
        self.buckets[before] ^= bit
        self.buckets[after] ^= bit
        self.free[at] = after
        self.free_gpus += gpus
        if self.is_counting_more:
            self.free_cpus[at] += gpus * demand.cpus_per_gpu
            self.free_memory_bytes[at] += gpus * demand.memory_bytes_per_gpu
