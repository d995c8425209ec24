"""Maintenance windows: no job starts on a closed node if its time limit ends inside the window. PURE."""

from collections.abc import Iterable
from dataclasses import dataclass

from farside.scheduler.state import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceWindow:
    """Maintenance window: nodes, by index in a ledger, that are closed for a time. ``why``: its reason, in words."""

    nodes: frozenset[int]
    begin_s: float
    end_s: float
    why: str = ""

    def is_closed_to(self, now_s: float, limit_s: float) -> bool:
        """Whether a job that starts now, with this time limit, could run into the window."""
        # A job without a limit has an infinite one, so it is kept off until the window is over.
        return now_s < self.end_s and now_s + limit_s > self.begin_s


def closed_gpus(windows: Iterable[MaintenanceWindow], free: list[int], now_s: float, limit_s: float) -> Allocation:
    """Free GPUs on closed nodes, which a job with this time limit may not use now."""
    closed: set[int] = set()
    for window in windows:
        if window.is_closed_to(now_s, limit_s):
            closed |= window.nodes
    return tuple((at, free[at]) for at in sorted(closed) if free[at] > 0)
