"""A glet's round: who runs next, in which batch, when, and who is given up."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.sharing.glet.round import Dispatch, GletRound, Pace, Slot, Wake, look
from farside.scheduler.sim.serving.arrivals import DROPPED, LATE, MET, ArrivedQueue, outcome

# 10 ms and 5 ms a request.
LATENCY_S = tuple(0.010 + 0.005 * count for count in range(1, 9))
SLO_S = 0.1


def slot(model: str = "a", batch: int = 4) -> Slot:
    return Slot(model, batch, LATENCY_S)


def queue(*times_s: float, slo_s: float = SLO_S) -> ArrivedQueue:
    return ArrivedQueue(list(times_s), slo_s)


def test_an_idle_glet_runs_what_there_is_at_once() -> None:
    assert look(GletRound(slots=[slot()], cycle_s=0.05), {"a": queue(0.0, 0.01)}, 0.02) == Dispatch("a", 2)


def test_without_early_a_batch_waits_until_it_is_full_or_its_turn_has_come_or_its_deadline_is_near() -> None:
    glet = GletRound(slots=[slot()], cycle_s=0.05, early=False, last_s={"a": 0.0})

    assert look(glet, {"a": queue(0.0, 0.01)}, 0.02) == Wake(0.05)
    assert look(glet, {"a": queue(0.0, 0.01, 0.015, 0.02)}, 0.02) == Dispatch("a", 4)
    # The fourth comes before the turn.
    assert look(GletRound(slots=[slot()], cycle_s=0.05, early=False, last_s={"a": 0.0}),
                {"a": queue(0.0, 0.01, 0.015, 0.03)}, 0.02) == Wake(0.03)  # fmt: skip
    glet.last_s["a"] = 0.0
    assert look(glet, {"a": queue(0.0)}, 0.05) == Dispatch("a", 1)


def test_with_nothing_to_do_a_glet_wakes_for_the_next_request() -> None:
    assert look(GletRound(slots=[slot()], cycle_s=0.05), {"a": queue(0.5)}, 0.0) == Wake(0.5)
    assert look(GletRound(slots=[slot()], cycle_s=0.05), {"a": queue()}, 0.0) == Wake(math.inf)


def test_the_model_whose_oldest_request_can_wait_least_goes_first() -> None:
    glet = GletRound(slots=[slot("a"), slot("b")], cycle_s=0.08)

    assert look(glet, {"a": queue(0.0), "b": queue(0.01, slo_s=0.05)}, 0.02) == Dispatch("b", 1)


def test_what_can_not_be_answered_in_time_is_dropped_and_those_behind_it_are_served() -> None:
    waiting = queue(0.0, 0.0, 0.095)

    assert look(GletRound(slots=[slot()], cycle_s=0.05), {"a": waiting}, 0.096) == Dispatch("a", 1)
    assert list(waiting.became[:2]) == [DROPPED, DROPPED]


def test_a_model_catches_up_by_a_larger_batch_than_planned_where_that_makes_nobody_late() -> None:
    times = [0.0] * 8
    alone = GletRound(slots=[slot()], cycle_s=0.05)
    # The other model's batch and this one's fill the cycle.
    shared = GletRound(slots=[slot("a"), slot("b")], cycle_s=LATENCY_S[3] * 2)

    assert look(alone, {"a": queue(*times)}, 0.0) == Dispatch("a", 8)
    assert look(shared, {"a": queue(*times), "b": queue()}, 0.0) == Dispatch("a", 4)
    # The oldest has no time for more than six.
    assert look(alone, {"a": queue(*times)}, SLO_S - LATENCY_S[5]) == Dispatch("a", 6)


def test_answers_are_counted_by_their_deadline() -> None:
    answered = queue(0.0, 0.01, 0.05)
    assert answered.waiting(0.06) == 3

    answered.take(3, 0.105)
    found = outcome(answered.became)

    assert list(answered.became) == [LATE, MET, MET]
    assert (found.requests, found.met, found.late, found.dropped) == (3, 2, 1, 0)
    assert found.violated_share == pytest.approx(1 / 3)


@given(seed=st.integers(0, 10**6), early=st.booleans(), models=st.integers(1, 3))
def test_a_round_loses_and_doubles_nobody_and_always_goes_on(seed: int, early: bool, models: int) -> None:
    rng = random.Random(seed)
    names = "abc"[:models]
    queues = {
        name: queue(*sorted(rng.uniform(0, 1) for _ in range(rng.randint(0, 60))), slo_s=rng.choice((0.03, 0.1, 0.4)))
        for name in names
    }
    glet = GletRound(slots=[slot(name, rng.randint(1, 8)) for name in names], cycle_s=rng.uniform(0.01, 0.2),
                     early=early)  # fmt: skip

    ends = run_alone(glet, queues)

    for name, one in queues.items():
        assert one.head == len(one.times_s), name
        assert set(one.became) <= {MET, DROPPED}, name  # the planned time is the real one, so nobody is late
    assert ends == sorted(ends)


@pytest.mark.parametrize("times", [1.05, 1.2, 1.5])
def test_twice_the_load_leaves_as_many_answers_in_time_where_batches_take_longer_than_planned(times: float) -> None:
    """Else each batch begins when its oldest request just has the planned time left, and nobody's answer is in time."""
    # A batch of four in 30 ms is 133 a second.
    requests = queue(*(at / 266 for at in range(2660)))

    run_alone(GletRound(slots=[slot()], cycle_s=0.05), {"a": requests}, times=times)

    assert outcome(requests.became).met >= 0.85 * 10 * 4 / (times * LATENCY_S[3])


