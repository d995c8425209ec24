"""Forecasts of busy nodes by gradient boosted trees: the mean ahead, and quantiles of the maximum. PURE.

Models are trained once, on what lay before ``train_to``, and never see a target that ends later. Trees predict the
*change* from now; the change of a mean is multiplied by a factor between 0 and 1 that was best on the last fifth of the
training data, so that a forecast that knows nothing falls back to persistence.

The quantiles of the maximum are calibrated online: whenever a horizon is over it is known whether the maximum stayed
below, and the next forecasts move up or down by a small step (adaptive conformal inference, Gibbs and Candès 2021).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farside.scheduler.energy.busy_series import Flags, NodeSeries, Places
from farside.scheduler.energy.forecast_features import HOUR_S, artifact_features, causal_features, next_max, next_mean
from farside.scheduler.table import Floats

if TYPE_CHECKING:
    import lightgbm

ROUNDS = 300
PATIENCE = 30
LEAST_ROWS = 300  # two days
LEAST_HELD_BACK = 12  # two hours: fewer can't say when trees have learned enough
# Small trees and few of them: three weeks of intervals that resemble their neighbours are not much data.
TREES: Mapping[str, Any] = {
    "num_leaves": 12, "learning_rate": 0.05, "min_data_in_leaf": 60, "bagging_fraction": 0.7, "bagging_freq": 1,
    "feature_fraction": 0.6, "lambda_l2": 5.0, "seed": 1, "num_threads": 1, "deterministic": True,
    "force_row_wise": True, "verbose": -1,
}  # fmt: skip
MEAN_TREES: Mapping[str, Any] = {**TREES, "objective": "l1"}
# The paper's: LightGBM's defaults, bagging of 0.85.
ARTIFACT_TREES: Mapping[str, Any] = {
    "metric": "rmse", "bagging_fraction": 0.85, "bagging_freq": 1, "seed": 0, "num_threads": 1, "deterministic": True,
    "force_row_wise": True, "verbose": -1,
}  # fmt: skip
HELD_BACK_SHARE = 0.2
QUANTILES = (0.5, 0.8, 0.9)
SHRINKS = np.linspace(0.0, 1.0, 11)
# A miss moves the forecast by this share of its usual width, times what a miss is worth.
ACI_RATE = 0.02
WIDTH_STEPS = 1000
# Forecasts are judged by so many of the newest horizons that are over: three days of ten minutes, half a day at least.
RECENT, LEAST_PROOF = 432, 72


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanForecast:
    """The mean over the next ``steps`` intervals, by interval in which it was made; NaN where there is none.

    ``raw``: as the trees have it; ``values``: with only ``shrink`` of the predicted change; 0: persistence.
    """

    steps: int
    raw: Floats
    values: Floats
    shrink: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxForecast:
    """Quantiles of the most that will be busy within ``steps`` intervals: one column a quantile; infinite: none yet.

    ``proven``: by interval, whether they have lately been better than persistence, as far as was known then.
    """

    quantiles = QUANTILES
    kinds = len(QUANTILES)
    steps: int
    levels: Floats
    proven: Flags

    def row(self, step: int) -> Floats:
        """What is expected when interval ``step`` is over."""
        levels: Floats = self.levels[step]
        return levels

    def is_proven(self, step: int) -> bool:
        """Whether they were better than persistence lately."""
        return bool(self.proven[step])


def forecast_mean(
    series: NodeSeries, steps: int, train_to: int, holidays: frozenset[int] = frozenset()
) -> MeanForecast:
    """The mean ahead, from causal features.

    Raises:
        ValueError: There is too little before ``train_to`` to train on.
    """
    features = causal_features(series, holidays)
    change = next_mean(series.active, steps) - series.active
    kept, held_back = _mean_rows(change, steps, train_to)
    predicted = _boosted(features, change, kept, held_back, MEAN_TREES)
    believed = predicted[held_back][None, :] * SHRINKS[:, None]
    errors = np.abs(believed - change[held_back]).mean(axis=1)
    shrink = float(SHRINKS[np.argmin(errors)])
    raw, values = (np.maximum(0.0, series.active + share * predicted) for share in (1.0, shrink))
    return MeanForecast(steps=steps, raw=raw, values=values, shrink=shrink)


def mean_trees(series: NodeSeries, steps: int, holidays: frozenset[int] = frozenset()) -> "lightgbm.Booster":
    """Trees for the change to the mean of the next ``steps`` intervals, of all of a series.

    Raises:
        ValueError: There is too little to train on.
    """
    change = next_mean(series.active, steps) - series.active
    return _trees(causal_features(series, holidays), change, *_mean_rows(change, steps, len(series)), MEAN_TREES)


def _mean_rows(change: Floats, steps: int, train_to: int) -> tuple[Places, Places]:
    """Intervals to train on, and those to say when trees have learned enough."""
    rows = _trainable(change, train_to, steps)
    kept = rows[: round(len(rows) * (1 - HELD_BACK_SHARE))]
    # What overlaps with the targets of the rows kept says nothing new.
    return kept, rows[len(kept) + steps :]


def forecast_artifact(series: NodeSeries, train_to: int, validate_to: int, ago_s: float = HOUR_S) -> Floats:
    """Busy nodes by interval as the paper's published code predicts them: its features, which end ``ago_s`` before.

    Raises:
        ValueError: There is too little before ``train_to`` to train on.
    """
    features = artifact_features(series, ago_s)
    rows = _trainable(series.active, train_to, 0)
    held_back = np.arange(train_to, validate_to)
    if len(held_back) < LEAST_ROWS:
        rows, held_back = np.split(rows, [round(len(rows) * (1 - HELD_BACK_SHARE))])
    predicted = _boosted(features, series.active, rows, held_back, ARTIFACT_TREES)
    return np.floor(predicted)


def forecast_max(
    series: NodeSeries,
    steps: int,
    train_to: int,
    holidays: frozenset[int] = frozenset(),
) -> MaxForecast:
    """Quantiles of the maximum ahead, calibrated online.

    Raises:
        ValueError: There is too little before ``train_to`` to train on.
    """
    features = causal_features(series, holidays)
    rise = next_max(series.active, steps) - series.active
    columns = []
    for quantile, trees in zip(QUANTILES, _quantile_trees(features, rise, steps, train_to), strict=True):
        predicted = np.maximum(0.0, np.asarray(trees.predict(features), dtype=float))
        columns.append(series.active + np.maximum(0.0, calibrated(predicted, rise, quantile, steps, train_to)))
    # A higher quantile is never below a lower one, whatever its trees say.
    levels = np.minimum(np.maximum.accumulate(np.column_stack(columns), axis=1), series.total[:, None])
    # No forecast before the trees were trained.
    levels[:train_to] = np.inf
    told = levels - series.active[:, None]
    proven = _proven(told, rise, steps, train_to)
    return MaxForecast(steps=steps, levels=levels, proven=proven)


def _proven(told: Floats, came: Floats, steps: int, begin: int) -> Flags:
    """Whether the loss of the newest `RECENT` horizons that were over was below persistence's; of `LEAST_PROOF`."""
    gain = np.zeros(len(came))
    gain[begin:] = max_loss(0 * told[begin:], came[begin:]) - max_loss(told[begin:], came[begin:])
    # Shifted by the horizon, as the worth of a forecast is known only when its horizon is over.
    sums = np.concatenate([np.zeros(1 + steps), np.cumsum(np.nan_to_num(gain))])[: len(came) + 1]
    after = np.arange(1, len(came) + 1)
    gained = sums[after] - sums[np.maximum(0, after - RECENT)]
    proven: Flags = (gained > 0) & (after - steps - begin >= LEAST_PROOF)
    return proven


