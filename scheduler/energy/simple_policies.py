"""Energy policies without a forecast: all nodes on, vanilla DRS, and the two-line rule. PURE."""

import math
from dataclasses import dataclass, field

from farside.scheduler.energy.busy_series import DAY_S
from farside.scheduler.energy.job_arrival import nodes_lacking
from farside.scheduler.energy.policy import Seen, Target
from farside.scheduler.energy.signal import RecentMax

# A memory is a row of intervals.
LONGEST_MEMORY_S = 366 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """Settings of the two-line rule: keep the peak of the last ``keep_s`` and ``buffer_nodes`` more on.

    With a risk given both are tuned to it, on what lies before the window.
    """

    buffer_nodes: int = 40
    keep_s: float = 6 * 3600.0
    wakeups_per_day: float = math.inf
    short_nodes_per_day: float = math.inf

    def __post_init__(self) -> None:
        if self.keep_s > LONGEST_MEMORY_S:
            raise ValueError("keep_s must be at most 366 days")


@dataclass(frozen=True, slots=True, kw_only=True)
class VanillaSettings:
    """Settings of vanilla DRS: keep the busy nodes and ``buffer_nodes`` more on, without a trend."""

    buffer_nodes: int = 20


@dataclass(slots=True)
class AllOn:
    """Policy that lets no node sleep."""

    _total: float = 0.0

    def watch(self, seen: Seen) -> None:
        """Only the number of nodes matters."""
        self._total = seen.total

    def target(self, powered: float) -> Target:
        """All of them."""
        del powered
        return Target(nodes=self._total, reason="no node sleeps under this policy")


@dataclass(slots=True)
class KeepRecent:
    """The two-line rule: keep the recent peak and a buffer on; wake only when jobs lack nodes.

    With a memory of one interval this is vanilla DRS.
    """

    buffer_nodes: float
    keep_s: float
    step_s: float
    _recent: RecentMax = field(init=False)
    _seen: Seen = field(init=False)

    def __post_init__(self) -> None:
        self._recent = RecentMax(steps=(max(1, round(self.keep_s / self.step_s)),))
        self._seen = Seen(step=-1, active=0, total=0)

    def watch(self, seen: Seen) -> None:
        """Remembers what was busy."""
        self._recent.watch(seen.active)
        self._seen = seen

    def target(self, powered: float) -> Target:
        """Two lines."""
        level = min(self._seen.total, float(self._recent.values[0]) + self.buffer_nodes)
        if short := nodes_lacking(self._seen.active, powered):
            return Target(nodes=level, reason=f"{short:.0f} nodes short")
        return Target(nodes=min(powered, level), reason="busy lately, and the buffer")
