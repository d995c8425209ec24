"""The pool: every request ends once, whatever executors do meanwhile."""

import asyncio
from collections import Counter
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.agent.serving.life import RAISED_IN_A_ROW
from farside.scheduler.sharing.glet.gate import Gate
from farside.scheduler.sharing.glet.round import Dispatch, GletRound, Slot, look
from farside.serve.inference import Array, InferenceError, Kind
from farside.serve.pool import QUEUE_ROWS_MIN, Pool, Turns
from farside.serve.queues import RequestQueue, Waiting
from tests.serving.front import close_gate, glet_turns, in_loop, model_file, pool_of

MODEL = model_file()


class Client:
    """Sends requests to a pool and notes how each ended."""

    def __init__(self, pool: Pool) -> None:
        self.pool, self.ends = pool, list[tuple[int, object]]()

    def send(self, number: int, *, rows: int = 1, within_s: float = 60.0) -> Waiting:
        return self.send_rows(number, np.full((rows, 3), number, "f4"), "twice", within_s)

    def send_rows(self, number: int, given: Array, model: str, within_s: float = 60.0) -> Waiting:
        now_s = asyncio.get_running_loop().time()
        one = Waiting(
            model=model, rows=len(given), inputs=[given], arrived_s=now_s,
            deadline_s=now_s + within_s, encode=lambda views: [view.tolist() for view in views],
            answer=lambda result: self.ends.append((number, result)),
            fail=lambda error: self.ends.append((number, error.kind)),
        )  # fmt: skip
        self.pool.submit(one)
        return one

    async def all(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.ends) < count:
                await asyncio.sleep(0.001)


@in_loop
async def test_requests_are_batched_and_each_gets_its_own_rows() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL])
    pool.switch([turns], {})
    client = Client(pool)

    for number in range(20):
        client.send(number, rows=1 + number % 3)
    await client.all(20)

    assert dict(client.ends) == {n: [[[2.0 * n] * 3] * (1 + n % 3)] for n in range(20)}
    assert len(executor.ran) < 20
    assert sum(rows for _, rows in executor.ran) == sum(1 + n % 3 for n in range(20))
    assert pool.counts["twice"].met == 20
    assert pool.counts["twice"].rows == sum(1 + n % 3 for n in range(20))


@in_loop
async def test_a_request_that_no_batch_answers_in_time_is_dropped_at_once() -> None:
    pool = pool_of([MODEL])
    turns, _ = glet_turns(pool, [MODEL], latency_s=0.05)
    pool.switch([turns], {})
    client = Client(pool)

    client.send(1, within_s=0.02)

    assert client.ends == [(1, Kind.LATE)]
    assert pool.counts["twice"].dropped == 1


@in_loop
async def test_a_request_that_waits_too_long_is_dropped_before_its_batch() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL], latency_s=0.05)
    pool.switch([turns], {})
    client = Client(pool)
    executor.is_hung = True

    client.send(1)
    client.send(2)  # staged behind the first at the end of its time
    client.send(3, within_s=0.06)
    await asyncio.sleep(0.07)
    assert pool.take_counts() == ({"twice": 3}, {"twice": 1})

    assert client.ends == [(3, Kind.LATE)]


@in_loop
async def test_a_model_without_a_glet_and_a_full_queue_are_rejected() -> None:
    pool = pool_of([MODEL])
    client = Client(pool)
    client.send(0)
    turns, executor = glet_turns(pool, [MODEL], latency_s=1.0)
    executor.is_hung = True
    pool.switch([turns], {})

    for number in range(1, QUEUE_ROWS_MIN + 3):
        client.send(number)

    assert client.ends == [(0, Kind.FULL), (QUEUE_ROWS_MIN + 2, Kind.FULL)]
    assert pool.counts["twice"].rejected == 2


@in_loop
async def test_of_a_full_queue_its_rows_are_told() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL], latency_s=1.0)
    executor.is_hung = True
    pool.switch([turns], {})
    client = Client(pool)

    for number in range(1 + QUEUE_ROWS_MIN // 4):
        client.send(number, rows=4)

    error = pool.turned_away("twice")
    assert str(error).startswith(f"{QUEUE_ROWS_MIN} rows of requests for twice wait already")


@in_loop
async def test_a_raising_model_fails_its_batch_and_no_other() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL])
    pool.switch([turns], {})
    client = Client(pool)
    executor.raises = "shape mismatch"

    client.send(1)
    await client.all(1)
    executor.raises = ""
    client.send(2)
    await client.all(2)

    assert client.ends[0] == (1, Kind.RAISED)
    assert client.ends[1][1] == [[[4.0] * 3]]


