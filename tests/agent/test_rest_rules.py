"""When idle nodes turn down, and when they stop doing so."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.rest.rules import Rest, RestCommand, next_rest

AFTER_S = 300.0


def rested(*looks: tuple[float, bool], after_s: float | None = AFTER_S) -> tuple[Rest, RestCommand | None]:
    """After looks at these times, at each of which the node is idle or not."""
    rest, command = Rest(), None
    for now_s, is_idle in looks:
        rest, command = next_rest(rest, is_idle=is_idle, now_s=now_s, after_s=after_s)
    return rest, command


def test_a_node_rests_once_it_has_been_idle_long_enough() -> None:
    assert rested((0.0, True), (299.0, True))[1] is None

    rest, command = rested((0.0, True), (299.0, True), (300.0, True))

    assert rest.is_resting
    assert command is RestCommand.REST


def test_idle_time_begins_anew_when_something_was_there() -> None:
    assert rested((0.0, True), (200.0, False), (210.0, True), (500.0, True))[1] is None
    assert rested((0.0, True), (200.0, False), (210.0, True), (510.0, True))[1] is RestCommand.REST


@pytest.mark.parametrize(("is_idle", "after_s"), [(False, AFTER_S), (True, None)])
def test_anything_that_comes_ends_a_rest(is_idle: bool, after_s: float | None) -> None:
    rest, _ = rested((0.0, True), (300.0, True))

    after, command = next_rest(rest, is_idle=is_idle, now_s=301.0, after_s=after_s)

    assert not after.is_resting
    assert command is RestCommand.RESUME


def test_rests_do_not_follow_each_other_at_once() -> None:
    looks = ((0.0, True), (300.0, True), (400.0, False), (401.0, True))

    assert rested(*looks, (699.0, True))[1] is None
    assert rested(*looks, (701.0, True))[1] is RestCommand.REST


def test_a_node_that_may_not_never_does() -> None:
    assert rested((0.0, True), (1e9, True), after_s=None) == (Rest(idle_since_s=0.0), None)


@given(st.lists(st.tuples(st.floats(0, 1000), st.booleans(), st.sampled_from([None, 0.0, 10.0])), max_size=30))
def test_a_node_with_something_on_it_is_never_left_turned_down(looks: list[tuple[float, bool, float | None]]) -> None:
    rest, now_s = Rest(), 0.0
    for later_s, is_idle, after_s in looks:
        now_s += later_s
        was, (rest, command) = rest, next_rest(rest, is_idle=is_idle, now_s=now_s, after_s=after_s)

        assert not (rest.is_resting and (not is_idle or after_s is None))
        assert (command is not None) == (rest.is_resting != was.is_resting)
        assert is_idle or math.isinf(rest.idle_since_s)
