"""Planned maintenance of a simulated cluster: nodes that are closed for a time, from when it was planned. PURE.

As in the manager it ends no job: from when it is planned, no job starts on its nodes whose time limit ends inside it.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from farside.scheduler.maintenance_window import MaintenanceWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    """Maintenance of some nodes, by name. ``planned_s``: from then on the scheduler knows of it."""

    nodes: frozenset[str]
    begin_s: float
    end_s: float
    planned_s: float = -math.inf
    why: str = ""

    @property
    def news_s(self) -> tuple[float, float]:
        """When the scheduler hears of it, and when it is over."""
        return self.planned_s, self.end_s


def windows_at(
    closures: Iterable[Closure], node_index: Mapping[str, int], now_s: float
) -> tuple[MaintenanceWindow, ...]:
    """The windows that are known and not over, by the nodes' places in a ledger."""
    return tuple(
        MaintenanceWindow(
            nodes=frozenset(node_index[name] for name in one.nodes if name in node_index),
            begin_s=one.begin_s,
            end_s=one.end_s,
            why=one.why,
        )
        for one in closures
        if one.planned_s <= now_s < one.end_s
    )