@in_loop
async def test_a_request_on_which_a_model_raises_fails_alone_and_the_others_of_its_batch_are_answered() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL], latency_s=0.01, batch=8)
    client = Client(pool)
    executor.raises, executor.poison = "index 5 is out of bounds", 5.0
    pool.switch([turns], {})
    client.send(100)  # runs, so that the next are one batch

    for number in range(8):
        client.send(number)
    await client.all(9)

    assert [number for number, end in client.ends if end == Kind.RAISED] == [5]
    assert {number: end for number, end in client.ends if number != 5} == {
        number: [[[2.0 * number] * 3]] for number in (*range(5), 6, 7, 100)
    }
    assert sorted(rows for _, rows in executor.ran) == [1, 1, 1, 2, 2, 4, 4, 8]
    assert pool.is_ready("twice")
    assert (pool.counts["twice"].met, pool.counts["twice"].failed, pool.counts["twice"].again) == (8, 1, 0)


@in_loop
async def test_requests_of_a_batch_that_raised_take_no_turn_of_another_model() -> None:
    other = model_file("other")
    pool = pool_of([MODEL, other])
    turns, executor = glet_turns(pool, [MODEL, other], latency_s=0.01, batch=8)
    client, others = Client(pool), Client(pool)
    executor.raises, executor.poison = "no", 5.0
    ended = executor.ended

    def end(*told: Any) -> None:
        if len(executor.ran) == 2:  # the batch of 8
            others.send_rows(0, np.zeros((1, 3), "f4"), "other", within_s=30.0)
        ended(*told)

    executor.ended = end
    pool.switch([turns], {})
    for number in (100, *range(8)):
        client.send(number)
    await client.all(9)

    # One of the halves may go before it, as it is staged.
    assert ("other", 1) in executor.ran[2:4]


@in_loop
async def test_halves_of_a_batch_that_raised_run_before_newer_requests() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL], latency_s=1.0, batch=8)
    executor.latency_s = 0.01  # sooner than planned, so that nothing is staged
    client = Client(pool)
    executor.raises, executor.poison = "no", 5.0
    ended = executor.ended

    def end(*told: Any) -> None:
        for number in {1: range(8), 2: range(10, 18)}.get(len(executor.ran), ()):
            client.send(number)
        ended(*told)

    executor.ended = end
    pool.switch([turns], {})
    client.send(100)
    await client.all(17)

    order = [number for number, _ in client.ends]
    assert set(order[1:9]) == set(range(8))


@in_loop
async def test_requests_of_a_batch_that_raised_fail_at_once_where_nobody_serves_their_model_any_more() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL], latency_s=0.01, batch=8)
    client = Client(pool)
    executor.raises, executor.poison = "no", 5.0
    pool.switch([turns], {})
    for number in (100, *range(8)):
        client.send(number)
    async with asyncio.timeout(60):
        while len(turns.batches) < 2:
            await asyncio.sleep(0.0005)

    pool.switch([], {})
    await client.all(9)

    assert client.ends[1:] == [(number, Kind.FULL) for number in range(8)]


@in_loop
async def test_a_glet_whose_model_always_raises_is_left_out_while_another_one_serves_it() -> None:
    pool = pool_of([MODEL])
    broken, fails_at_once = glet_turns(pool, [MODEL])
    sound, healthy = glet_turns(pool, [MODEL], gpu=1)
    pool.switch([broken, sound], {})
    client = Client(pool)
    fails_at_once.raises = "CUDA error: an illegal memory access was encountered"

    for number in range(60):
        client.send(number)
        await client.all(number + 1)

    # The request of the third batch that raised is answered by the other glet, and so are those of later tries.
    assert [number for number, end in client.ends if end == Kind.RAISED] == [0, 1]
    assert pool.counts["twice"].met == 58
    assert len(healthy.ran) == 58
    assert list(broken.ratios) == [], "how soon a batch raises says nothing of how long one takes"


