"""Forecasts: what they may know, how they are judged, and how quantiles are kept honest."""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

import numpy as np
import pytest

from farside.errors import Unavailable
from farside.scheduler.energy import simple_forecasts
from farside.scheduler.energy.accuracy import coverage, pinball, smape_pct
from farside.scheduler.energy.busy_series import NodeSeries
from farside.scheduler.energy.catalog import Question
from farside.scheduler.energy.forecast import calibrated, forecast_max, forecast_mean
from farside.scheduler.energy.forecast_features import artifact_features, causal_features, next_max, next_mean, past_max
from farside.scheduler.energy.signal import FadingMax, RecentMax
from farside.scheduler.sim.energy.compare import compare
from farside.scheduler.table import Floats
from tests.support.busy_nodes import series_of, wandering

Classic = Callable[[NodeSeries, Sequence[int], int, Sequence[int]], Mapping[int, Floats]]


def another_future(series: NodeSeries, step: int) -> NodeSeries:
    active = series.active.copy()
    active[step:] = np.random.default_rng(3).permutation(active[step:])
    return series_of(active.tolist())


def test_means_and_maxima_ahead_begin_with_the_next_interval() -> None:
    values = np.array([1.0, 5.0, 3.0, 2.0])

    assert next_mean(values, 2)[:2].tolist() == [4.0, 2.5]
    assert next_mean(values, 2, with_now=True)[0] == 3.0
    assert next_max(values, 2)[:2].tolist() == [5.0, 3.0]
    assert np.isnan(next_max(values, 2)[2:]).all()
    assert past_max(values, 2).tolist() == [1.0, 5.0, 5.0, 3.0]
    assert np.isnan(next_mean(values, 9)).all()


def test_causal_features_of_an_interval_do_not_know_what_comes() -> None:
    series = wandering(8)

    here, elsewhere = causal_features(series), causal_features(another_future(series, 700))

    assert np.array_equal(here[:700], elsewhere[:700], equal_nan=True)
    assert not np.array_equal(here[700:], elsewhere[700:], equal_nan=True)


def test_the_artifacts_features_end_as_long_ago_as_told() -> None:
    series, ago_s = wandering(8), 36000.0

    here, elsewhere = (artifact_features(one, ago_s) for one in (series, another_future(series, 700)))

    assert np.array_equal(here[:760], elsewhere[:760], equal_nan=True)


def test_a_holiday_is_told_apart() -> None:
    series = wandering(3)

    plain, off = causal_features(series), causal_features(series, frozenset({4}))

    assert not np.array_equal(plain[:144], off[:144], equal_nan=True)
    assert np.array_equal(plain[144:], off[144:], equal_nan=True)


def test_trees_learn_a_day_that_repeats_itself() -> None:
    step = np.arange(20 * 144)
    series = series_of(np.round(50 + 20 * np.sin(step / 144 * 2 * np.pi)).tolist())

    made = forecast_mean(series, 36, 14 * 144)

    came, window = next_mean(series.active, 36), slice(14 * 144, 19 * 144)
    assert made.shrink > 0.5
    assert smape_pct(made.values[window], came[window]) < 0.5 * smape_pct(series.active[window], came[window])


def test_where_nothing_changes_nothing_is_forecast_to() -> None:
    series = series_of([50.0] * 1000)

    made = forecast_mean(series, 36, 800)

    assert made.values.tolist() == [50.0] * 1000


def test_a_model_is_trained_on_nothing_that_ends_after_the_training_time() -> None:
    series = wandering(14)

    one, other = (forecast_mean(each, 36, 1000).raw for each in (series, another_future(series, 1000)))

    assert one[:1000].tolist() == other[:1000].tolist()


def test_too_little_past_is_refused() -> None:
    with pytest.raises(ValueError, match="100 intervals before --train-to"):
        forecast_mean(wandering(3), 36, 136)


@pytest.mark.parametrize("bias", [-10.0, 0.0, 10.0])
@pytest.mark.parametrize("quantile", [0.5, 0.9])
def test_calibration_brings_a_biased_quantile_back(bias: float, quantile: float) -> None:
    chance = np.random.default_rng(2)
    came = chance.normal(30, 8, 6000)
    told = np.full(6000, np.quantile(came, quantile) + bias)

    moved = calibrated(told, came, quantile, 6, 100)

    assert coverage(moved[1500:], came[1500:]) == pytest.approx(quantile, abs=0.03)


def test_calibration_learns_of_a_miss_only_when_the_horizon_is_over() -> None:
    came = np.full(100, 50.0)

    moved = calibrated(np.zeros(100), came, 0.9, 10, 20)

    assert moved[:30].tolist() == [0.0] * 30
    assert moved[30] > 0


def test_quantiles_of_the_maximum_hold_as_often_as_they_say() -> None:
    series = wandering(42)

    made = forecast_max(series, 36, 2000)

    came = next_max(series.active, 36)
    held = [coverage(made.levels[2500:, place], came[2500:]) for place in range(3)]
    assert held == [pytest.approx(quantile, abs=0.06) for quantile in made.quantiles]
    assert np.isinf(made.levels[:2000]).all()


def test_errors_are_symmetric_and_blind_to_what_is_not_known() -> None:
    assert smape_pct(np.array([100.0, np.nan]), np.array([50.0, 1.0])) == pytest.approx(200 * 50 / 150)
    assert np.isnan(smape_pct(np.array([np.nan]), np.array([1.0])))
    assert pinball(np.array([10.0, 10.0]), np.array([12.0, 9.0]), 0.9) == pytest.approx((1.8 + 0.1) / 2)


def test_signals_forget_as_told() -> None:
    recent, fading = RecentMax(steps=(1, 3)), FadingMax(half_lives=(0, 1))

    seen = []
    for active in (8.0, 0.0, 0.0, 0.0):
        recent.watch(active)
        fading.watch(active)
        seen.append([*recent.values.tolist(), *fading.values.tolist()])

    assert seen == [[8, 8, 8, 8], [0, 8, 0, 4], [0, 8, 0, 2], [0, 0, 0, 1]]


def test_a_recent_maximum_is_that_of_a_plain_window() -> None:
    values = np.random.default_rng(4).integers(0, 100, 500).astype(float)
    recent = RecentMax(steps=(1, 7, 50))

    for step, value in enumerate(values):
        recent.watch(float(value))
        assert recent.values.tolist() == [past_max(values[: step + 1], steps)[-1] for steps in (1, 7, 50)]


def test_a_comparison_names_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> None:
        raise Unavailable("statsmodels is not installed", hint=module)

    monkeypatch.setattr(simple_forecasts, "_statsmodels", missing)

    scores = compare(Question(series=wandering(10), train_to=1000, begin=1000, end=1440))

    assert len(scores.remarks) == 2
    assert {one.method for one in scores.means} >= {"persistence", "boosted trees", "the day before"}


@pytest.mark.skipif(find_spec("statsmodels") is None, reason="statsmodels is not installed")
@pytest.mark.parametrize("classic", [simple_forecasts.arima, simple_forecasts.exponential])
def test_classics_forecast_from_what_was_known_at_each_origin(classic: Classic) -> None:
    series, origins = wandering(12), list(range(1500, 1600, 6))

    here, elsewhere = (classic(one, [6, 36], 1400, origins) for one in (series, another_future(series, 1560)))

    before = [place for place, origin in enumerate(origins) if origin < 1560]
    assert here[36][before].tolist() == elsewhere[36][before].tolist()
    assert np.isfinite(here[36]).all()
    assert smape_pct(here[6], next_mean(series.active, 6)[origins]) < 20
