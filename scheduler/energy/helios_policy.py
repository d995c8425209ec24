"""Energy policy of the Helios paper: sleep on a falling forecast, wake when jobs lack nodes. PURE.

[helios §4.3.2, Algorithm 2] as its published code runs it on Philly. Each interval, JobArrivalCheck: when jobs lack
nodes, have as many on as are busy, and the buffer; hold that for some intervals. PeriodicCheck: when the recent trend
and the forecast one are both above their thresholds, and the forecast does not turn up later, sleep down to the same.
"""

from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from farside.scheduler.energy.busy_series import DAY_S
from farside.scheduler.energy.job_arrival import nodes_lacking
from farside.scheduler.energy.policy import Seen, Target
from farside.scheduler.table import Floats

LONGEST_S = 366 * DAY_S  # what is counted in intervals has an end


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSettings:
    """Defaults are those of the published code for Philly; for the paper's own, smaller clusters see docs/energy.md.

    Attributes:
        buffer_nodes: Stay on besides busy ones; sigma.
        past_s: The recent trend: the mean of this time, less what is busy now.
        future_s: The forecast trend: what is busy now, less the mean of this time ahead; and of twice this time.
        past_threshold, future_threshold: The least that the trends must be; xi.
        cut_nodes: Fewer are not worth it.
        hold_s: No node is put to sleep for so long after a wake-up.
        features: Of the forecast. ``causal``: what was known then; ``lags``: the published code's, all of them 10 h
            earlier; ``artifact``: the published code's, whose forecast has seen hours of what it forecasts.
    """

    buffer_nodes: int = 20
    past_s: float = 1200.0
    future_s: float = 5 * 3600.0
    past_threshold: float = 0.1
    future_threshold: float = 0.0
    cut_nodes: int = 1
    hold_s: float = 6000.0
    features: Literal["causal", "lags", "artifact"] = "causal"

    def __post_init__(self) -> None:
        if self.future_s < 600:
            raise ValueError("future_s must be at least 10 min")
        for name in ("past_s", "future_s", "hold_s"):
            if getattr(self, name) > LONGEST_S:
                raise ValueError(f"{name} must be at most 366 days")


class MeansAhead(Protocol):
    """Forecast of the mean of busy nodes."""

    def at(self, step: int) -> tuple[float, float]:
        """Means over the near future, and over twice as long, as forecast in this interval; NaN: there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Forecast means of a whole series, by the interval in which they are made."""

    near: Floats
    far: Floats

    def at(self, step: int) -> tuple[float, float]:
        """Means over the near future, and over twice as long."""
        return float(self.near[step]), float(self.far[step])


@dataclass(slots=True)
class Paper:
    """Algorithm 2 of the paper.

    ``begins_low``: in the first interval nodes sleep down to the busy ones and the buffer, whatever the trends, as in
    the published code. Live the policy begins anew with each restart, and then it must not.
    """

    settings: PaperSettings
    outlook: MeansAhead
    step_s: float
    begins_low: bool = True
    _past: list[float] = field(default_factory=list)
    _seen: Seen = field(default_factory=lambda: Seen(step=-1, active=0, total=0))
    _held_to: int = 0

    def watch(self, seen: Seen) -> None:
        """Remembers the recent past."""
        if self._seen.step >= 0:
            self._past = [*self._past, self._seen.active][-max(1, round(self.settings.past_s / self.step_s)) :]
        self._seen = seen

    def target(self, powered: float) -> Target:
        """JobArrivalCheck, then PeriodicCheck."""
        seen, settings = self._seen, self.settings
        wanted = min(seen.total, seen.active + settings.buffer_nodes)
        if self.begins_low:
            self.begins_low = False
            return Target(nodes=wanted, reason="the first interval")
        # JobArrivalCheck: wake what lacks, and hold that.
        if short := nodes_lacking(seen.active, powered):
            self._held_to = seen.step + round(settings.hold_s / self.step_s)
            return Target(nodes=wanted, reason=f"{short:.0f} nodes short")
        if seen.step < self._held_to:
            return Target(nodes=powered, reason="held after a wake-up")
        # PeriodicCheck: sleep only where the recent trend and the forecast one fall.
        near, far = self.outlook.at(seen.step)
        past_trend = float(np.mean(self._past)) - seen.active if self._past else 0.0
        # NaN, where there is no forecast, compares as false: no node is put to sleep.
        is_falling = past_trend >= settings.past_threshold and seen.active - near >= settings.future_threshold
        if is_falling and near >= far and powered - wanted >= settings.cut_nodes:
            return Target(nodes=wanted, reason="fewer were busy, and fewer are expected")
        return Target(nodes=powered, reason="no falling trend")