@in_loop
async def test_a_glet_that_was_left_out_is_tried_with_one_request_and_serves_again_once_that_ends_well() -> None:
    pool = pool_of([MODEL])
    left_out, raising = glet_turns(pool, [MODEL])
    other, healthy = glet_turns(pool, [MODEL], gpu=1)
    client = Client(pool)
    with patch("farside.scheduler.sharing.glet.round.TRY_S", 0.0):
        pool.switch([left_out, other], {})
        raising.raises = "no"
        for number in range(5):
            client.send(number)
            await client.all(number + 1)
        assert len(raising.ran) == 5, "the last two were tries"
        assert len(healthy.ran) == 3, "which cost nobody an answer"

        raising.raises = ""
        client.send(5)
        await client.all(6)
    client.send(6)
    client.send(7)
    await client.all(8)

    assert [len(raising.ran), len(healthy.ran)] == [7, 4], "of two requests each has one"
    assert pool.counts["twice"].again == 3
    assert [end for _, end in client.ends].count(Kind.RAISED) == 2


@in_loop
async def test_a_request_that_raises_on_two_glets_fails_and_where_all_glets_raise_all_are_tried() -> None:
    pool = pool_of([MODEL])
    pairs = [glet_turns(pool, [MODEL], gpu=gpu) for gpu in range(2)]
    pool.switch([turns for turns, _ in pairs], {})
    client = Client(pool)
    for _, executor in pairs:
        executor.raises = "no"

    for number in range(20):
        client.send(number)
        await client.all(number + 1)
    assert [end for _, end in client.ends] == [Kind.RAISED] * 20
    assert not pool.is_ready("twice")

    pairs[1][1].raises = ""
    for number in range(20, 40):
        client.send(number)
        await client.all(number + 1)
        if pool.is_ready("twice"):
            break
    client.send(40)
    await client.all(len(client.ends) + 1)

    assert client.ends[-1] == (40, [[[80.0] * 3]])


@in_loop
async def test_a_killed_executors_batch_runs_again_once_and_each_request_by_itself() -> None:
    pool = pool_of([MODEL])
    dying, executor = glet_turns(pool, [MODEL])
    executor.is_hung = True
    pool.switch([dying], {})
    client = Client(pool)
    for number in range(3):
        client.send(number)
    heir, healthy = glet_turns(pool, [MODEL], gpu=1)
    dead = list[str]()

    def on_dead(turns: Turns, line: str) -> None:
        dead.append(line)
        pool.switch([heir], {})

    pool.on_dead = on_dead

    pool.died(dying, "its process was killed by SIGKILL")
    await client.all(3)

    assert dead == ["its process was killed by SIGKILL"]
    assert dict(client.ends) == {n: [[[2.0 * n] * 3]] for n in range(3)}
    assert healthy.ran[0] == ("twice", 1)
    assert pool.counts["twice"].again == 1, "the second and third request had not begun to run"


def test_a_request_that_runs_again_is_given_up_only_if_it_would_be_late_alone() -> None:
    """Those behind it are judged by a batch of all of them, as ever."""
    dropped = list[Waiting]()
    queue = RequestQueue(dropped.append, Gate(slo_s=0.1))
    glet = GletRound(slots=[Slot("twice", 4, [0.015, 0.02, 0.025, 0.03])], cycle_s=0.05)
    requests = [
        Waiting(
            model="twice", rows=1, inputs=[], arrived_s=0.0, deadline_s=0.1, encode=list,
            answer=lambda _: None, fail=lambda _: None, group=int(number == 0),
        )
        for number in range(4)
    ]  # fmt: skip
    for one in requests:
        queue.add(one)

    assert look(glet, {"twice": queue}, 0.08) == Dispatch("twice", 1)
    assert queue.take(1) == requests[:1]
    assert look(glet, {"twice": queue}, 0.08) == Dispatch("twice", 2)

    assert dropped == requests[1:2]


