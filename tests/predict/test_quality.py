"""What an order is worth, and how far off expectations are."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.predict.estimate_quality import quality, quantiles, queue_saving, ranks, spearman

values = st.lists(st.integers(1, 10**9).map(float), min_size=2, max_size=50)


@given(values)
def test_the_true_order_saves_all_and_its_reverse_as_much_the_other_way(true: list[float]) -> None:
    work = np.array(true)

    assert queue_saving(work, work) == pytest.approx(1.0)
    if len(set(true)) > 1:
        assert queue_saving(-work, work) <= 0


@given(values)
def test_to_expect_the_same_of_all_is_chance(true: list[float]) -> None:
    work = np.array(true)
    saving = queue_saving(np.ones(len(work)), work)

    assert saving == pytest.approx(0.0, abs=1e-6) or len(set(true)) == 1


def test_one_long_job_in_front_costs_more_than_many_short_ones_out_of_order() -> None:
    true = np.array([1.0, 2.0, 3.0, 4.0, 1000.0])
    shorts_reversed, long_first = np.array([4.0, 3.0, 2.0, 1.0, 5.0]), np.array([2.0, 3.0, 4.0, 5.0, 1.0])

    assert queue_saving(shorts_reversed, true) > 0.98
    assert queue_saving(long_first, true) < -0.9
    assert spearman(shorts_reversed, true) < spearman(long_first, true) + 0.01


def test_ranks_of_equal_values_are_shared() -> None:
    assert ranks(np.array([5.0, 1.0, 5.0, 9.0])).tolist() == [2.5, 1.0, 2.5, 4.0]


def test_errors_are_factors() -> None:
    found = quality(np.array([100.0, 400.0, 50.0]), np.array([100.0, 100.0, 100.0]))

    assert found.log_error == pytest.approx(math.log(2))
    assert found.within_2 == pytest.approx(2 / 3)
    assert quantiles(np.array([100.0, 400.0]), np.array([100.0, 100.0]), [0.0, 1.0]).tolist() == [1.0, 4.0]


def test_of_one_job_nothing_is_said() -> None:
    assert math.isnan(quality(np.array([1.0]), np.array([1.0])).saving)
