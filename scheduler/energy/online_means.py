"""Online forecast of the mean of busy nodes over two horizons, updated at each interval. PURE.

It has the features and the trees of `forecast_mean`, and so the same values as that has for the whole series; here the
series grows, and trees come when somebody has them fitted. Until then there is no forecast.
"""

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from farside.scheduler.energy.forecast_features import causal_row
from farside.scheduler.energy.forecast_lesson import Learned, Lesson, needed_steps
from farside.scheduler.energy.forecast_proof import ForecastProof
from farside.scheduler.energy.seen_series import SeenSeries

if TYPE_CHECKING:
    import lightgbm

NONE = (math.nan, math.nan)


class OnlineMeans:
    """The forecast.

    Args:
        near_s: The near future; the other horizon is twice as long.
        step_s: Length of an interval.
        holidays: Days since 1970-01-01.
    """

    def __init__(self, *, near_s: float, step_s: float, holidays: frozenset[int] = frozenset()) -> None:
        self._near = max(1, round(near_s / step_s))
        self.steps = max(1, round(2 * near_s / step_s))
        self.seen = SeenSeries(step_s)
        self.proof = ForecastProof()
        self._holidays = holidays
        self._trees: tuple[lightgbm.Booster, ...] = ()
        self._shown: deque[float] = deque(maxlen=self._near)  # means over the near future, the newest last
        self._means = NONE

    def at(self, step: int) -> tuple[float, float]:
        """Means over the near future, and over twice as long. ``step``: the newest interval; no other is known."""
        assert step == len(self.seen) - 1, "only the newest interval has a forecast"
        return self._means

    @property
    def is_fitted(self) -> bool:
        """Whether it has trees."""
        return bool(self._trees)

    def watch(self, active: float, total: float) -> None:
        """One more interval is over."""
        self.seen.watch(active, total)
        if not self._trees:
            return
        self._judge()
        row = causal_row(self.seen.series(), self._holidays).reshape(1, -1)
        changes = (np.asarray(trees.predict(row, num_threads=1), dtype=float).item() for trees in self._trees)
        near, far = (max(0.0, active + change) for change in changes)
        self._means = near, far
        self._shown.append(near)

    def _judge(self) -> None:
        """Says how good the forecast of the near future was whose horizon is over."""
        if len(self._shown) < self._near:
            return
        newest = self.seen.newest(self._near + 1)
        came, then = sum(newest[:-1]) / self._near, newest[-1]
        self.proof.add(abs(self._shown[0] - came), abs(then - came))

    def lesson(self) -> Lesson | None:
        """What trees would be fitted to now; None: too little was seen."""
        if self.seen.kept < needed_steps(self.steps):
            return None
        return Lesson(
            series=self.seen.series(), steps=self.steps, holidays=self._holidays, means=(self._near, self.steps)
        )

    def use(self, learned: Learned) -> None:
        """Forecasts by these trees from the next interval on."""
        self._trees = learned.trees
        self.proof.begin(learned.metrics.get("loss", math.nan))
