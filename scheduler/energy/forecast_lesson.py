"""Fit of the trees of a forecast that learns: what they are fitted to, and what comes of it. PURE.

To fit takes up to seconds, and is a function of what was seen until then: `Lesson` is that, and `learned_from` may run
in a thread while more is seen.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from farside.scheduler.energy.accuracy import pinball
from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.energy.forecast import (
    HELD_BACK_SHARE,
    QUANTILES,
    WIDTH_STEPS,
    least_rows,
    max_trees,
    mean_trees,
    usual_width,
)
from farside.scheduler.energy.forecast_features import causal_features, next_max, next_mean
from farside.scheduler.table import Floats

if TYPE_CHECKING:
    import lightgbm


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Data for training.

    Attributes:
        series: What was seen.
        steps: Intervals to look ahead; with ``means`` the longest horizon.
        holidays: Days since 1970-01-01.
        means: Horizons, in intervals, over which means are forecast; none: quantiles of the maximum are.
    """

    series: NodeSeries
    steps: int
    holidays: frozenset[int] = frozenset()
    means: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Trees by quantile or by horizon, and how good those of the older part were on the newer.

    ``widths``: how far up quantiles usually go, in nodes; none with means.
    """

    trees: "tuple[lightgbm.Booster, ...]"
    metrics: Mapping[str, float]
    widths: Floats = field(default_factory=lambda: np.zeros(0))


# Trees, or why there are none.
Fit = Callable[[Lesson], Learned | str]


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
    series = lesson.series
    cut = _cut(len(series))
    older = replace(series, active=series.active[:cut], total=series.total[:cut], is_gap=series.is_gap[:cut])
    metrics = _metrics(_trees_of(lesson, older), lesson, cut)
    trees = _trees_of(lesson, series)
    if lesson.means:
        return Learned(trees=trees, metrics=metrics)
    newest = causal_features(series, lesson.holidays)[-WIDTH_STEPS:]
    widths = np.array([usual_width(rises(one, newest)) for one in trees])
    return Learned(trees=trees, widths=widths, metrics=metrics)


def _trees_of(lesson: Lesson, series: NodeSeries) -> "tuple[lightgbm.Booster, ...]":
    if lesson.means:
        return tuple(mean_trees(series, steps, lesson.holidays) for steps in lesson.means)
    return tuple(max_trees(series, lesson.steps, lesson.holidays))


def _metrics(trial: "Sequence[lightgbm.Booster]", lesson: Lesson, cut: int) -> dict[str, float]:
    series, steps = lesson.series, lesson.steps
    held = slice(cut, len(series) - steps)
    features, now = causal_features(series, lesson.holidays)[held], series.active[held]
    if lesson.means:
        errors = [
            (came - np.asarray(trees.predict(features, num_threads=1), dtype=float), came)
            for horizon, trees in zip(lesson.means, trial, strict=True)
            for came in [next_mean(series.active, horizon)[held] - now]
        ]
        return {
            "loss": _mean_error(off for off, _ in errors),
            "persistence_loss": _mean_error(came for _, came in errors),
        }
    came = next_max(series.active, steps)[held] - now
    pairs = [(quantile, rises(trees, features)) for quantile, trees in zip(QUANTILES, trial, strict=True)]
    return {
        "loss": float(np.mean([pinball(rise, came, quantile) for quantile, rise in pairs])),
        "persistence_loss": float(np.mean([pinball(0 * came, came, quantile) for quantile in QUANTILES])),
        **{f"held_{quantile:g}": float(np.mean(came <= rise)) for quantile, rise in pairs},
    }


def _mean_error(errors: Iterable[Floats]) -> float:
    return float(np.mean([np.abs(one).mean() for one in errors]))


def rises(trees: "lightgbm.Booster", features: Floats) -> Floats:
    """What trees for a rise predict; never below nothing."""
    found: Floats = np.maximum(0.0, np.asarray(trees.predict(features, num_threads=1), dtype=float))
    return found


def _cut(known: int) -> int:
    """Where the newer part begins, by which trees of the older one are judged."""
    return round(known * (1 - HELD_BACK_SHARE))
