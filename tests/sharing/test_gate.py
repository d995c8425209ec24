"""The gate before a queue: who is refused as it comes, and that as many are served as without it."""

from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.sharing.glet.gate import Gate
from farside.scheduler.sharing.glet.round import GletRound, Slot
from farside.scheduler.sim.serving.arrivals import DROPPED, LATE, MET, ArrivedQueue, GatedQueue, outcome
from farside.serve.queues import RequestQueue, Waiting
from tests.sharing.test_round import LATENCY_S, run_alone

SLO_S = 0.2


def closed(*, served: int = 100, planned: float = 0.0) -> Gate:
    """One whose queue has given requests up for a second, in which ``served`` rows were served; it is 1.0 now."""
    gate = Gate(slo_s=SLO_S)
    gate.plan(planned)
    for at in range(11):
        gate.gave_up(at / 10)
        if at == 0:
            gate.took(served)
    return gate


def let_in(gate: Gate, rate: float, since_s: float, seconds: float) -> float:
    """Rows a second that are let in of ``rate``, while the queue gives one up each tenth of a second."""
    count = 0
    for at in range(int(rate * seconds)):
        now_s = since_s + at / rate
        if at % max(1, int(rate / 10)) == 0:
            gate.gave_up(now_s)
        if gate.is_open(now_s):
            gate.enter(1)
            gate.took(1)
            count += 1
    return count / seconds


def test_a_gate_is_open_until_requests_are_given_up_for_a_while() -> None:
    gate = Gate(slo_s=SLO_S)
    assert gate.is_open(0.0)
    for at in range(5):
        gate.gave_up(at / 10)
    gate.took(1)

    assert all(gate.is_open(0.5) for _ in range(100))


def test_a_plan_that_promises_as_much_leaves_a_closed_gate_as_it_is() -> None:
    gate = closed(planned=5.0)
    before = gate.rate

    gate.plan(5.0)
    kept = gate.rate
    gate.plan(6.0)

    assert kept == before
    assert gate.rate == float("inf")


def test_what_was_served_within_a_window_is_let_in_as_well_if_it_comes_at_once() -> None:
    gate = closed(served=100)
    gate.gave_up(1.9)

    at_once = 0
    while gate.is_open(1.99):
        gate.enter(1)
        at_once += 1

    assert at_once >= 100


def test_a_closed_gate_lets_in_a_little_more_than_was_served_and_spreads_it() -> None:
    gate = closed(served=100)
    entered = list[int]()
    for at in range(200):
        if gate.is_open(1.0 + at / 400):
            gate.enter(1)
            entered.append(at)

    # 100 a second were served: 125 are let in, which half a second has 62 of.
    assert len(entered) == pytest.approx(62, abs=2)
    assert max(b - a for a, b in pairwise(entered)) <= 4


def test_a_gate_lets_in_what_the_plan_promises_whatever_was_served() -> None:
    gate = closed(served=0, planned=80.0)

    assert let_in(gate, 400.0, 1.0, 0.9) == pytest.approx(80, rel=0.05)


def test_a_gate_opens_where_nothing_is_given_up_any_more_and_with_a_new_plan() -> None:
    gate = closed(served=10)
    assert not gate.is_open(1.0)
    assert all(gate.is_open(2.01) for _ in range(50))

    gate = closed(served=10)
    gate.plan(500.0)
    assert all(gate.is_open(1.001) for _ in range(50))


def test_a_gate_that_lets_in_what_is_served_goes_up_with_it() -> None:
    gate = closed(served=100)
    for second in range(1, 9):
        let_in(gate, 400.0, float(second), 1.0)

    assert gate.rate > 200


@given(st.lists(st.tuples(st.sampled_from(["come", "gave", "took"]), st.floats(0, 0.4)), max_size=80))
def test_a_gate_never_refuses_more_than_a_second_and_more_without_one_given_up(steps: list[tuple[str, float]]) -> None:
    gate, now_s, gave_up_s = Gate(slo_s=SLO_S), 0.0, -9.0
    for what, after_s in steps:
        now_s += after_s
        if what == "gave":
            gate.gave_up(now_s)
            gave_up_s = now_s
        elif what == "took":
            gate.took(3)
        elif gate.is_open(now_s):
            gate.enter(1)
        else:
            assert now_s - gave_up_s <= 1.0


