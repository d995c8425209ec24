"""Comparison of forecasts at the same points in time. PURE."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from farside.errors import ConfigError, Unavailable
from farside.scheduler.energy.accuracy import coverage, pinball, smape_pct
from farside.scheduler.energy.catalog import Question, max_forecast
from farside.scheduler.energy.forecast import forecast_mean
from farside.scheduler.energy.forecast_features import next_max, next_mean
from farside.scheduler.energy.simple_forecasts import arima, exponential, persistence, seasonal
from farside.scheduler.table import Floats

HORIZONS_S = tuple(hours * 3600.0 for hours in (1, 3, 5, 10))
EVERY_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanScore:
    """A method's error of the mean over a horizon, in percent."""

    method: str
    horizon_s: float
    smape: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileScore:
    """How often a forecast quantile of the maximum ahead held, and its mean loss in nodes beside persistence's."""

    quantile: float
    horizon_s: float
    held: float
    loss: float
    persistence_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """A comparison; ``remarks`` say what is missing."""

    origins: int
    means: tuple[MeanScore, ...]
    quantiles: tuple[QuantileScore, ...]
    remarks: tuple[str, ...]


def compare(question: Question) -> Scores:
    """Compare all methods at every full hour of the window.

    Raises:
        ConfigError: There is too little before ``train_to``.
    """
    try:
        return _compared(question)
    except ValueError as error:
        raise ConfigError(f"forecast: {error}", hint="give a longer series, or a later --train-to") from error


def _compared(question: Question) -> Scores:
    an_hour = question.steps(EVERY_S)
    origins = np.arange(question.begin, question.end, an_hour)
    came = {steps: next_mean(question.series.active, steps)[origins] for steps in map(question.steps, HORIZONS_S)}
    remarks: list[str] = []
    means = [
        MeanScore(method=method, horizon_s=steps * question.series.step_s, smape=smape_pct(values, came[steps]))
        for method, steps, values in _forecasts(question, origins.tolist(), remarks)
    ]
    return Scores(
        origins=len(origins), means=tuple(means), quantiles=tuple(_quantiles(question)), remarks=tuple(remarks)
    )


def _forecasts(question: Question, origins: list[int], remarks: list[str]) -> Iterator[tuple[str, int, Floats]]:
    series, train_to = question.series, question.train_to
    horizons = [question.steps(horizon_s) for horizon_s in HORIZONS_S]
    for steps in horizons:
        made = forecast_mean(series, steps, train_to, question.holidays)
        yield "boosted trees", steps, made.raw[origins]
        yield "boosted trees, shrunk", steps, made.values[origins]
        yield "persistence", steps, persistence(series, steps)[origins]
        yield "the day before", steps, seasonal(series, steps, days=1)[origins]
        yield "the week before", steps, seasonal(series, steps, days=7)[origins]
    for name, classic in (("ARIMA", arima), ("exponential smoothing", exponential)):
        try:
            for steps, values in classic(series, horizons, train_to, origins).items():
                yield name, steps, values
        except Unavailable as error:
            remarks.append(f"no {name}: {error}")


def _quantiles(question: Question) -> Iterator[QuantileScore]:
    made = max_forecast(question)
    window = slice(question.begin, question.end)
    came = next_max(question.series.active, made.steps)[window]
    for place, quantile in enumerate(made.quantiles):
        level = made.levels[window, place]
        yield QuantileScore(
            quantile=quantile,
            horizon_s=made.steps * question.series.step_s,
            held=coverage(level, came),
            loss=pinball(level, came, quantile),
            persistence_loss=pinball(question.series.active[window], came, quantile),
        )
