"""An order as priorities."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.slurm.priority import changes

LOW, HIGH = 100, 200
priorities = st.lists(st.integers(0, 300), max_size=40)


def after(current: list[int], *, low: int = LOW, high: int = HIGH) -> list[int]:
    found = list(current)
    for at, priority in changes(current, low=low, high=high):
        found[at] = priority
    return found


@given(priorities)
def test_priorities_fall_strictly_and_lie_in_the_band(current: list[int]) -> None:
    found = after(current)

    assert all(above > below for above, below in pairwise(found))
    assert all(LOW < priority < HIGH for priority in found)


@given(priorities)
def test_what_is_in_order_is_left_alone(current: list[int]) -> None:
    assert changes(after(current), low=LOW, high=HIGH) == ()


@given(st.lists(st.integers(2_000_000_001, 2_999_999_999), max_size=60, unique=True), st.integers(0, 60))
def test_one_that_comes_costs_one_change(there: list[int], at: int) -> None:
    in_order = after(sorted(there, reverse=True), low=2_000_000_000, high=3_000_000_000)
    at = min(at, len(in_order))
    gaps = zip([3_000_000_000, *in_order], [*in_order, 2_000_000_000], strict=True)
    current = [*in_order[:at], 1, *in_order[at:]]

    if min(above - below for above, below in gaps) > 1:
        assert [place for place, _ in changes(current)] == [at]


def test_a_gap_that_is_too_narrow_renews_all() -> None:
    assert changes([151, 1, 150], low=LOW, high=HIGH) == ((0, 175), (1, 150), (2, 125))


def test_more_jobs_than_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        changes([1] * 100, low=LOW, high=HIGH)