def max_loss(rise: Floats, came: Floats) -> Floats:
    """Mean pinball loss of predicted rises over quantiles, in nodes, one column a quantile."""
    off = came[:, None] - rise
    levels = np.array(QUANTILES)
    return np.asarray(np.maximum(levels * off, (levels - 1) * off).mean(axis=1))


def max_trees(series: NodeSeries, steps: int, holidays: frozenset[int] = frozenset()) -> "list[lightgbm.Booster]":
    """Trees for the rise to the most that will be busy within ``steps`` intervals, one set a quantile; of all of it.

    Raises:
        ValueError: There is too little to train on.
    """
    rise = next_max(series.active, steps) - series.active
    return _quantile_trees(causal_features(series, holidays), rise, steps, len(series))


def _quantile_trees(features: Floats, rise: Floats, steps: int, train_to: int) -> "list[lightgbm.Booster]":
    rows = _trainable(rise, train_to, steps)
    cut = round(len(rows) * (1 - HELD_BACK_SHARE))
    return [
        _trees(features, rise, rows[:cut], rows[cut + steps :], {**TREES, "objective": "quantile", "alpha": quantile})
        for quantile in QUANTILES
    ]


def calibrated(predicted: Floats, came: Floats, quantile: float, steps: int, begin: int) -> Floats:
    """Predictions of a quantile, each moved by what the misses that were known by then teach, from ``begin`` on.

    What came of the prediction of interval i is known at i + ``steps``.
    """
    width = usual_width(predicted[:begin])
    moved = predicted.copy()
    offset = 0.0
    for step in range(begin, len(predicted)):
        known = step - steps
        # NaN, where the series ends before the horizon does, teaches nothing.
        if known >= begin and came[known] == came[known]:
            is_miss = came[known] > moved[known]
            # Adaptive conformal inference: up after a miss and down otherwise, in the ratio that leaves misses at 1 -
            # quantile.
            offset += ACI_RATE * width * ((1.0 if is_miss else 0.0) - (1 - quantile))
        moved[step] = predicted[step] + offset
    return moved


