"""Quantities over time in bounded memory: no area is lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.sim.result.series import SeriesRecorder

steps = st.lists(
    st.tuples(st.floats(0.0, 1e4, allow_subnormal=False), st.integers(0, 100), st.integers(0, 5)),
    min_size=1,
    max_size=60,
)


@given(steps, st.floats(0.0, 1e5))
def test_the_mean_over_all_time_is_exact_whatever_was_merged(rows: list[tuple[float, int, int]], rest_s: float) -> None:
    recorder = SeriesRecorder(2, points=8)
    now_s, areas = 1.5e9, np.zeros(2)
    start_s = now_s
    for at, (wait_s, one, other) in enumerate(rows):
        recorder.add(now_s, (one, other))
        after_s = now_s + (wait_s if at + 1 < len(rows) else rest_s)
        areas += np.array([one, other]) * (after_s - now_s)
        now_s = after_s

    series = recorder.finish(now_s)

    assert len(series.at_s) <= 8
    span_s = now_s - start_s
    assert series.mean == pytest.approx(areas / span_s if span_s else np.zeros(2), abs=1e-6)
    assert list(series.peak) == [max(row[1] for row in rows), max(row[2] for row in rows)]


def test_means_stand_where_the_values_were() -> None:
    recorder = SeriesRecorder(1, points=4)
    recorder.add(0.0, (2.0,))
    recorder.add(6.0, (0.0,))

    series = recorder.finish(7.0)

    assert list(series.at_s) == [0.0, 2.0, 4.0, 6.0]
    assert [mean for (mean,) in series.means] == [2.0, 2.0, 2.0, 0.0]


def test_nothing_is_a_series_of_no_stretches() -> None:
    assert len(SeriesRecorder(1).finish(0.0).at_s) == 0
