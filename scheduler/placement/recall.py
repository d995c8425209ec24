"""Where a job's memory need not be recalled: of places that are as good, those whose donors have lent least. PURE.

How it works
  Memory that a node's donor has lent counts as free, as it comes back where jobs need it. That takes time, and whoever
  borrowed it moves pages, so a job goes first where nobody has what it needs. It is no reason to spread a job over more
  nodes: that would cost all of its run, and a recall is over once.

  Any placement is asked, the same one for the simulator, where nothing is lent so, and for the live manager. Nodes that
  are not to be taken are filled for a moment, as those of a maintenance window are.
"""

import numpy as np

from farside.scheduler.ledger import NOTHING_BUT_GPUS, Ledger
from farside.scheduler.node_set import members_of
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.state import Allocation, Demand
from farside.scheduler.table import Floats


def least_recall(placement: PlacementPolicy, ledger: Ledger, demand: Demand, allocation: Allocation) -> Allocation:
    """Allocation on as few nodes as the one found, whose donors have as little to take back as can be.

    The one found, where that needs no memory that is lent.
    """
    recalled = ledger.recalls(demand, allocation)
    if not recalled:
        return allocation
    by_node = ledger.recall_bytes(demand)
    worst = max(by_node[at] for at, _ in allocation)
    levels = [0.0, *np.unique(by_node[(by_node > 0) & (by_node < worst)]).tolist()]
    if demand.parameter_servers:  # a program is solved for each try: it is asked once more, for nodes without a recall
        levels = levels[:1]
    elif len(allocation) == 1 and (one := _on_one_node(placement, ledger, demand, by_node)) is not None:
        return one  # each try fills all other nodes, which takes milliseconds in large clusters
    best, low, high = allocation, 0, len(levels)
    while low < high:  # more nodes may be taken at each higher level
        at = (low + high) // 2
        found = _place_within(placement, ledger, demand, levels[at])
        if found is not None and len(found) <= len(allocation) and ledger.is_lent(demand, found):
            best, high = found, at
        else:
            low = at + 1
    return best


def _on_one_node(placement: PlacementPolicy, ledger: Ledger, demand: Demand, by_node: Floats) -> Allocation | None:
    """Free GPUs of the node with the least to take back of all with room; None: the placement takes none of them."""
    room = members_of(ledger.fitting(demand, demand.gpus))
    room = room[np.array(ledger.free)[room] >= demand.gpus]
    if not len(room):
        return None
    found = _place_within(placement, ledger, demand, float(by_node[room].min()))
    return found if found is not None and len(found) == 1 and ledger.is_lent(demand, found) else None


def _place_within(placement: PlacementPolicy, ledger: Ledger, demand: Demand, most_bytes: float) -> Allocation | None:
    """Free GPUs without nodes that would have more than this to take back."""
    excess = np.flatnonzero(ledger.recall_bytes(demand) > most_bytes).tolist()
    closed = tuple((at, ledger.free[at]) for at in excess if ledger.free[at] > 0)
    ledger.take(NOTHING_BUT_GPUS, closed)
    found = placement.place(ledger, demand)
    ledger.give(NOTHING_BUT_GPUS, closed)
    return found
