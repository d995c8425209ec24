"""Features of a series of busy nodes, for the forecasts: one row for each interval. PURE.

Every row of `causal_features` depends on that interval and earlier ones alone; a test scrambles the future and looks.
`artifact_features` are those of the paper's published code, for comparison: a row describes its own interval by what
was an hour and more before it, so that a mean of the rows of the *next* intervals has seen them.
"""

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from farside.scheduler.energy.busy_series import DAY_S, NodeSeries
from farside.scheduler.table import Floats

HOUR_S = 3600.0
# 1970-01-01 was a Thursday; Monday is 0.
EPOCH_WEEKDAY = 3
MEAN_HOURS = (1, 3, 6, 12, 24, 72)
EXTREME_HOURS = (3, 6, 12, 24, 48, 168)
LAG_HOURS = (1 / 6, 0.5, 1, 2, 3, 6, 12, 24, 48, 168)


def causal_features(series: NodeSeries, holidays: frozenset[int] = frozenset()) -> Floats:
    """Calendar, holidays, and what is busy now against means, deviations, extremes and lags: differences, not levels.

    Differences let a forecast of *change* carry over to levels that the past has not seen.

    Args:
        series: Busy nodes.
        holidays: Days since 1970-01-01.
    """
    active = series.active
    day, of_day_s = _days(series)
    weekday = (day + EPOCH_WEEKDAY) % 7
    is_holiday = np.isin(day, list(holidays)) | (weekday >= 5)
    columns = [of_day_s / HOUR_S, weekday, is_holiday, active, series.total - active]
    for hours in MEAN_HOURS:
        mean, deviation = _mean_and_deviation(active, _steps(series, hours))
        columns += [active - mean, deviation]
    for hours in EXTREME_HOURS:
        steps = _steps(series, hours)
        columns += [past_max(active, steps) - active, active + past_max(-active, steps)]
    columns += [active - lagged(active, _steps(series, hours)) for hours in LAG_HOURS]
    return np.column_stack(columns).astype(float)


def causal_row(series: NodeSeries, holidays: frozenset[int] = frozenset()) -> Floats:
    """The last row of `causal_features`, in time that does not grow with the series."""
    active, now = series.active, float(series.active[-1])
    day, of_day_s = (float(column[-1]) for column in _days(series, last=1))
    weekday = (day + EPOCH_WEEKDAY) % 7
    is_holiday = day in holidays or weekday >= 5
    row = [of_day_s / HOUR_S, weekday, float(is_holiday), now, float(series.total[-1]) - now]
    for hours in MEAN_HOURS:
        recent = active[-_steps(series, hours) :]
        # As `_mean_and_deviation` does it, to the last bit: trees split between nothing and next to nothing.
        mean = float(recent.sum()) / len(recent)
        spread = float((recent**2).sum()) / len(recent) - mean**2
        row += [now - mean, max(0.0, spread) ** 0.5]
    for hours in EXTREME_HOURS:
        recent = active[-_steps(series, hours) :]
        row += [float(recent.max()) - now, now - float(recent.min())]
    for steps in (_steps(series, hours) for hours in LAG_HOURS):
        row.append(now - float(active[-1 - steps]) if steps < len(active) else np.nan)
    return np.array(row)


def artifact_features(series: NodeSeries, ago_s: float = HOUR_S) -> Floats:
    """Calendar; mean, median and deviation over half an hour and an hour; what was busy 3 hours ago.

    All but the calendar ends ``ago_s`` before the row's interval: an hour in the published code. A row that stands for
    an interval ahead knows nothing of the future only if ``ago_s`` is at least that far.
    """
    active = series.active
    time = (series.start_s + np.arange(len(series)) * series.step_s).astype("datetime64[s]")
    day, of_day_s = _days(series)
    month, year = time.astype("datetime64[M]"), time.astype("datetime64[Y]")
    columns = [
        year.astype(int), month.astype(int) % 12, day - month.astype("datetime64[D]").astype(int), of_day_s // HOUR_S,
        of_day_s % HOUR_S, (day + EPOCH_WEEKDAY) % 7, day - year.astype("datetime64[D]").astype(int),
        (day + EPOCH_WEEKDAY) // 7,
    ]  # fmt: skip
    hour, ago = _steps(series, 1), _steps(series, ago_s / HOUR_S)
    for steps in (_steps(series, 0.5), hour):
        window = sliding_window_view(np.concatenate([np.full(steps - 1, np.nan), active]), steps)
        for of in (window.mean(axis=1), np.median(window, axis=1), window.std(axis=1, ddof=1)):
            columns.append(lagged(of, ago))
    ago = max(_steps(series, 3), ago + 1)  # of three intervals around it, the last must not be younger
    soft = 0.5 * lagged(active, ago) + 0.25 * (lagged(active, ago + 1) + lagged(active, ago - 1))
    return np.column_stack([*columns, lagged(active, ago), soft]).astype(float)


def next_mean(values: Floats, steps: int, *, with_now: bool = False) -> Floats:
    """The mean of the next ``steps`` values, NaN where the series ends before; ``with_now``: this one is the first."""
    windows = sliding_window_view(values, steps).mean(axis=1) if steps <= len(values) else np.zeros(0)
    return _ahead(windows, len(values), 0 if with_now else 1)


def next_max(values: Floats, steps: int) -> Floats:
    """The largest of the next ``steps`` values, NaN where the series ends before."""
    windows = sliding_window_view(values, steps).max(axis=1) if steps <= len(values) else np.zeros(0)
    return _ahead(windows, len(values), 1)


def past_max(values: Floats, steps: int) -> Floats:
    """The largest of the last ``steps`` values, this one included; of fewer at the start."""
    padded = np.concatenate([np.full(steps - 1, -np.inf), values])
    largest: Floats = sliding_window_view(padded, steps).max(axis=1)
    return largest


def lagged(values: Floats, steps: int) -> Floats:
    """The values of ``steps`` intervals ago, NaN at the start."""
    return np.concatenate([np.full(min(steps, len(values)), np.nan), values[: max(0, len(values) - steps)]])


def _ahead(windows: Floats, count: int, skip: int) -> Floats:
    ahead = np.full(count, np.nan)
    windows = windows[skip:]
    ahead[: len(windows)] = windows
    return ahead


def _mean_and_deviation(values: Floats, steps: int) -> tuple[Floats, Floats]:
    """Mean and deviation of the last ``steps`` values; fewer at the start."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    squares = np.concatenate([[0.0], np.cumsum(values**2)])
    after = np.arange(1, len(values) + 1)
    before = np.maximum(0, after - steps)
    count = after - before
    mean = (sums[after] - sums[before]) / count
    spread = (squares[after] - squares[before]) / count - mean**2
    return mean, np.sqrt(np.maximum(0.0, spread))


def _days(series: NodeSeries, last: int = 0) -> tuple[Floats, Floats]:
    """Days since 1970 and seconds of the day; of the ``last`` intervals alone, or of all."""
    time_s = series.start_s + np.arange(len(series) - last if last else 0, len(series)) * series.step_s
    # A sum of fractional steps may be a rounding error below midnight, and so on the day before.
    time_s = time_s.round()
    day = np.floor(time_s / DAY_S)
    return day, time_s - day * DAY_S


def _steps(series: NodeSeries, hours: float) -> int:
    return max(1, round(hours * HOUR_S / series.step_s))