def usual_width(predicted: Floats) -> float:
    """How far up predictions lately went, in nodes: what a step of the calibration is a share of."""
    return max(1.0, float(np.mean(np.abs(predicted[-WIDTH_STEPS:])))) if len(predicted) else 1.0


def _trainable(target: Floats, train_to: int, steps: int) -> Places:
    """Intervals whose target is known at ``train_to``."""
    last = train_to - steps
    rows = np.flatnonzero(~np.isnan(target[: max(0, last)]))
    if len(rows) < least_rows(steps):
        needed = f"a forecast of {steps} intervals needs {least_rows(steps)}" if steps else f"it needs {LEAST_ROWS}"
        raise ValueError(f"{len(rows)} intervals before --train-to can be learned from, {needed}")
    return rows


def least_rows(steps: int) -> int:
    """How many intervals with a known target trees are fitted to at least.

    Of those held back as many as the horizon are lost: they overlap with what was learned from.
    """
    return max(LEAST_ROWS, math.ceil((steps + LEAST_HELD_BACK) / HELD_BACK_SHARE))


def _boosted(
    features: Floats,
    target: Floats,
    rows: Places,
    held_back: Places,
    settings: Mapping[str, Any],
) -> Floats:
    """Predictions for all intervals of trees trained on some, as many as were best on those held back."""
    return np.asarray(_trees(features, target, rows, held_back, settings).predict(features), dtype=float)


def _trees(
    features: Floats, target: Floats, rows: Places, held_back: Places, settings: Mapping[str, Any]
) -> "lightgbm.Booster":
    import lightgbm  # takes a second to import, and only forecasts need it

    stop = lightgbm.early_stopping(PATIENCE, verbose=False)
    data = lightgbm.Dataset(features[rows], target[rows])
    watched = [lightgbm.Dataset(features[held_back], target[held_back], reference=data)]
    return lightgbm.train(dict(settings), data, ROUNDS, valid_sets=watched, callbacks=[stop])
