"""Placement that fills nodes in use first and keeps free nodes whole. PURE. [tiresias §3.3.3.3]"""

from collections.abc import Sequence
from dataclasses import dataclass

from farside.scheduler.ledger import Ledger
from farside.scheduler.node_set import bits, lowest
from farside.scheduler.nodes import Capacities
from farside.scheduler.placement.on_nodes import OnNodes
from farside.scheduler.state import Allocation, Demand

Places = list[tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragments(OnNodes):
    """Placement against fragmentation; a job has room if enough GPUs are free, on any nodes.

    As few wholly free nodes as possible are broken into. Those are filled first, so that the job is not spread for
    nothing, and the rest comes from nodes in use: from one that then has none left, if there is such a node, else from
    those with the fewest free GPUs. It stays within one RDMA domain and on GPUs of one model: those with the least room
    that is enough.
    """

    name = "fragments"

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """Any GPUs, those first that are of least use to others."""
        if ledger.free_gpus < demand.gpus:
            return None
        rooms, idle = ledger.rooms(demand), ledger.idle()
        # Before nodes are chosen, as the job may use one cell only.
        cell = tightest(rooms, demand.gpus, ledger.sets.cells(demand))
        in_use = [nodes & cell & ~idle for nodes in rooms]
        # Wholly free nodes are broken into only for what nodes in use cannot give.
        missing = demand.gpus - _room(in_use)
        opened = _open(ledger.sets.capacities(demand), idle & cell, missing) if missing > 0 else []
        if not cell or opened is None:
            return None
        taken: Places = []
        remaining = demand.gpus
        for at, gpus in opened:
            taken.append((at, min(gpus, remaining)))
            remaining -= taken[-1][1]
        return tuple(sorted((*taken, *_fill(in_use, remaining))))


def tightest(rooms: Sequence[int], gpus: int, cells: Sequence[int]) -> int:
    """The cell (`NodeSets.cells`) with the least room of those with enough; 0: none has."""
    room = ((_room([nodes & cell for nodes in rooms]), cell) for cell in cells)
    return min(((free, cell) for free, cell in room if free >= gpus), default=(0, 0))[1]


def _room(rooms: Sequence[int]) -> int:
    return sum(gpus * nodes.bit_count() for gpus, nodes in enumerate(rooms))


def _open(capacities: Capacities, idle: int, missing: int) -> Places | None:
    """As few wholly free nodes as hold what is missing; of those, the last no larger than it must be."""
    opened: Places = []
    while missing > 0:
        found = [(capacity, nodes & idle) for capacity, nodes in capacities if nodes & idle]
        if not found:
            return None
        enough = [entry for entry in found if entry[0] >= missing]
        capacity, nodes = enough[-1] if enough else found[0]  # the smallest that is enough, else the largest
        at = lowest(nodes)
        idle ^= 1 << at
        missing -= capacity
        opened.append((at, capacity))
    return opened


def _fill(rooms: Sequence[int], need: int) -> Places:
    """Take this many GPUs of nodes in use, which have at least as many free."""
    if not need:
        return []
    # An exact fit leaves nothing on its node.
    if need < len(rooms) and rooms[need]:
        return [(lowest(rooms[need]), need)]
    taken: Places = []
    for gpus, nodes in enumerate(rooms):
        for at in bits(nodes):
            taken.append((at, min(gpus, need)))
            need -= taken[-1][1]
            if not need:
                return taken
    raise AssertionError("fewer GPUs than were counted")