@in_loop
async def test_requests_wait_for_a_glet_that_comes_again() -> None:
    pool = pool_of([MODEL])
    client = Client(pool)
    dying, _ = glet_turns(pool, [MODEL])
    pool.switch([dying], {})
    pool.died(dying, "gone")

    client.send(1)
    assert client.ends == []
    heir, _ = glet_turns(pool, [MODEL])
    pool.switch([heir], {})
    await client.all(1)

    assert client.ends == [(1, [[[2.0] * 3]])]


@in_loop
async def test_a_request_under_which_two_executors_died_fails() -> None:
    pool = pool_of([MODEL])
    client = Client(pool)
    first, executor = glet_turns(pool, [MODEL])
    second, other = glet_turns(pool, [MODEL], gpu=1)
    executor.is_hung = other.is_hung = True
    pool.switch([first], {})
    client.send(1)
    pool.switch([first, second], {})

    pool.died(first, "gone")
    assert client.ends == [], "it runs again on the second"
    pool.died(second, "gone too")

    assert client.ends == [(1, Kind.DIED)]
    pool.died(second, "told twice")
    assert len(client.ends) == 1


@in_loop
async def test_an_answer_to_a_batch_that_is_not_in_flight_is_dropped_and_counted() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL])
    executor.is_hung = True
    pool.switch([turns], {})
    client = Client(pool)
    client.send(1)

    pool.ended(turns, 99, "", 0, 1)

    assert pool.stray == 1
    assert client.ends == []


@in_loop
async def test_a_glet_that_leaves_ends_its_batches_and_takes_no_more() -> None:
    pool = pool_of([MODEL])
    old, executor = glet_turns(pool, [MODEL])
    executor.is_hung = True
    pool.switch([old], {})
    client = Client(pool)
    client.send(1)
    new, fresh = glet_turns(pool, [MODEL], gpu=1)
    emptied = list[bool]()
    old.on_idle = lambda: emptied.append(True)

    pool.switch([new], {})
    client.send(2)
    await client.all(1)
    assert client.ends == [(2, [[[4.0] * 3]])]
    assert not emptied
    executor.is_hung = False
    executor.answer()

    assert emptied == [True]
    assert executor.ran == [("twice", 1)]
    assert fresh.ran == [("twice", 1)]
    assert dict(client.ends)[1] == [[[2.0] * 3]]


@in_loop
async def test_a_client_that_has_gone_is_not_answered_and_its_row_is_left() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL])
    executor.is_hung = True
    pool.switch([turns], {})
    client = Client(pool)
    running = client.send(1)
    waiting = client.send(2)

    pool.cancel(running)
    pool.cancel(waiting)
    executor.is_hung = False
    executor.answer()

    assert client.ends == []
    assert executor.ran == [("twice", 1)]
    assert pool.counts["twice"].cancelled == 2


@in_loop
async def test_a_request_whose_client_has_gone_counts_as_cancelled_alone_where_its_batch_raises() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL])
    executor.is_hung, executor.raises = True, "no"
    pool.switch([turns], {})
    one = Client(pool).send(1)

    pool.cancel(one)
    executor.answer()

    counts = pool.counts["twice"]
    assert (counts.cancelled, counts.failed, counts.fail.count) == (1, 0, 0)


@in_loop
async def test_a_request_that_is_turned_away_unread_counts_as_dropped_with_as_many_rows_as_others_have() -> None:
    pool = pool_of([MODEL], 0.2)
    turns, _ = glet_turns(pool, [MODEL])
    pool.switch([turns], {})
    client = Client(pool)
    for number in range(100):
        client.send(number, rows=4, within_s=0.1)
    await client.all(100)
    pool.take_counts()
    assert pool.turned_away("twice") is None

    close_gate(pool, "twice")
    before = pool.counts["twice"].dropped
    errors = [pool.turned_away("twice") for _ in range(5)]

    assert [str(one) for one in errors] == ["twice can not answer within 200 ms now"] * 5
    assert pool.counts["twice"].dropped == before + 5
    assert pool.take_counts() == ({"twice": 20}, {"twice": 20})
    assert pool.take_counts() == ({"twice": 0}, {"twice": 0})
    pool.switch([turns], {})
    assert pool.turned_away("twice") is None, "with a new plan all are let in"


