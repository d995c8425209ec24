"""JobArrivalCheck: which nodes waiting jobs need, and how many are lacking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.energy.job_arrival import Headroom, nodes_lacking


@pytest.mark.parametrize(("needed", "powered", "lacking"), [(3, 5, 0), (5, 5, 0), (7, 5, 2)])
def test_what_is_not_on_is_lacking(needed: float, powered: float, lacking: float) -> None:
    assert nodes_lacking(needed, powered) == lacking


EVERYWHERE = dict.fromkeys(range(4), 8)


def headroom() -> Headroom:
    """Node 0 is busy, 1 is idle, 2 and 3 sleep."""
    return Headroom([8, 8, 8, 8], idle=[1], asleep=[2, 3])


def test_idle_nodes_are_filled_before_any_is_woken() -> None:
    room = headroom()

    assert room.fill(4, EVERYWHERE, may_wake=True) == 0
    assert list(room.called) == [1]
    assert room.fill(8, EVERYWHERE, may_wake=True) == 0
    assert list(room.called) == [1, 2]


def test_a_job_that_may_wake_none_has_only_what_is_idle() -> None:
    room = headroom()

    assert room.fill(16, EVERYWHERE, may_wake=False) == 8
    assert list(room.called) == [1]


def test_a_node_that_does_not_suit_is_not_needed() -> None:
    room = headroom()

    assert room.fill(4, {3: 8}, may_wake=True) == 0
    assert list(room.called) == [3]


def test_a_job_that_all_nodes_together_can_not_hold_is_known() -> None:
    room = Headroom([8, 8, 8], idle=[0], asleep=[1], reachable={0, 1})

    assert room.could_hold(16, {0: 8, 1: 8, 2: 8})
    assert not room.could_hold(17, {0: 8, 1: 8, 2: 8})


def test_it_is_spent_once_all_gpus_are_given() -> None:
    room = headroom()

    room.fill(23, EVERYWHERE, may_wake=True)
    assert not room.is_spent
    room.fill(1, EVERYWHERE, may_wake=True)
    assert room.is_spent


@given(jobs=st.lists(st.integers(1, 40), max_size=12), wake=st.booleans())
def test_no_more_nodes_are_needed_than_jobs_can_fill(jobs: list[int], wake: bool) -> None:
    room = headroom()

    lacking = sum(room.fill(gpus, EVERYWHERE, may_wake=wake) for gpus in jobs)

    given_gpus = sum(jobs) - lacking
    assert len(room.called) == -(-given_gpus // 8)
    assert given_gpus == min(sum(jobs), 24 if wake else 8)
