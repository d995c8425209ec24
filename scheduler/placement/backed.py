"""Places for a job that donors back: its swap, and what others were promised of its nodes' memory. PURE.

How it works
  A placement looks at one node at a time, and whether donors lend enough is a question of all of them together. So
  what a placement finds may be such that donors do not back it, while other nodes would do. Then the node on which they
  back the job least is left out, and the placement is asked again. Nodes that are left out are filled for a moment, as
  those of a maintenance window are.
"""

from farside.scheduler.ledger import NOTHING_BUT_GPUS, Ledger
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.state import Allocation, Demand

TRIES = 8
"""Allocations that are looked at: nodes that do not do by themselves are no part of any."""


def backed(placement: PlacementPolicy, ledger: Ledger, demand: Demand, allocation: Allocation) -> Allocation | None:
    """Allocation that donors back: the one found, if they do; None: none was found."""
    left_out: Allocation = ()
    found: Allocation | None = allocation
    for _ in range(TRIES):
        if found is None or ledger.is_lent(demand, found):
            break
        at = ledger.least_backed(demand, found)
        more = ((at, ledger.free[at]),)
        ledger.take(NOTHING_BUT_GPUS, more)
        left_out += more
        found = placement.place(ledger, demand)
    else:
        found = None
    ledger.give(NOTHING_BUT_GPUS, left_out)
    return found