@in_loop
async def test_of_requests_that_are_turned_away_unread_as_many_are_no_demand_as_were_malformed_before() -> None:
    """Malformed requests cost their sender nothing, and moved parts of devices to a model that nobody asked."""
    pool = pool_of([MODEL], 0.2)
    turns, _ = glet_turns(pool, [MODEL])
    pool.switch([turns], {})
    client = Client(pool)
    for number in range(400):
        assert pool.turned_away("twice") is None  # three of four are not what they should be
        if number % 4 == 0:
            client.send(number)
            await client.all(1 + number // 4)
    pool.take_counts()

    close_gate(pool, "twice")
    for _ in range(1000):
        pool.turned_away("twice")
    came, violated = pool.take_counts()

    assert 200 <= came["twice"] <= 300
    assert violated == came


@in_loop
async def test_a_full_queue_turns_requests_away_unread() -> None:
    pool = pool_of([MODEL])
    turns, executor = glet_turns(pool, [MODEL], latency_s=1.0)
    executor.is_hung = True
    pool.switch([turns], {})
    client = Client(pool)
    for number in range(QUEUE_ROWS_MIN + 1):
        client.send(number)
    pool.take_counts()

    with patch.object(Gate, "refused") as counted:
        error = pool.turned_away("twice")

    assert error is not None
    assert error.kind is Kind.FULL
    counted.assert_called_once_with(1.0)  # rows of a request
    assert pool.counts["twice"].rejected == 1
    assert pool.take_counts() == ({"twice": 1}, {"twice": 0})


STEPS = st.lists(st.sampled_from(["send", "large", "answer", "die", "raise", "fail", "cancel", "switch"]), max_size=60)


@settings(deadline=None, max_examples=60)
@given(steps=STEPS)
def test_every_request_ends_once_whatever_happens(steps: list[str]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[str]) -> None:
    pool = pool_of([MODEL])
    client = Client(pool)
    glets = [glet_turns(pool, [MODEL], gpu=gpu) for gpu in (0, 1)]
    for _, executor in glets:
        executor.is_hung = True
    pool.switch([turns for turns, _ in glets], {})
    sent, cancelled = dict[int, Waiting](), set[int]()
    for number, step in enumerate(steps):
        turns, executor = glets[number % 2]
        if step in ("send", "large"):
            sent[number] = client.send(number, rows=8 if step == "large" else 1)
        elif step == "cancel" and sent:
            last = max(sent)
            if last not in dict(client.ends):
                pool.cancel(sent[last])
                cancelled.add(last)
        elif step in ("answer", "raise", "fail") and turns.batches and not turns.is_dead:
            executor.raises = "" if step == "answer" else "no"
            for _ in range(RAISED_IN_A_ROW if step == "fail" else 1):
                if turns.batches:
                    executor.answer()
        elif step == "die" or step == "switch":
            if step == "die":
                pool.died(turns, "killed")
            glets[number % 2] = fresh, new = glet_turns(pool, [MODEL], gpu=number % 2)
            new.is_hung = True
            pool.switch([fresh, glets[1 - number % 2][0]], {})
            while step == "switch" and turns.batches:
                executor.answer()
    for _ in range(len(sent) + 1):
        for turns, executor in glets:
            executor.raises = ""
            while turns.batches:
                executor.answer()

    ends = Counter(number for number, _ in client.ends)
    assert all(count == 1 for count in ends.values())
    assert set(ends) == set(sent) - cancelled
    counts = pool.counts["twice"]
    outcomes = counts.met + counts.late + counts.dropped + counts.rejected + counts.failed + counts.cancelled
    assert outcomes == len(sent), "each counts once"
    for number, result in client.ends:
        assert isinstance(result, Kind) or np.asarray(result).flat[0] == 2.0 * number


def test_an_error_says_what_is_counted() -> None:
    assert {kind.counted for kind in Kind} == {"refused", "dropped", "rejected", "failed"}
    assert InferenceError(Kind.LATE, "late").kind.http == 504


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("ERROR")


@in_loop
async def test_a_model_that_was_never_routed_is_served_by_no_part_while_its_executor_is_awaited() -> None:
    pool = pool_of([MODEL])
    pool.switch([], {}, frozenset({"twice"}))
    client = Client(pool)

    client.send(1)

    assert client.ends == [(1, Kind.FULL)]
