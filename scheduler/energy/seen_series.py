"""Record of busy nodes that grows interval by interval, for forecasts that are made while it does. PURE."""

import math
from collections import deque
from itertools import islice

import numpy as np

from farside.scheduler.energy.busy_series import NodeSeries

# Half a year of ten minutes: what trees are fitted to.
KEPT_STEPS = 26_000


class SeenSeries:
    """Busy and existing nodes of the newest intervals, up to `KEPT_STEPS`.

    Attributes:
        start_s: When the first interval began: seconds since 1970, of the cluster's local time.
    """

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.start_s = math.nan
        self._active: deque[float] = deque(maxlen=KEPT_STEPS)
        self._total: deque[float] = deque(maxlen=KEPT_STEPS)
        self._seen = 0

    def __len__(self) -> int:
        """Intervals that were seen, also those that are kept no longer."""
        return self._seen

    @property
    def kept(self) -> int:
        """Intervals that are kept."""
        return len(self._active)

    def watch(self, active: float, total: float) -> None:
        """One more interval is over."""
        self._active.append(active)
        self._total.append(total)
        self._seen += 1

    def newest(self, count: int) -> list[float]:
        """Busy nodes of the newest ``count`` intervals, the newest first."""
        return list(islice(reversed(self._active), count))  # a deque has no slices

    def series(self) -> NodeSeries:
        """All that is kept."""
        active, total = np.array(self._active), np.array(self._total)
        first = self._seen - len(active)
        return NodeSeries(
            start_s=self.start_s + first * self.step_s, step_s=self.step_s, active=active, total=total,
            is_gap=np.zeros(len(active), dtype=bool),
        )  # fmt: skip