def test_a_batch_that_once_stood_still_does_not_have_all_requests_dropped_from_then_on() -> None:
    glet = GletRound(slots=[slot()], cycle_s=0.05)
    for _ in range(40):
        glet.paces["a"].ended(LATENCY_S[7], 1000.0)
    requests = queue(*(at / 10 for at in range(100)), slo_s=0.03)

    run_alone(glet, {"a": requests})

    # Each is dropped that would be in time were it not for the batches of before.
    assert list(requests.became[-60:]) == [MET] * 60
    assert DROPPED in requests.became


def test_a_glet_that_has_fallen_behind_drops_nothing_that_another_one_can_answer() -> None:
    behind, quick = (GletRound(slots=[slot()], cycle_s=0.05) for _ in range(2))
    for _ in range(40):
        behind.paces["a"].ended(LATENCY_S[7], 1000.0)
    beside = {"a": (behind, quick)}

    assert look(behind, {"a": queue(0.0, slo_s=0.05)}, 0.0, beside) == Dispatch("a", 1)
    # Alone it would have given the request up.
    assert look(behind, {"a": queue(0.0, slo_s=0.05)}, 0.0) == Wake(math.inf)


def test_a_model_that_fails_on_a_glet_is_tried_there_with_its_oldest_request_alone_and_ever_more_rarely() -> None:
    glet = GletRound(slots=[slot("a"), slot("b")], cycle_s=0.05)
    tried_s = list[float]()
    glet.leave_out("a", 0.0)

    for at in range(60 * 128):
        now_s = at / 128
        found = look(glet, {"a": queue(now_s, now_s), "b": queue()}, now_s)
        if isinstance(found, Dispatch):
            assert found == Dispatch("a", 1)
            tried_s.append(now_s)
        glet.leave_out("a", now_s)  # told again: nothing changes

    assert tried_s == pytest.approx([0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 22.7, 32.7, 42.7, 52.7], abs=0.1)
    assert look(glet, {"a": queue(60.0), "b": queue(60.0)}, 60.0) == Dispatch("b", 1)
    glet.take_in("a")
    assert look(glet, {"a": queue(60.0, 60.0), "b": queue()}, 60.0) == Dispatch("a", 2)


def test_a_try_drops_nobody_who_is_in_time_alone_but_not_in_a_full_batch() -> None:
    glet = GletRound(slots=[slot(batch=4)], cycle_s=0.05)
    glet.leave_out("a", -1.0)
    waiting = queue(0.0, 0.0, 0.0, 0.0)

    assert look(glet, {"a": waiting}, SLO_S - LATENCY_S[0]) == Dispatch("a", 1)
    assert DROPPED not in waiting.became


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0, 10)), max_size=100))
def test_no_batch_is_expected_to_take_several_times_as_long_as_planned(
    batches: list[tuple[float, float]],
) -> None:
    pace = Pace()
    for planned_s, took_s in batches:
        pace.ended(planned_s, took_s)

    longest_s = max([0.0, *(planned_s for planned_s, _ in batches)])
    assert abs(pace.mean_s) <= 1.001 * longest_s
    assert 0 <= pace.late_s <= 5.001 * longest_s


def run_alone(glet: GletRound, queues: dict[str, ArrivedQueue], *, times: float = 1.0) -> Sequence[float]:
    """Plays a glet by itself whose batches take so many times as long as planned; the times at which it was free."""
    now_s, ends = 0.0, list[float]()
    for _ in range(4000):
        found = look(glet, queues, now_s)
        if isinstance(found, Dispatch):
            taken = next(each for each in glet.slots if each.model == found.model)
            planned_s = taken.latency_s[found.requests - 1]
            glet.paces[found.model].ended(planned_s, times * planned_s)
            now_s += times * planned_s
            queues[found.model].take(found.requests, now_s)
            ends.append(now_s)
        elif found.at_s == math.inf:
            return ends
        else:
            assert found.at_s > now_s, "it would look again at once, without end"
            now_s = found.at_s
    raise AssertionError("it does not end")