def test_a_gated_queue_drops_at_the_gate_and_answers_the_rest_by_their_deadlines() -> None:
    gated = GatedQueue([1.0, 1.001, 1.002, 1.003, 3.0], SLO_S)
    gated.gate = closed(served=0)

    assert [gated.waiting(at_s) for at_s in (0.5, 1.0, 1.01)] == [0, 0, 1]
    assert gated.full_s(2) == 3.0
    assert gated.deadline_s() == 1.001 + SLO_S
    gated.take(1, 1.1)
    assert gated.waiting(3.0) == 1
    gated.take(1, 3.3)
    gated.end()

    assert list(gated.became) == [DROPPED, MET, DROPPED, DROPPED, LATE]


@pytest.mark.parametrize("rate", [50.0, 130.0, 140.0, 266.0, 500.0])
def test_as_many_are_served_with_a_gate_as_without(rate: float) -> None:
    times = [at / rate for at in range(int(20 * rate))]
    free, gated = ArrivedQueue(times, SLO_S), GatedQueue(times, SLO_S)

    for queue in (free, gated):
        run_alone(GletRound(slots=[Slot("a", 4, LATENCY_S)], cycle_s=0.05), {"a": queue})

    assert outcome(gated.became).met >= 0.98 * outcome(free.became).met
    # Of 500 a second more than half need not come to the queue at all.
    assert (gated.refused > 0.5 * len(times)) == (rate == 500.0)


def test_answers_have_time_for_their_way_while_requests_are_refused() -> None:
    """With 500 a second and room for 266 each answer came as late as it may, and its client had it after the SLO."""
    rate = 500.0
    times = [at / rate for at in range(int(20 * rate))]
    queue = GatedQueue(times, SLO_S)
    waits = list[float]()
    taken = queue.take

    def take(count: int, answered_s: float) -> None:
        waits.append(answered_s - (queue.deadline_s() + queue.gate.way_s(SLO_S) - SLO_S))
        taken(count, answered_s)

    with patch.object(queue, "take", take):
        run_alone(GletRound(slots=[Slot("a", 4, LATENCY_S)], cycle_s=0.05), {"a": queue})

    assert max(waits[: len(waits) // 20]) == pytest.approx(SLO_S, rel=0.02), "before requests are refused"
    assert max(waits[len(waits) // 5 : -20]) <= 0.96 * SLO_S
    assert outcome(queue.became).late == 0


@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize(("refused", "kept_s"), [(0, 0.0), (4, 0.0), (5, 0.05 * SLO_S)])
def test_answers_have_all_of_their_time_unless_a_twentieth_is_refused(refused: int, kept_s: float, rows: int) -> None:
    """A burst closes the gate for a second or two: what is in time then is answered."""
    gate = closed()
    gate.took(100 * rows)
    for _ in range(refused):
        gate.refused(rows)
    gate.gave_up(1.9)
    gate.gave_up(2.1)

    assert gate.way_s(SLO_S) == pytest.approx(kept_s)


def test_a_model_that_takes_nearly_the_slo_is_served_while_requests_are_refused() -> None:
    """With time for the way of an answer none would be in time, and the gate would stay closed for ever."""
    times = [at / 200 for at in range(4000)]
    queue = GatedQueue(times, SLO_S)

    run_alone(GletRound(slots=[Slot("a", 1, [0.97 * SLO_S])], cycle_s=SLO_S), {"a": queue})

    assert outcome(queue.became).met >= 0.5 * 20 / SLO_S


def waiting(now_s: float, within_s: float) -> Waiting:
    return Waiting(
        model="a", rows=1, inputs=(), arrived_s=now_s, deadline_s=now_s + within_s, encode=lambda _: None,
        answer=lambda _: None, fail=lambda _: None,
    )  # fmt: skip


@pytest.mark.parametrize(("within_s", "is_open"), [(SLO_S, False), (0.5 * SLO_S, True)])
def test_clients_that_want_their_answers_sooner_than_the_slo_close_no_gate(within_s: float, is_open: bool) -> None:
    queue = RequestQueue(lambda _: None, Gate(slo_s=SLO_S))
    for at in range(400):
        if queue.gate.is_open(at / 100):
            queue.add(waiting(at / 100, within_s))
            queue.drop(at / 100)

    assert (queue.gate.rate == float("inf")) is is_open
