"""Consolidating placement: a job gets GPUs on as few nodes as possible. PURE."""

from dataclasses import dataclass
from itertools import accumulate
from operator import or_

from farside.scheduler.ledger import Ledger
from farside.scheduler.node_set import lowest
from farside.scheduler.placement.on_nodes import OnNodes, demand_of
from farside.scheduler.state import Allocation, Demand, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidate(OnNodes):
    """Consolidating placement: on the fewest nodes that can hold the job, or nowhere.

    A job that fits on one node goes to the node with the fewest free GPUs that has room (best fit, the first on ties).
    A larger one takes nodes that are wholly free, the largest first, and one more for what remains: that with the
    fewest free GPUs that fits. It stays within one RDMA domain, as in [helios §2.1], and on GPUs of one model. Of as
    many nodes those of one rack go first, and then those of few racks.

    Nodes may differ. How much one holds is what its GPUs, CPUs and memory hold of the job, and only nodes with the GPU
    model that the job asks for count.

    Attributes:
        remainder_on_fullest: What remains of a job larger than a node goes to the node with the most free GPUs instead,
            as in Helios's simulator.
        most_nodes_factor: How many times the fewest nodes that could ever hold it a job may take, when those are not
            free. It says something only where nodes differ: a job of 16 GPUs need not wait for the one node with 16
            when two with 8 are free. 1: it waits.
    """

    name = "consolidate"
    remainder_on_fullest: bool = False
    most_nodes_factor: float = 2.0

    def __post_init__(self) -> None:
        """Refuses a factor that no job could meet."""
        if self.most_nodes_factor < 1:
            raise ValueError(f"most_nodes_factor: must be at least 1, is {self.most_nodes_factor}")

    def demand(self, job: Job) -> Demand:
        """All that a node must have for it."""
        return demand_of(job, is_consolidated=True)

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """The fewest nodes."""
        if ledger.free_gpus < demand.gpus:
            return None
        at = ledger.best_fit(demand, demand.gpus)
        if at >= 0:
            return ((at, demand.gpus),)
        idle = ledger.idle()
        if not idle:
            return None
        # `fewest` is of empty nodes: what the job could have once others have ended.
        most = int(self.most_nodes_factor * ledger.sets.fewest(demand))
        found = (self._whole_nodes(ledger, demand, idle, cell, most) for cell in ledger.sets.cells(demand))
        # The first on ties, in the order of the cells, so that equal states give equal placements.
        fewest = min((allocation for allocation in found if allocation), key=len, default=None)
        if fewest is None or not ledger.sets.named_racks:
            return fewest
        return self._in_few_racks(ledger, demand, idle, len(fewest)) or fewest

    def _in_few_racks(self, ledger: Ledger, demand: Demand, idle: int, nodes: int) -> Allocation | None:
        """That many nodes of one rack, or of few; None: their racks are not known."""
        for is_one in (True, False):
            for cell in ledger.sets.cells(demand):
                racks = [rack & cell for rack in ledger.sets.named_racks if rack & cell]
                # One rack: that with the fewest idle nodes that is enough, so that larger ones stay whole for others.
                racks.sort(key=lambda rack: (rack & idle).bit_count(), reverse=not is_one)
                sets = racks if is_one else accumulate(racks, or_)
                found = (self._whole_nodes(ledger, demand, idle, within, nodes) for within in sets)
                allocation = next((one for one in found if one), None)
                if allocation is not None:
                    return allocation
        return None

    def _whole_nodes(self, ledger: Ledger, demand: Demand, idle: int, within: int, most: int) -> Allocation | None:
        """Ends on one node as soon as what remains fits there, so that no other choice of whole nodes takes fewer."""
        taken: list[tuple[int, int]] = []
        remaining = demand.gpus
        for capacity, nodes in ledger.sets.capacities(demand):
            nodes &= idle & within
            # One node of those that it may take is left for the remainder.
            while nodes and len(taken) + 1 < most:
                at = lowest(nodes)
                nodes ^= 1 << at
                # So that the remainder does not go to a node that is taken.
                within ^= 1 << at
                taken.append((at, capacity))
                remaining -= capacity
                last = self._remainder(ledger, demand, remaining, within)
                if last >= 0:
                    return tuple(sorted((*taken, (last, remaining))))
        return None

    def _remainder(self, ledger: Ledger, demand: Demand, need: int, within: int) -> int:
        if not self.remainder_on_fullest:
            return ledger.best_fit(demand, need, within)
        for free in range(len(ledger.buckets) - 1, need - 1, -1):
            nodes = ledger.buckets[free] & within
            if nodes and (nodes := nodes & ledger.fitting(demand, need)):
                return lowest(nodes)
        return -1
