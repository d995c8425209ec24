"""Speeds of measured starts, by comparison with consolidated starts of their kind."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.admission.history import History
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.placement.measured_speed import (
    CONSOLIDATED,
    ITERATIONS_MIN,
    SLOWEST,
    MeasuredSpeeds,
    MeasuredStart,
    Slowed,
    slowed,
)
from farside.scheduler.placement.skew import Skew
from farside.scheduler.placement.slowdown_sample import HISTORY, OF_ONE_USER, Sample
from farside.scheduler.slowdown import MeasuredSlowdown


def start(spread: float, iteration_s: float, *, kind: str = "a", skew: float = 0.7, **more: float) -> MeasuredStart:
    told = MeasuredStart(kind=kind, at_s=0.0, skew=skew, spread=spread, iterations=50, iteration_s=iteration_s)
    return replace(told, **more)  # type: ignore[arg-type]


STARTS = st.lists(
    st.builds(
        MeasuredStart,
        kind=st.sampled_from(["a", "b", "c"]),
        at_s=st.just(0.0),
        skew=st.sampled_from([0.0, 0.1, 0.7]),
        spread=st.sampled_from([0.0, 1e-12, 0.5, 1.0]),
        iterations=st.sampled_from([1, ITERATIONS_MIN, 100]),
        iteration_s=st.floats(0.01, 100),
    ),
    max_size=30,
)


def samples_of(starts: list[MeasuredStart]) -> list[Sample]:
    speeds = MeasuredSpeeds()
    return [sample for one in starts for sample in speeds.add(one)]


@given(STARTS)
def test_no_start_counts_twice_and_no_speed_is_above_that_of_a_consolidated_one(starts: list[MeasuredStart]) -> None:
    found = samples_of(starts)

    known = [one for one in starts if one.iterations >= ITERATIONS_MIN and one.skew > 0]
    with_peer = {one.kind for one in starts if one.iterations >= ITERATIONS_MIN and not one.is_spread}
    assert len(found) == sum(one.kind in with_peer for one in known)
    assert all(0 < one.speed <= 1 and (one.spread > 0 or one.speed == 1) for one in found)


@given(STARTS)
def test_what_a_kind_teaches_does_not_depend_on_others_between_its_starts(starts: list[MeasuredStart]) -> None:
    def of_kind(kind: str) -> list[Sample]:
        return samples_of([one for one in starts if one.kind == kind])

    alone = [sample for kind in ("a", "b", "c") for sample in of_kind(kind)]

    assert sorted(samples_of(starts), key=repr) == sorted(alone, key=repr)


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300))
def test_whatever_times_are_told_no_start_is_infinitely_slow(alone_s: float, spread_s: float) -> None:
    found = slowed(samples_of([start(0.0, alone_s), start(1.0, spread_s)]), 0.4, is_over=True)

    assert found is not None
    assert 1 <= found.factor <= 1 / SLOWEST
    assert MeasuredSlowdown(packlimit=0.4, over=found).speed_at(0.7, 1.0) > 0


def test_a_spread_start_is_as_fast_as_the_median_of_the_consolidated_ones_says() -> None:
    found = samples_of([start(0.0, 1.0), start(0.0, 2.0), start(0.0, 9.0), start(1.0, 4.0)])

    assert found[-1] == Sample(skew=0.7, spread=1.0, speed=0.5)


def test_a_spread_start_that_came_first_waits_for_a_consolidated_one() -> None:
    speeds = MeasuredSpeeds()

    assert speeds.add(start(0.5, 3.0)) == ()
    assert speeds.add(start(0.0, 1.0, kind="b")) == (Sample(skew=0.7, spread=0.0, speed=1.0),)
    assert [one.speed for one in speeds.add(start(0.0, 1.5))] == [0.5, 1.0]


def test_a_start_whose_skew_is_not_known_is_compared_with_and_teaches_nothing() -> None:
    found = samples_of([start(0.0, 1.0, skew=0.0), start(1.0, 2.0, skew=0.0), start(1.0, 2.0)])

    assert found == [Sample(skew=0.7, spread=1.0, speed=0.5)]


def test_what_rounding_leaves_is_not_spread() -> None:
    assert not start(CONSOLIDATED, 1.0).is_spread


def test_the_loss_of_spread_starts_is_told_apart_by_the_limit() -> None:
    found = samples_of([start(0.0, 1.0), start(1.0, 1.5), start(0.5, 2.5), start(1.0, 1.0, skew=0.1)])

    assert slowed(found, 0.4, is_over=True) == Slowed(factor=2.0, spread=0.75, starts=2)
    assert slowed(found, 0.4, is_over=False) == Slowed(factor=1.0, spread=1.0, starts=1)
    assert slowed(found[:1], 0.4, is_over=True) is None


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 1), st.floats(1, 10))
def test_a_measured_slowdown_grows_with_the_spread_up_to_what_was_measured(
    spread: float, more: float, measured_at: float, factor: float
) -> None:
    slowdown = MeasuredSlowdown(packlimit=0.4, over=Slowed(factor=factor, spread=measured_at, starts=1))

    slow, slower = slowdown.speed_at(0.7, min(spread, more)), slowdown.speed_at(0.7, max(spread, more))

    assert 1 / factor <= slower * (1 + 1e-12)
    assert slower <= slow <= 1
    assert slowdown.speed_at(0.7, measured_at) == pytest.approx(1 / factor)
    # Nothing is known of models on the other side, of unknown ones, and consolidated nobody is slowed.
    assert slowdown.speed_at(0.1, spread) == slowdown.speed_at(0.0, spread) == slowdown.speed_at(0.7, 0.0) == 1.0


def test_a_history_says_when_its_limit_was_learned_and_from_how_much() -> None:
    history = History(Fifo(), Skew(packlimit=1.0, relearn_jobs=4), is_measured=True)
    for at_s, one in enumerate(
        (start(0.0, 1.0), start(1.0, 1.6), start(0.0, 1.0, kind="b", skew=0.1), start(1.0, 1.0, kind="b", skew=0.1))
    ):
        history.add_start(replace(one, at_s=float(at_s)))

    assert 0.1 < history.placement.packlimit < 0.7  # type: ignore[attr-defined]
    assert (history.learned_at_s, history.learned_from) == (3.0, 4)
    assert (history.measured_starts, history.spread_starts) == (4, 2)


@pytest.mark.parametrize("told", [0, 3])
def test_with_too_few_starts_the_limit_stays(told: int) -> None:
    history = History(Fifo(), Skew(packlimit=1.0, relearn_jobs=4), is_measured=True)
    for _ in range(told):
        history.add_start(start(0.0, 1.0))

    assert history.placement == Skew(packlimit=1.0, relearn_jobs=4)
    assert history.learned_from == 0


def test_a_history_keeps_what_others_told_however_much_one_user_tells() -> None:
    history = History(Fifo(), Skew(relearn_jobs=10**6), is_measured=True)
    for user, told in (("ann", OF_ONE_USER // 2), ("eve", 2 * HISTORY)):
        for at in range(told):
            history.add_start(replace(start(0.0, 1.0, kind=f"{user} {at}"), user=user))

    assert Counter(one.user for one in history.samples) == {"ann": OF_ONE_USER // 2, "eve": OF_ONE_USER}
    assert history.samples.seen == history.measured_starts
