"""First-fit placement: the YARN baseline of the authors' simulator. PURE."""

from dataclasses import dataclass, replace

from farside.scheduler.ledger import Ledger
from farside.scheduler.node_set import bits, lowest
from farside.scheduler.placement.on_nodes import OnNodes, demand_of
from farside.scheduler.state import Allocation, Demand, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn(OnNodes):
    """First node with room, rack by rack; a job larger than a rack's largest node takes wholly free nodes there.

    Such a job of n GPUs needs floor(n/g) wholly free nodes of g GPUs and one more with room for the remainder, all
    under one switch: a node's ``rack``. So a job larger than a rack never has room.

    Where a trace says nothing of CPUs, each worker is one GPU and ``worker_cpus``, and a job of several GPUs has a
    parameter server of ``server_cpus`` beside each: 2 CPUs for a job of one GPU, 6 a GPU for others. Jobs of a manager
    say what they need, and both are 0 there.
    """

    name = "yarn"
    worker_cpus: float = 2.0
    server_cpus: float = 4.0

    def demand(self, job: Job) -> Demand:
        """All that a node must have for it."""
        demand = demand_of(job, is_consolidated=True)
        if job.cpus_per_gpu > 0:
            return demand
        return replace(demand, cpus_per_gpu=self.worker_cpus + (self.server_cpus if job.gpus > 1 else 0.0))

    def most_gpus(self, ledger: Ledger, demand: Demand) -> int:
        """GPUs of a job with this demand that the largest rack holds when it is empty."""
        sets, capacities = ledger.sets, ledger.sets.capacities(demand)
        held = (sum(gpus * (nodes & rack).bit_count() for gpus, nodes in capacities) for rack in sets.racks)
        return max(held, default=0)

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """In the first rack that can hold it."""
        if ledger.free_gpus < demand.gpus:
            return None
        for rack in ledger.sets.racks:
            largest = next((gpus for gpus, nodes in ledger.sets.capacities(demand) if nodes & rack), 0)
            if demand.gpus <= largest:
                at = _first_fit(ledger, demand, demand.gpus, rack)
                if at >= 0:
                    return ((at, demand.gpus),)
            elif largest and (found := _whole_nodes(ledger, demand, rack)):
                return found
        return None


def _first_fit(ledger: Ledger, demand: Demand, need: int, within: int) -> int:
    nodes = 0
    for bucket in ledger.buckets[need:]:
        nodes |= bucket
    nodes &= within
    return lowest(nodes & ledger.fitting(demand, need)) if nodes else -1


def _whole_nodes(ledger: Ledger, demand: Demand, rack: int) -> Allocation | None:
    capacity_of = [(gpus, nodes & rack) for gpus, nodes in ledger.sets.capacities(demand)]
    taken: list[tuple[int, int]] = []
    remaining, used = demand.gpus, 0
    for at in bits(ledger.idle() & rack):
        gpus = next((gpus for gpus, nodes in capacity_of if nodes >> at & 1), 0)
        if 0 < gpus <= remaining:
            taken.append((at, gpus))
            used |= 1 << at
            remaining -= gpus
            if not remaining:
                return tuple(taken)
        # Less than the smallest node holds: no further whole node can be taken.
        if remaining < capacity_of[-1][0]:
            break
    last = _first_fit(ledger, demand, remaining, rack & ~used)
    return tuple(sorted((*taken, (last, remaining)))) if last >= 0 else None
