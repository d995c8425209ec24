"""Small clusters of unlike nodes with jobs on them, and slow answers about them that share no code with the ledger."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from farside.scheduler.ledger import Ledger
from farside.scheduler.lent_memory import LentMemory
from farside.scheduler.state import Allocation, Demand, Node

MODELS = ("v100", "a100")


@dataclass(frozen=True)
class Occupied:
    """Nodes, and what is held on them: (demand, allocation) each."""

    nodes: tuple[Node, ...]
    held: tuple[tuple[Demand, Allocation], ...]

    def ledger(self, *, without: int = 0) -> Ledger:
        """All booked but the first ``without``."""
        return self.book(Ledger(self.nodes), without=without)

    def book(self, ledger: Ledger, *, without: int = 0) -> Ledger:
        """What donors lend is not counted here."""
        ledger.lent = LentMemory(is_counted=False)
        for demand, allocation in self.held[without:]:
            ledger.take(demand, allocation)
        return ledger


@st.composite
def occupied(draw: st.DrawFn, *, alike: bool = False) -> Occupied:
    """Up to six nodes, alike or not in all that a node has, and a few jobs of up to a node each."""
    nodes = []
    size = draw(st.sampled_from([2, 3, 4]))
    for at in range(draw(st.integers(1, 6))):
        gpus = size if alike else draw(st.sampled_from([1, 2, 3, 4]))
        nodes.append(
            Node(
                name=f"n{at}",
                gpus=gpus,
                cpus=math.inf if alike else draw(st.sampled_from([math.inf, 8.0, 3.0 * gpus])),
                memory_bytes=math.inf if alike else draw(st.sampled_from([math.inf, 100.0 * gpus])),
                swap_bytes=0.0 if alike else draw(st.sampled_from([0.0, 0.0, 50.0 * gpus])),
                gpu_model="" if alike else draw(st.sampled_from(MODELS)),
                rack=draw(st.sampled_from(["r0", "r1"])),
                rdma_domain=draw(st.sampled_from(["d0", "d0", "d1"])),
            )
        )
    ledger, held = Ledger(nodes), []
    for at in draw(st.lists(st.integers(0, len(nodes) - 1), max_size=8)):
        gpus = draw(st.integers(1, nodes[at].gpus))
        swap = draw(st.sampled_from([0.0, 0.0, 20.0]))
        demand = Demand(gpus=gpus, cpus_per_gpu=draw(st.sampled_from([0.0, 0.1, 3.0])), swap_bytes_per_gpu=swap)
        if ledger.fits(demand, ((at, gpus),)):
            ledger.take(demand, ((at, gpus),))
            held.append((demand, ((at, gpus),)))
    return Occupied(tuple(nodes), tuple(held))


@st.composite
def demands(draw: st.DrawFn, *, is_plain: bool = False) -> Demand:
    """What one more job may ask."""
    gpus = draw(st.integers(1, 14))
    if is_plain:
        return Demand(gpus=gpus)
    return Demand(
        gpus=gpus,
        cpus_per_gpu=draw(st.sampled_from([0.0, 1.0, 4.0])),
        memory_bytes_per_gpu=draw(st.sampled_from([0.0, 60.0])),
        swap_bytes_per_gpu=draw(st.sampled_from([0.0, 0.0, 30.0])),
        gpu_model=draw(st.sampled_from(["", "", *MODELS])),
        is_consolidated=draw(st.booleans()),
    )


def room(node: Node, demand: Demand, gpus: int, cpus: float, memory_bytes: float, swap_bytes: float) -> int:
    """The most GPUs of a demand that fit beside what is held, tried one by one."""
    if demand.gpu_model not in ("", node.gpu_model):
        return 0
    fitting = [
        count
        for count in range(gpus + 1)
        if count * demand.cpus_per_gpu <= cpus + 1e-6
        and count * demand.memory_bytes_per_gpu <= memory_bytes + 1e-3
        and count * demand.swap_bytes_per_gpu <= swap_bytes + 1e-3
    ]
    return max(fitting, default=0)


def rooms_when_empty(nodes: Sequence[Node], demand: Demand) -> list[int]:
    return [room(node, demand, node.gpus, node.cpus, node.memory_bytes, node.swap_bytes) for node in nodes]


def rooms_now(case: Occupied, demand: Demand) -> list[int]:
    found = []
    for at, node in enumerate(case.nodes):
        held = [(other, gpus) for other, allocation in case.held for place, gpus in allocation if place == at]
        cpus = sum(other.cpus_per_gpu * gpus for other, gpus in held)
        memory = sum(other.memory_bytes_per_gpu * gpus for other, gpus in held)
        swap = sum(other.swap_bytes_per_gpu * gpus for other, gpus in held)
        free = node.gpus - sum(gpus for _, gpus in held)
        found.append(room(node, demand, free, node.cpus - cpus, node.memory_bytes - memory, node.swap_bytes - swap))
    return found


def is_idle(case: Occupied, at: int) -> bool:
    return all(place != at for _, allocation in case.held for place, _ in allocation)


def cells(nodes: Sequence[Node], demand: Demand) -> list[list[int]]:
    """Places of the nodes that a gang may be spread over: of one RDMA domain, and of one model if that can hold it."""
    rooms = rooms_when_empty(nodes, demand)
    domains = {(node.rdma_domain,) for node in nodes}
    models = {(node.rdma_domain, node.gpu_model) for node in nodes}
    for kinds in (models, domains):
        found = [
            [at for at, node in enumerate(nodes) if (node.rdma_domain, node.gpu_model)[: len(kind)] == kind]
            for kind in sorted(kinds)
        ]
        if any(sum(rooms[at] for at in cell) >= demand.gpus for cell in found):
            break
    return found


def fewest_when_empty(nodes: Sequence[Node], demand: Demand) -> int:
    """The smallest set of nodes of one cell that holds a demand; 0: there is none."""
    rooms = rooms_when_empty(nodes, demand)
    for count in range(1, len(nodes) + 1):
        for cell in cells(nodes, demand):
            for chosen in itertools.combinations(cell, count):
                if sum(rooms[at] for at in chosen) >= demand.gpus:
                    return count
    return 0


def fewest_now(case: Occupied, demand: Demand) -> int:
    """The smallest set of nodes of one cell that holds it now, all but one empty before and full then; or 0."""
    now, empty = rooms_now(case, demand), rooms_when_empty(case.nodes, demand)
    for count in range(1, len(case.nodes) + 1):
        for cell in cells(case.nodes, demand):
            for chosen in itertools.permutations(cell, count):
                *whole, last = chosen
                remaining = demand.gpus - sum(empty[at] for at in whole)
                if all(is_idle(case, at) and empty[at] for at in whole) and 0 < remaining <= now[last]:
                    return count
    return 0
