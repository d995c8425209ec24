"""Online forecast of the maximum of busy nodes: quantiles, updated at each interval. PURE.

What forecast.py does to a series that is there whole, with the same trees, features and calibration, and so with the
same levels; here the series grows, and trees come when somebody has them fitted. Until then nothing is expected and all
levels are infinite.
"""

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from farside.scheduler.energy.forecast import ACI_RATE, QUANTILES, max_loss
from farside.scheduler.energy.forecast_features import causal_row
from farside.scheduler.energy.forecast_lesson import Learned, Lesson, needed_steps, rises
from farside.scheduler.energy.forecast_proof import ForecastProof
from farside.scheduler.energy.seen_series import SeenSeries
from farside.scheduler.table import Floats

if TYPE_CHECKING:
    import lightgbm


class OnlineForecast:
    """The forecast. ``horizon_s``: how far ahead; ``holidays``: days since 1970-01-01."""

    kinds = len(QUANTILES)

    def __init__(self, *, horizon_s: float, step_s: float, holidays: frozenset[int] = frozenset()) -> None:
        self.steps = max(1, round(horizon_s / step_s))
        self.seen = SeenSeries(step_s)
        self.proof = ForecastProof()
        self._holidays = holidays
        self._trees: tuple[lightgbm.Booster, ...] = ()
        self._widths = np.ones(len(QUANTILES))
        self._offset = np.zeros(len(QUANTILES))
        self._told: deque[Floats] = deque(maxlen=self.steps)  # rises as they are calibrated, newest last
        self._shown: deque[Floats] = deque(maxlen=self.steps)  # and as they were shown
        self._row = np.full(len(QUANTILES), np.inf)

    def row(self, step: int) -> Floats:
        """What is expected now, by quantile, in nodes. ``step``: the newest interval; no other is known."""
        assert step == len(self.seen) - 1, "only the newest interval has a forecast"
        return self._row

    @property
    def is_fitted(self) -> bool:
        """Whether it has trees."""
        return bool(self._trees)

    def is_proven(self, step: int) -> bool:
        """Whether it has lately been better than persistence, whichever trees it had."""
        assert step == len(self.seen) - 1, "only of now it is known"
        return self.proof.is_better

    def watch(self, active: float, total: float) -> None:
        """One more interval is over."""
        self.seen.watch(active, total)
        if not self._trees:
            return
        # First what this interval shows of an old forecast, as that moves the one that is made now.
        self._judge()
        row = causal_row(self.seen.series(), self._holidays).reshape(1, -1)
        rise = np.array([rises(trees, row).item() for trees in self._trees]) + self._offset
        # A higher quantile is never below a lower one, whatever its trees say.
        self._row = np.minimum(np.maximum.accumulate(active + np.maximum(0.0, rise)), total)
        self._told.append(rise)
        self._shown.append(self._row - active)

    def _judge(self) -> None:
        """A horizon that is over moves the next forecasts, as `calibrated` does, and says how good it was."""
        if len(self._told) < self.steps:
            return
        told, shown = self._told[0], self._shown[0]
        # The oldest forecast was made ``steps`` intervals ago; newest[-1] is what was busy then.
        newest = self.seen.newest(self.steps + 1)
        came = max(newest[:-1]) - newest[-1]
        misses = np.where(came > told, 1.0, 0.0) - (1 - np.array(QUANTILES))
        self._offset = self._offset + ACI_RATE * self._widths * misses
        ours, persistence = max_loss(np.stack([shown, 0 * shown]), np.array([came, came])).tolist()
        self.proof.add(ours, persistence)

    def lesson(self) -> Lesson | None:
        """What trees would be fitted to now; None: too little was seen."""
        if self.seen.kept < needed_steps(self.steps):
            return None
        return Lesson(series=self.seen.series(), steps=self.steps, holidays=self._holidays)

    def use(self, learned: Learned) -> None:
        """Forecasts by these trees from the next interval on."""
        self._trees, self._widths = learned.trees, learned.widths
        self.proof.begin(learned.metrics.get("loss", math.nan))
