"""Forecasts of the mean without trees: persistence, seasonal, ARIMA and exponential smoothing. PURE.

The classics are fitted once, before ``train_to``, and then filtered along: at each origin they have seen all that came
before it. statsmodels is large and only this comparison needs it, so it is installed only where it is wanted.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from farside.errors import Unavailable
from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.energy.forecast_features import lagged, next_mean
from farside.scheduler.table import Floats

# Classics work on hours: six times fewer values, and a day is 24 of them.
ARIMA_ORDER = (2, 1, 2)
DAY_HOURS = 24


def persistence(series: NodeSeries, steps: int) -> Floats:
    """Persistence forecast: the number of busy nodes stays as it is."""
    del steps
    return series.active


def seasonal(series: NodeSeries, steps: int, *, days: int) -> Floats:
    """Seasonal forecast: the mean that followed ``days`` days ago."""
    return lagged(next_mean(series.active, steps), round(days * series.steps_a_day))


def arima(series: NodeSeries, horizons: Sequence[int], train_to: int, origins: Sequence[int]) -> Mapping[int, Floats]:
    """ARIMA of hours by horizon in intervals, at some origins.

    Raises:
        Unavailable: statsmodels is not installed.
    """
    model = _statsmodels("statsmodels.tsa.arima.model").ARIMA
    return _filtered(series, horizons, train_to, origins, lambda hours: model(hours, order=ARIMA_ORDER))


def exponential(
    series: NodeSeries, horizons: Sequence[int], train_to: int, origins: Sequence[int]
) -> Mapping[int, Floats]:
    """Exponential smoothing of hours, additive, with a damped trend and a day's season; as `arima`.

    Raises:
        Unavailable: statsmodels is not installed.
    """
    model = _statsmodels("statsmodels.tsa.statespace.exponential_smoothing").ExponentialSmoothing
    return _filtered(
        series, horizons, train_to, origins,
        lambda hours: model(hours, trend=True, damped_trend=True, seasonal=DAY_HOURS),
    )  # fmt: skip


def _filtered(
    series: NodeSeries,
    horizons: Sequence[int],
    train_to: int,
    origins: Sequence[int],
    model: Callable[[Floats], Any],
) -> Mapping[int, Floats]:
    an_hour = max(1, round(3600 / series.step_s))
    # The hour ends with an origin's interval, so that nothing later is in it.
    phase = (origins[0] + 1) % an_hour
    usable = series.active[phase:]
    hours = usable[: len(usable) // an_hour * an_hour].reshape(-1, an_hour).mean(axis=1)
    known = (train_to - phase) // an_hour
    found = {steps: np.full(len(origins), np.nan) for steps in horizons}
    furthest = -(-max(horizons) // an_hour)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not converged is judged by its errors like any other
        state = model(hours[:known]).fit(disp=0) if _takes_disp(model) else model(hours[:known]).fit()
        for place, origin in enumerate(origins):
            upto = (origin + 1 - phase) // an_hour
            if upto > known:
                state, known = state.extend(hours[known:upto]), upto
            ahead = np.asarray(state.forecast(furthest))
            for steps in horizons:
                found[steps][place] = ahead[: -(-steps // an_hour)].mean()
    return MappingProxyType(found)


def _takes_disp(model: Callable[[Floats], Any]) -> bool:
    # Only some models of statsmodels can be told to print nothing.
    return "disp" in type(model(np.arange(60.0))).fit.__code__.co_varnames


def _statsmodels(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(
            "statsmodels is not installed", hint="pip install -r requirements/forecast.txt adds ARIMA and smoothing"
        ) from error
