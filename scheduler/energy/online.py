"""Quantiles of the most that will be busy, forecast interval by interval as it is seen. PURE.

What forecast.py does to a series that is there whole, with the same trees, features and calibration; here the series
grows, and trees come when somebody has them fitted. Until then, and where trees were fitted for another length of an
interval, nothing is expected and all levels are infinite.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from farside.errors import ConfigError
from farside.scheduler.energy.accuracy import pinball
from farside.scheduler.energy.feature import CAUSAL_FEATURES, causal_features, causal_row, next_max
from farside.scheduler.energy.forecast import (
    ACI_RATE,
    HELD_BACK_SHARE,
    LEAST_PROOF,
    QUANTILES,
    RECENT,
    least_rows,
    max_loss,
    max_trees,
)
from farside.scheduler.energy.series import NodeSeries
from farside.scheduler.predict.tree_text import booster_of
from farside.scheduler.table import Floats

if TYPE_CHECKING:
    import lightgbm

# Half a year of ten minutes: what trees are fitted to.
KEPT_STEPS = 26_000
_BETWEEN = "\n===== the next quantile =====\n"


class OnlineForecast:
    """The forecast. ``horizon_s``: how far ahead; ``start_s``: when the first interval begins."""

    def __init__(self, *, horizon_s: float, step_s: float, holidays: frozenset[int] = frozenset()) -> None:
        self.steps = max(1, round(horizon_s / step_s))
        self.step_s = step_s
        self.start_s = math.nan
        self.holidays = holidays
        self._active: deque[float] = deque(maxlen=KEPT_STEPS)
        self._total: deque[float] = deque(maxlen=KEPT_STEPS)
        self._seen = 0
        self._trees: list[lightgbm.Booster] = []
        self._width = 1.0
        self._offset = np.zeros(len(QUANTILES))
        self._told: deque[Floats] = deque(maxlen=self.steps + 1)  # rises, newest last
        self._row = np.full(len(QUANTILES), np.inf)
        self._losses: deque[tuple[float, float]] = deque(maxlen=RECENT)  # ours, and persistence's
        self._loss_then = math.nan

    def __len__(self) -> int:
        return self._seen

    @property
    def kinds(self) -> int:
        """How many quantiles."""
        return len(QUANTILES)

    def row(self, step: int) -> Floats:
        """What is expected now, by quantile, in nodes. ``step``: the newest interval; no other is known."""
        assert step == self._seen - 1, "only the newest interval has a forecast"
        return self._row

    def is_proven(self, step: int) -> bool:
        """Whether it has lately been better than persistence."""
        assert step == self._seen - 1, "only of now it is known"
        if len(self._losses) < LEAST_PROOF:
            return False
        ours, persistence = np.array(self._losses).mean(axis=0)
        return bool(ours < persistence)

    @property
    def drift(self) -> float:
        """By which share its recent loss is greater than when it was fitted."""
        if len(self._losses) < RECENT or not self._loss_then > 0:
            return 0.0
        return float(np.mean([ours for ours, _ in self._losses])) / self._loss_then - 1

    def watch(self, active: float, total: float) -> None:
        """One more interval is over."""
        self._active.append(active)
        self._total.append(total)
        self._seen += 1
        if not self._trees:
            return
        self._learn(active)
        row = causal_row(self._series(), self.holidays).reshape(1, -1)
        raw = np.array([np.asarray(trees.predict(row, num_threads=1)).item() for trees in self._trees])
        rise = np.maximum(0.0, raw) + self._offset
        self._told.append(rise)
        # A higher quantile is never below a lower one, whatever its trees say.
        self._row = np.minimum(np.maximum.accumulate(active + np.maximum(0.0, rise)), total)

    def _learn(self, active: float) -> None:
        """A horizon that is over moves the next forecasts, as `calibrated` does."""
        if len(self._told) < self.steps or len(self._active) <= self.steps:
            return
        told, begun = self._told[-self.steps], self._active[-1 - self.steps]
        came = max(list(self._active)[-self.steps :]) - begun
        misses = np.where(came > told, 1.0, 0.0) - (1 - np.array(QUANTILES))
        self._offset = self._offset + ACI_RATE * self._width * misses
        both = np.stack([np.maximum(0.0, told), np.zeros(len(QUANTILES))])
        ours, persistence = max_loss(both, np.array([came, came])).tolist()
        self._losses.append((ours, persistence))

    def fit(self) -> Mapping[str, float]:
        """Fits trees to all that was seen; how good others, of its older part, were on the newer. Empty: too little."""
        series = self._series()
        cut = round(len(series) * (1 - HELD_BACK_SHARE))
        if cut - self.steps < least_rows(self.steps):
            return {}
        trial = max_trees(_part(series, cut), self.steps, holidays=self.holidays)
        metrics = self._metrics(trial, series, cut)
        self._use(max_trees(series, self.steps, holidays=self.holidays), metrics["loss"])
        return metrics

    def _metrics(self, trial: "Sequence[lightgbm.Booster]", series: NodeSeries, cut: int) -> dict[str, float]:
        held = slice(cut, len(series) - self.steps)
        came = next_max(series.active, self.steps)[held] - series.active[held]
        features = causal_features(series, self.holidays)[held]
        self._width = max(1.0, float(np.mean(np.abs(came))))
        told = [np.maximum(0.0, np.asarray(trees.predict(features), dtype=float)) for trees in trial]
        pairs = list(zip(QUANTILES, told, strict=True))
        return {
            "loss": float(np.mean([pinball(rise, came, quantile) for quantile, rise in pairs])),
            "persistence_loss": float(np.mean([pinball(0 * came, came, quantile) for quantile in QUANTILES])),
            **{f"held_{quantile:g}": float(np.mean(came <= rise)) for quantile, rise in pairs},
            "width": self._width,
        }

    def _use(self, trees: "list[lightgbm.Booster]", loss: float) -> None:
        self._trees, self._loss_then = trees, loss
        self._losses.clear()

    @property
    def text(self) -> str:
        """LightGBM's own format, one after the other."""
        return _BETWEEN.join(trees.model_to_string() for trees in self._trees)

    def use_text(self, text: str, metrics: Mapping[str, float]) -> None:
        """Takes trees from `text`.

        Raises:
            ConfigError: It is no such text, or of other features.
        """
        parts = text.split(_BETWEEN)
        if len(parts) != len(QUANTILES):
            raise ConfigError(f"the model has {len(parts)} quantiles, not {len(QUANTILES)}", hint="fit it again")
        trees = [booster_of(part, len(CAUSAL_FEATURES)) for part in parts]
        self._width = metrics.get("width", 1.0)
        self._use(trees, metrics.get("loss", math.nan))

    def _series(self) -> NodeSeries:
        active, total = np.array(self._active), np.array(self._total)
        first = self._seen - len(active)
        return NodeSeries(
            start_s=self.start_s + first * self.step_s, step_s=self.step_s, active=active, total=total,
            is_gap=np.zeros(len(active), dtype=bool),
        )  # fmt: skip


def _part(series: NodeSeries, end: int) -> NodeSeries:
    return NodeSeries(
        start_s=series.start_s, step_s=series.step_s, active=series.active[:end], total=series.total[:end],
        is_gap=series.is_gap[:end],
    )  # fmt: skip
