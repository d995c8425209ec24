"""How much was in use over time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.sim.characterise.cluster_size import gpus_at
from farside.scheduler.sim.characterise.usage_over_time import bounded_step_s, edges, mean_use, peak_use
from farside.scheduler.sim.cluster import VcSize

jobs = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.integers(0, 8)), min_size=1, max_size=30)


def columns(found: list[tuple[int, int, int]]) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], ...]:
    return tuple(np.array(column, dtype=float) for column in zip(*found, strict=True))


@given(jobs)
def test_the_mean_of_each_interval_is_what_a_second_by_second_count_gives(found: list[tuple[int, int, int]]) -> None:
    start_s, duration_s, amount = columns(found)
    bounds_s = np.arange(0.0, 71.0, 7.0)

    second_by_second = [sum(a for s, d, a in found if s <= at < s + d) for at in range(70)]

    expected = np.array(second_by_second).reshape(10, 7).mean(axis=1)
    assert mean_use(start_s, duration_s, amount, bounds_s) == pytest.approx(expected)
    assert peak_use(start_s, duration_s, amount) == max(second_by_second)


def test_what_has_no_start_is_never_in_use() -> None:
    nothing = mean_use(np.array([np.nan]), np.array([5.0]), np.array([1.0]), np.array([0.0, 10.0]))

    assert nothing.tolist() == [0.0]


def test_edges_hold_all_of_the_time() -> None:
    assert edges(130.0, 250.0, 60.0).tolist() == [120.0, 180.0, 240.0, 300.0]
    assert edges(120.0, 120.0, 60.0).tolist() == [120.0, 180.0]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=20),
    st.lists(st.integers(-5, 60), min_size=1, max_size=20),
)
def test_gpus_over_time_are_the_sum_of_each_clusters_newest_entry(
    entries: list[tuple[str, int, int]], times: list[int]
) -> None:
    sizes = [VcSize(vc=vc, gpus=gpus, from_s=float(at)) for vc, at, gpus in entries]

    def newest(vc: str, at: int) -> int:
        own = sorted((one for one in sizes if one.vc == vc), key=lambda one: one.from_s)
        return [own[0], *(one for one in own if one.from_s <= at)][-1].gpus if own else 0

    found = gpus_at(sizes, np.array(times, dtype=float))

    assert found.tolist() == [sum(newest(vc, at) for vc in "abc") for at in times]


def test_steps_grow_where_there_would_be_too_many() -> None:
    assert bounded_step_s(0.0, 6000.0, 600.0, 10) == 600
    assert bounded_step_s(0.0, 60_000.0, 600.0, 10) == 9600
