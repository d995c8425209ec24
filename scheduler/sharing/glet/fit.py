"""Interference fitted to measured co-runs: a form, its error on co-runs that it has not seen, and a safety. PURE.

No form knows a model that was never co-run, so what is planned of one has the residual's quantile on top.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Form = Literal["none", "utilisation", "additive", "trees"]
FORMS: tuple[Form, ...] = ("none", "utilisation", "additive", "trees")

FIT_SHARE = 0.7
CO_RUNS_MIN = 50  # a form is fitted to no fewer
SAFETY_QUANTILE = 0.9
_RIDGE = 0.05
_LEAST = 1e-3  # of a utilisation, before its logarithm
_TREES = {"num_leaves": 15, "learning_rate": 0.08, "min_data_in_leaf": 5, "verbosity": -1, "deterministic": True,
          "num_threads": 1, "seed": 1}  # fmt: skip
_ROUNDS = 300


class Pair(NamedTuple):
    """A model and batch on a part, beside another model and batch on the rest of the device."""

    model: str
    part_pct: int
    batch: int
    other: str
    other_part_pct: int
    other_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CoRun:
    """What was measured: ``factor`` is the latency beside the neighbour by the latency alone."""

    pair: Pair
    factor: float


# L2 and memory bandwidth in use, as shares, by model, part and batch, alone.
Utilisation = Mapping[tuple[str, int, int], tuple[float, float]]
Predict = Callable[[Sequence[Pair]], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Relative errors of a form on co-runs that were kept out of its fit, as shares, and how many these are."""

    p50: float
    p90: float
    p95: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The form with the least error at the 90th percentile, fitted to all co-runs.

    ``safety``: the 90th percentile of measured by predicted factor on those kept out, at least 1.
    """

    form: Form
    predict: Predict
    errors: Mapping[Form, Errors]
    safety: float


def fit(co_runs: Sequence[CoRun], utilisation: Utilisation, rng: random.Random) -> Fitted:
    """Tries all forms on a random 70 % and judges them by the rest [glet §4.4].

    ``utilisation`` may be empty, where a device has no counters; forms that need it are left out then.
    """
    order = list(co_runs)
    rng.shuffle(order)
    cut = int(FIT_SHARE * len(order))
    known, unknown = order[:cut], order[cut:]
    errors: dict[Form, Errors] = {}
    ratios: dict[Form, Floats] = {}
    for form in FORMS:
        if form == "utilisation" and not utilisation:
            continue
        ratios[form] = measured_by_predicted(fit_form(form, known, utilisation), unknown)
        errors[form] = error_of(ratios[form])
    best = min(errors, key=lambda form: errors[form].p90)
    return Fitted(
        form=best,
        predict=fit_form(best, co_runs, utilisation),
        errors=errors,
        safety=max(1.0, float(np.quantile(ratios[best], SAFETY_QUANTILE))),
    )


def fit_form(form: Form, co_runs: Sequence[CoRun], utilisation: Utilisation) -> Predict:
    """One form, fitted."""
    if form == "none":
        return lambda pairs: np.ones(len(pairs))
    if form == "utilisation":
        return _fit_utilisation(co_runs, utilisation)
    if form == "additive":
        return _fit_additive(co_runs, utilisation)
    return _fit_trees(co_runs, utilisation)


def measured_by_predicted(predict: Predict, co_runs: Sequence[CoRun]) -> Floats:
    """Measured by predicted factor of each co-run; a prediction below 1 counts as 1."""
    predicted = np.maximum(1.0, predict([one.pair for one in co_runs]))
    return np.array([one.factor for one in co_runs]) / predicted


def error_of(ratios: Floats) -> Errors:
    """How far predictions are from what was measured, relative to that."""
    p50, p90, p95 = np.quantile(np.abs(1 / ratios - 1), (0.5, 0.9, 0.95))
    return Errors(p50=float(p50), p90=float(p90), p95=float(p95), count=len(ratios))


def _used(pairs: Sequence[Pair], utilisation: Utilisation) -> Floats:
    """L2 of both and memory of both, a row a pair; zero where it was not measured."""
    none = (0.0, 0.0)
    rows = []
    for pair in pairs:
        own = utilisation.get((pair.model, pair.part_pct, pair.batch), none)
        other = utilisation.get((pair.other, pair.other_part_pct, pair.other_batch), none)
        rows.append((own[0], other[0], own[1], other[1]))
    return np.array(rows, dtype=float).reshape(len(pairs), 4)


def _factors(co_runs: Sequence[CoRun]) -> Floats:
    return np.array([one.factor for one in co_runs])


def _fit_utilisation(co_runs: Sequence[CoRun], utilisation: Utilisation) -> Predict:
    """The paper's five terms, by least squares [glet §4.4]."""

    def features(pairs: Sequence[Pair]) -> Floats:
        return np.column_stack([_used(pairs, utilisation), np.ones(len(pairs))])

    solution = np.linalg.lstsq(features([one.pair for one in co_runs]), _factors(co_runs), rcond=None)[0]
    return lambda pairs: features(pairs) @ solution


def _fit_additive(co_runs: Sequence[CoRun], utilisation: Utilisation) -> Predict:
    """The logarithm of the factor as a sum of what each side's model does on its part and with its batch, by ridge."""
    columns: dict[tuple[object, ...], int] = {}
    for one in co_runs:
        for key in _keys(one.pair):
            columns.setdefault(key, len(columns))

    def features(pairs: Sequence[Pair]) -> Floats:
        matrix = np.zeros((len(pairs), len(columns) + 5))
        for row, pair in enumerate(pairs):
            for key in _keys(pair):
                if key in columns:
                    matrix[row, columns[key]] = 1.0
        if utilisation:
            matrix[:, -5:-1] = np.log(np.maximum(_LEAST, _used(pairs, utilisation)))
        matrix[:, -1] = 1.0
        return matrix

    known = features([one.pair for one in co_runs])
    penalty = _RIDGE * np.eye(known.shape[1])
    penalty[-1, -1] = 0.0
    target = np.log(np.maximum(_LEAST, _factors(co_runs)))
    solution = np.linalg.solve(known.T @ known + penalty, known.T @ target)
    return lambda pairs: np.exp(features(pairs) @ solution)


def _keys(pair: Pair) -> tuple[tuple[object, ...], ...]:
    return (
        ("own", pair.model, "part", pair.part_pct),
        ("own", pair.model, "batch", pair.batch),
        ("other", pair.other, "part", pair.other_part_pct),
        ("other", pair.other, "batch", pair.other_batch),
    )


def _fit_trees(co_runs: Sequence[CoRun], utilisation: Utilisation) -> Predict:
    """Gradient-boosted trees on both models, parts, batches and utilisations."""
    import lightgbm

    names = sorted({name for one in co_runs for name in (one.pair.model, one.pair.other)})
    numbers = {name: number for number, name in enumerate(names)}

    def features(pairs: Sequence[Pair]) -> Floats:
        own = [
            (numbers.get(pair.model, -1), pair.part_pct, pair.batch, numbers.get(pair.other, -1), pair.other_batch)
            for pair in pairs
        ]
        return np.column_stack([np.array(own, dtype=float).reshape(len(pairs), 5), _used(pairs, utilisation)])

    settings: dict[str, Any] = dict(_TREES)
    data = lightgbm.Dataset(
        features([one.pair for one in co_runs]), np.log(_factors(co_runs)), params={"verbosity": -1}, free_raw_data=True
    )
    trees = lightgbm.train(settings, data, num_boost_round=_ROUNDS)
    return lambda pairs: np.exp(np.asarray(trees.predict(features(pairs)), dtype=float))
