"""Online forecast of the maximum of busy nodes: quantiles, updated at each interval. PURE.

What forecast.py does to a series that is there whole, with the same trees, features and calibration, and so with the
same levels; here the series grows, and trees come when somebody has them fitted. Until then nothing is expected and all
levels are infinite.

To fit takes up to seconds, and is a function of what was seen until then: `lesson` is that, `learned_from` may run in a
thread while more is seen, and `use` takes what came of it.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from farside.scheduler.energy.accuracy import pinball
from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.energy.forecast import (
    ACI_RATE,
    HELD_BACK_SHARE,
    LEAST_PROOF,
    QUANTILES,
    RECENT,
    WIDTH_STEPS,
    least_rows,
    max_loss,
    max_trees,
    usual_width,
)
from farside.scheduler.energy.forecast_features import causal_features, causal_row, next_max
from farside.scheduler.table import Floats

if TYPE_CHECKING:
    import lightgbm

# Half a year of ten minutes: what trees are fitted to.
KEPT_STEPS = 26_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Data for training: a series, and how many intervals to look ahead."""

    series: NodeSeries
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Trees by quantile, how far up they usually go, and how good others, of the older part, were on the newer."""

    trees: "tuple[lightgbm.Booster, ...]"
    widths: Floats
    metrics: Mapping[str, float]


def needed_steps(steps: int) -> int:
    """Number of known intervals that training needs, with a part held back for the test."""
    known = math.ceil((least_rows(steps) + steps) / (1 - HELD_BACK_SHARE))
    while _cut(known) - steps < least_rows(steps):
        known += 1
    return known


def learned_from(lesson: Lesson) -> Learned:
    """Trees of all of a series, judged by others of its older part. Takes up to seconds.

    Raises:
        ValueError: There is too little to train on.
    """
    series, steps = lesson.series, lesson.steps
    cut = _cut(len(series))
    trial = max_trees(_part(series, cut), steps)
    metrics = _metrics(trial, lesson, cut)
    trees = tuple(max_trees(series, steps))
    newest = causal_features(series)[-WIDTH_STEPS:]
    widths = np.array([usual_width(_rises(one, newest)) for one in trees])
    return Learned(trees=trees, widths=widths, metrics=metrics)


def _metrics(trial: "Sequence[lightgbm.Booster]", lesson: Lesson, cut: int) -> dict[str, float]:
    series, steps = lesson.series, lesson.steps
    held = slice(cut, len(series) - steps)
    came = next_max(series.active, steps)[held] - series.active[held]
    features = causal_features(series)[held]
    pairs = [(quantile, _rises(trees, features)) for quantile, trees in zip(QUANTILES, trial, strict=True)]
    return {
        "loss": float(np.mean([pinball(rise, came, quantile) for quantile, rise in pairs])),
        "persistence_loss": float(np.mean([pinball(0 * came, came, quantile) for quantile in QUANTILES])),
        **{f"held_{quantile:g}": float(np.mean(came <= rise)) for quantile, rise in pairs},
    }


def _rises(trees: "lightgbm.Booster", features: Floats) -> Floats:
    rises: Floats = np.maximum(0.0, np.asarray(trees.predict(features, num_threads=1), dtype=float))
    return rises


class OnlineForecast:
    """The forecast. ``horizon_s``: how far ahead; ``start_s``: when the first interval begins, of the calendar."""

    kinds = len(QUANTILES)

    def __init__(self, *, horizon_s: float, step_s: float) -> None:
        self.steps = max(1, round(horizon_s / step_s))
        self.step_s = step_s
        self.start_s = math.nan
        self._active: deque[float] = deque(maxlen=KEPT_STEPS)
        self._total: deque[float] = deque(maxlen=KEPT_STEPS)
        self._seen = 0
        self._trees: tuple[lightgbm.Booster, ...] = ()
        self._widths = np.ones(len(QUANTILES))
        self._offset = np.zeros(len(QUANTILES))
        self._told: deque[Floats] = deque(maxlen=self.steps)  # rises as they are calibrated, newest last
        self._shown: deque[Floats] = deque(maxlen=self.steps)  # and as they were shown
        self._row = np.full(len(QUANTILES), np.inf)
        self._gains: deque[float] = deque(maxlen=RECENT)  # by how much its loss was below persistence's
        self._losses: deque[float] = deque(maxlen=RECENT)  # since trees were fitted last
        self._loss_then = math.nan

    def __len__(self) -> int:
        return self._seen

    def row(self, step: int) -> Floats:
        """What is expected now, by quantile, in nodes. ``step``: the newest interval; no other is known."""
        assert step == self._seen - 1, "only the newest interval has a forecast"
        return self._row

    @property
    def is_fitted(self) -> bool:
        """Whether it has trees."""
        return bool(self._trees)

    @property
    def judged(self) -> int:
        """How many of its newest horizons are over, up to `RECENT`."""
        return len(self._gains)

    def is_proven(self, step: int) -> bool:
        """Whether it has lately been better than persistence, whichever trees it had."""
        assert step == self._seen - 1, "only of now it is known"
        return self.is_better

    @property
    def is_better(self) -> bool:
        """Whether the newest forecasts were better than persistence."""
        return len(self._gains) >= LEAST_PROOF and sum(self._gains) > 0

    @property
    def drift(self) -> float:
        """Share by which its recent loss is greater than when it was fitted."""
        if len(self._losses) < RECENT or not self._loss_then > 0:
            return 0.0
        return float(np.mean(self._losses)) / self._loss_then - 1

    def watch(self, active: float, total: float) -> None:
        """One more interval is over."""
        self._active.append(active)
        self._total.append(total)
        self._seen += 1
        if not self._trees:
            return
        # First what this interval shows of an old forecast, as that moves the one that is made now.
        self._judge(active)
        row = causal_row(self._series()).reshape(1, -1)
        rise = np.array([_rises(trees, row).item() for trees in self._trees]) + self._offset
        # A higher quantile is never below a lower one, whatever its trees say.
        self._row = np.minimum(np.maximum.accumulate(active + np.maximum(0.0, rise)), total)
        self._told.append(rise)
        self._shown.append(self._row - active)

    def _judge(self, active: float) -> None:
        """A horizon that is over moves the next forecasts, as `calibrated` does, and says how good it was."""
        if len(self._told) < self.steps:
            return
        told, shown = self._told[0], self._shown[0]
        # The oldest forecast was made ``steps`` intervals ago; newest[-1] is what was busy then. A deque has no slices.
        newest = list(islice(reversed(self._active), self.steps + 1))
        came = max(newest[:-1]) - newest[-1]
        misses = np.where(came > told, 1.0, 0.0) - (1 - np.array(QUANTILES))
        self._offset = self._offset + ACI_RATE * self._widths * misses
        ours, persistence = max_loss(np.stack([shown, 0 * shown]), np.array([came, came])).tolist()
        self._gains.append(persistence - ours)
        self._losses.append(ours)

    def lesson(self) -> Lesson | None:
        """What trees would be fitted to now; None: too little was seen."""
        if len(self._active) < needed_steps(self.steps):
            return None
        return Lesson(series=self._series(), steps=self.steps)

    def use(self, learned: Learned) -> None:
        """Forecasts by these trees from the next interval on."""
        self._trees, self._widths = learned.trees, learned.widths
        self._loss_then = learned.metrics.get("loss", math.nan)
        # Losses belong to the trees. Gains stay: they judge the forecast, whichever trees it had, so that new trees
        # need not prove themselves for half a day.
        self._losses.clear()

    def _series(self) -> NodeSeries:
        active, total = np.array(self._active), np.array(self._total)
        first = self._seen - len(active)
        return NodeSeries(
            start_s=self.start_s + first * self.step_s, step_s=self.step_s, active=active, total=total,
            is_gap=np.zeros(len(active), dtype=bool),
        )  # fmt: skip


def _cut(known: int) -> int:
    """Where the newer part begins, by which trees of the older one are judged."""
    return round(known * (1 - HELD_BACK_SHARE))


def _part(series: NodeSeries, end: int) -> NodeSeries:
    return replace(series, active=series.active[:end], total=series.total[:end], is_gap=series.is_gap[:end])
