"""Rules of a domain: its policies, and the times that go with them. PURE."""

import math
from dataclasses import dataclass, field

from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.preemption_cost import NoCost, PreemptionCost
from farside.scheduler.slowdown import NoSlowdown, Slowdown
from farside.scheduler.tenancy import Tenancy

# Who was started for a reservation is left alone as long as it waited: less would be no time to get anywhere in.
SHORTEST_RESERVE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of a domain.

    Attributes:
        order: Who goes first.
        placement: Where.
        preemption_cost: What a preemption costs.
        slowdown: How an allocation slows a job down.
        min_run_s: A job that was started is left alone this long, from when it makes progress.
        reserve_after_s: A job that has waited this long in one go is reserved for (reservation.py); infinite: none is,
            as in the papers.
        tenancy: Accounts and qualities of service, where there are any: what may be held, and priority and fair share
            before the order.
    """

    order: OrderPolicy
    placement: PlacementPolicy
    preemption_cost: PreemptionCost = field(default_factory=NoCost)
    slowdown: Slowdown = field(default_factory=NoSlowdown)
    min_run_s: float = 0.0
    reserve_after_s: float = math.inf
    tenancy: Tenancy | None = None


def reserve_after(told_s: float) -> float:
    """`Rules.reserve_after_s` from the setting, where 0 means never.

    Raises:
        ValueError: Below `SHORTEST_RESERVE_S`.
    """
    if 0 < told_s < SHORTEST_RESERVE_S:
        raise ValueError(f"reserve_after_s: must be at least {SHORTEST_RESERVE_S:g} s, or 0 for never")
    return told_s or math.inf
