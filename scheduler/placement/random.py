"""Random placement: each GPU on a random node. PURE. [tiresias §3.5.2.3: Tiresias-L without its profiler]

Chance without a generator's hidden state: what is drawn follows from the seed, from what is free on which node, and
from the job's size. So a placement is a function of what it is asked like any other, a simulation with the same seed
does the same, and asking twice gives the same answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from farside.scheduler.ledger import Ledger
from farside.scheduler.node_set import members_of
from farside.scheduler.placement.on_nodes import OnNodes
from farside.scheduler.state import Allocation, Demand

_WORD = (1 << 64) - 1
_PRIME = (1 << 61) - 1  # what long integers are folded with


@dataclass(frozen=True, slots=True, kw_only=True)
class Random(OnNodes):
    """Each GPU of a job on any node that has one left, all equally likely; within one RDMA domain, of one model.

    Attributes:
        seed: Other seeds give other placements.
    """

    name = "random"
    seed: int = 0

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """Free GPUs by lot."""
        if ledger.free_gpus < demand.gpus:
            return None
        rooms = ledger.rooms(demand)
        enough = [
            cell
            for cell in ledger.sets.cells(demand)
            if sum(gpus * (nodes & cell).bit_count() for gpus, nodes in enumerate(rooms)) >= demand.gpus
        ]
        if not enough:
            return None
        draws = _draws(self.seed, demand.gpus, ledger.buckets)
        cell = enough[next(draws) % len(enough)]
        left: dict[int, int] = {}
        for gpus, nodes in enumerate(rooms):
            left.update(dict.fromkeys(members_of(nodes & cell).tolist(), gpus))
        return _by_lot(left, demand.gpus, draws)


def _by_lot(left: dict[int, int], gpus: int, draws: Iterator[int]) -> Allocation:
    nodes = list(left)
    taken: dict[int, int] = {}
    for _ in range(gpus):
        place = next(draws) % len(nodes)
        at = nodes[place]
        taken[at] = taken.get(at, 0) + 1
        if taken[at] == left[at]:
            # The last node takes the place of a full one: the order does not matter, and nothing is moved.
            nodes[place] = nodes[-1]
            nodes.pop()
    return tuple(sorted(taken.items()))


def _draws(seed: int, gpus: int, buckets: list[int]) -> Iterator[int]:
    """Evenly spread 64-bit numbers: SplitMix64 from what is given."""
    state = seed & _WORD
    for value in (gpus, *buckets):
        state = _mixed(state ^ value % _PRIME)
    while True:
        state = (state + 0x9E3779B97F4A7C15) & _WORD
        yield _mixed(state)


def _mixed(state: int) -> int:
    state = (state + 0x9E3779B97F4A7C15) & _WORD
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _WORD
    return state ^ state >> 31
