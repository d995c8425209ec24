"""Where the wish for nodes comes from: what a forecast or a rule is asked, and what it answers. PURE."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from farside.scheduler.energy.power.state import NodePower, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """The cluster's nodes now. ``busy``: have a job or a reservation; ``on``: serve; ``total``: all there are."""

    now_s: float
    busy: int
    on: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How many nodes should be on, and why."""

    nodes: int
    reason: str


class Demand(Protocol):
    """A policy of node sleep: a forecast, a rule, or an operator's number."""

    def wish(self, now: Occupancy) -> Wish:
        """What it wishes for now. Asked at every turn, so that it learns from each."""
        ...


def occupancy(nodes: Sequence[NodePower], now_s: float) -> Occupancy:
    """What is known of the nodes, as a policy sees them. A node that was never looked at counts as busy."""
    held = [node.holdings for node in nodes]
    busy = sum(
        node.phase in (Phase.ON, Phase.DRAINING) and (one is None or one.jobs + one.reservations > 0)
        for node, one in zip(nodes, held, strict=True)
    )
    on = sum(node.phase is Phase.ON for node in nodes)
    return Occupancy(now_s=now_s, busy=busy, on=on, total=len(nodes))
