"""An executor's states, by examples that hypothesis makes up."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from farside.agent.serving.frames import FRAME_BYTES, Frame, Kind, Status, decode, encode
from farside.agent.serving.life import (
    ENDED,
    LOOK_AGAIN_S,
    Action,
    Allowed,
    Asked,
    Batch,
    Became,
    Closing,
    Ended,
    Event,
    Exited,
    Finished,
    Kill,
    Life,
    Received,
    Send,
    State,
    Woke,
)
from farside.errors import LocalProtocolError, RemoteProtocolError

MODELS = 2
LIMIT_S = 2.0


class LifeMachine(RuleBasedStateMachine):
    """Any events in any order: each batch ends once, nothing follows the end, what hangs is killed in time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.life = Life(MODELS, self.now_s, hello_s=5, prepare_s=60)
        self.asked: list[int] = []
        self.finished: list[int] = []
        self.lost: list[int] = []
        self.ends: list[str] = []
        self.kills = 0

    def step(self, event: Event) -> list[Action]:
        was_over = self.life.state in ENDED
        actions = self.life.step(event, self.now_s)
        assert not (was_over and actions)
        for action in actions:
            assert not self.ends, "nothing follows the end"
            match action:
                case Finished(batch):
                    self.finished.append(batch.number)
                case Ended(line, lost):
                    self.ends.append(line)
                    self.lost += [batch.number for batch in lost]
                case Kill():
                    self.kills += 1
                case Send():
                    assert not self.kills
                case _:
                    pass
        return actions

    @precondition(lambda self: self.life.state is State.STARTING)
    @rule()
    def starts(self) -> None:
        assert self.step(Received(Frame(Kind.HELLO))) == []

    @precondition(lambda self: self.life.state is State.LOADING)
    @rule()
    def is_ready(self) -> None:
        assert self.step(Received(Frame(Kind.READY))) == [Became()]

    @precondition(lambda self: self.life.can_take)
    @rule(rows=st.integers(1, 8))
    def asks(self, rows: int) -> None:
        number = len(self.asked)
        self.asked.append(number)
        self.step(Asked(Batch(number, number % MODELS, rows, number // MODELS % 2, LIMIT_S)))

    @precondition(lambda self: len(self.life.in_flight) > 0)
    @rule(status=st.sampled_from(Status))
    def answers(self, status: Status) -> None:
        oldest = self.life.in_flight[0]
        self.step(Received(Frame(Kind.DONE, status=status, batch=oldest.number, model=oldest.model)))
        assert self.finished[-1] == oldest.number

    @rule(kind=st.sampled_from(Kind), batch=st.integers(0, 5), model=st.integers(0, 3))
    def says_anything(self, kind: Kind, batch: int, model: int) -> None:
        self.step(Received(Frame(kind, batch=batch, model=model)))

    @rule(took_s=st.floats(0, 3))
    def time_passes(self, took_s: float) -> None:
        self.now_s += took_s
        if self.now_s >= self.life.wake_s:
            is_seen_again = self.step(Woke()) == []
            assert is_seen_again == (self.life.state not in ENDED)
            assert not is_seen_again or self.now_s < self.life.wake_s <= self.now_s + LIMIT_S

    @rule(within_s=st.floats(0, 10))
    def is_closed(self, within_s: float) -> None:
        self.step(Closing(within_s))

    @rule(limit_s=st.floats(0, LIMIT_S))
    def is_allowed(self, limit_s: float) -> None:
        assert self.step(Allowed(dict.fromkeys(range(MODELS), limit_s))) == []

    @rule()
    def exits(self) -> None:
        self.step(Exited("it exited"))
        assert self.life.state in ENDED

    @invariant()
    def each_batch_is_in_one_place(self) -> None:
        waiting = [batch.number for batch in self.life.in_flight]
        assert sorted(self.finished + self.lost + waiting) == self.asked
        assert self.finished == sorted(self.finished)
        assert len(waiting) <= 2

    @invariant()
    def it_ends_once_and_is_woken_until_then(self) -> None:
        assert (len(self.ends) == 1) == (self.life.state in ENDED)
        if self.life.state in ENDED:
            assert self.life.wake_s == math.inf
            assert (self.life.state is State.DEAD) == bool(self.ends[0])
        elif self.life.in_flight:
            assert self.life.wake_s <= self.now_s + LIMIT_S


TestLife = LifeMachine.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=30)


def ready(models: int = 1) -> Life:
    life = Life(models, 0.0, hello_s=5, prepare_s=60)
    life.step(Received(Frame(Kind.HELLO)), 0.0)
    life.step(Received(Frame(Kind.READY)), 1.0)
    return life


def test_a_staged_batch_counts_as_running_from_the_end_of_the_one_before() -> None:
    life = ready()
    life.step(Asked(Batch(1, 0, 1, 0, 2.0)), 10.0)
    life.step(Asked(Batch(2, 0, 1, 1, 2.0)), 10.5)
    life.step(Received(Frame(Kind.DONE, batch=1)), 11.9)

    assert life.wake_s == pytest.approx(13.9)
    assert life.step(Woke(), 13.0) == []
    assert hung_at(life, 13.9) == 13.9 + LOOK_AGAIN_S


def hung_at(life: Life, now_s: float) -> float:
    """When an executor whose batch is overdue now is killed if nothing comes."""
    assert life.step(Woke(), now_s) == []
    wake_s = life.wake_s
    assert life.step(Woke(), wake_s)[0] == Kill()
    return wake_s


@pytest.mark.parametrize(("now_s", "until_s"), [(12.0, 12.0 + LOOK_AGAIN_S), (12.5, 13.0), (500.0, 502.0)])
def test_a_batch_that_is_found_overdue_late_has_as_long_again_up_to_its_limit(now_s: float, until_s: float) -> None:
    life = ready()
    life.step(Asked(Batch(1, 0, 1, 0, 2.0)), 10.0)

    assert hung_at(life, now_s) == pytest.approx(until_s)


def test_an_answer_that_lay_unread_while_the_front_stood_still_counts() -> None:
    life = ready()
    life.step(Asked(Batch(1, 0, 1, 0, 2.0)), 10.0)
    life.step(Asked(Batch(2, 0, 1, 1, 2.0)), 10.0)
    assert life.step(Woke(), 14.0) == []

    (finished,) = life.step(Received(Frame(Kind.DONE, batch=1)), 14.0)

    assert isinstance(finished, Finished)
    assert life.wake_s == 16.0  # of the next batch, which is looked at again as well
    assert hung_at(life, 16.0) == 16.0 + LOOK_AGAIN_S


def test_batches_in_flight_may_take_longer_once_their_model_does_and_never_less() -> None:
    life = ready(MODELS)
    life.step(Asked(Batch(1, 0, 4, 0, LIMIT_S)), 2.0)
    life.step(Asked(Batch(2, 1, 4, 0, LIMIT_S)), 2.0)

    assert life.step(Allowed({0: 9.0, 1: 1.0}), 3.0) == []
    assert life.wake_s == 11.0
    life.step(Received(Frame(Kind.DONE, batch=1)), 10.0)
    assert life.wake_s == 10.0 + LIMIT_S


def test_an_answer_to_a_batch_that_does_not_run_ends_the_executor() -> None:
    life = ready()
    life.step(Asked(Batch(1, 0, 1, 0, 2.0)), 10.0)
    actions = life.step(Received(Frame(Kind.DONE, batch=9)), 10.1)

    assert actions == [Kill(), Ended("it answered batch 9, which does not run", (Batch(1, 0, 1, 0, 2.0),))]


@pytest.mark.parametrize(
    ("hello", "line"), [(False, "it has not begun within 5 s"), (True, "it was not ready within 60 s")]
)
def test_an_executor_that_never_begins_is_killed(hello: bool, line: str) -> None:
    life = Life(1, 0.0, hello_s=5, prepare_s=60)
    if hello:
        life.step(Received(Frame(Kind.HELLO)), 1.0)

    assert life.step(Woke(), life.wake_s) == [Kill(), Ended(line, ())]


def test_an_executor_that_does_not_drain_in_time_is_killed_without_a_fault() -> None:
    life = ready()
    life.step(Asked(Batch(1, 0, 1, 0, 60.0)), 10.0)
    life.step(Closing(3.0), 11.0)

    assert life.wake_s == 14.0
    assert life.step(Woke(), 14.0) == [Kill(), Ended("", (Batch(1, 0, 1, 0, 60.0),))]


numbers = st.integers(0, 2**32 - 1)


@given(
    st.builds(
        Frame,
        st.sampled_from(Kind),
        st.sampled_from(Status),
        st.integers(0, 2**64 - 1),
        numbers,
        numbers,
        st.integers(0, 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**64 - 1),
    )
)
def test_a_frame_is_a_packet_of_64_bytes_and_comes_back_as_it_was(frame: Frame) -> None:
    packet = encode(frame)

    assert len(packet) == FRAME_BYTES
    assert decode(packet) == frame


@given(st.binary(max_size=FRAME_BYTES + 1))
def test_any_bytes_are_a_frame_or_refused(packet: bytes) -> None:
    try:
        frame = decode(packet)
    except RemoteProtocolError:
        return
    assert decode(encode(frame)) == frame


def test_a_number_that_does_not_fit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(LocalProtocolError):
        encode(Frame(Kind.RUN, rows=2**32))


def test_a_model_fails_by_three_requests_in_a_row_that_were_alone_whatever_raised_in_between() -> None:
    life = ready()
    failing = []
    for number, (is_one, status) in enumerate(
        [(True, Status.RAISED), (True, Status.RAISED), (True, Status.OK)]
        + [(False, Status.RAISED)] * 4
        + [(True, Status.RAISED), (False, Status.RAISED), (True, Status.RAISED), (True, Status.RAISED)]
        + [(False, Status.RAISED), (False, Status.OK)]
    ):
        life.step(Asked(Batch(number, 0, 2, 0, LIMIT_S, is_one)), 2.0)
        life.step(Received(Frame(Kind.DONE, batch=number, status=status)), 2.1)
        failing.append(bool(life.failing))

    assert failing == [False] * 10 + [True, True, False]


def test_a_model_fails_by_twelve_batches_in_a_row_of_whatever_requests() -> None:
    life = ready()
    failing = []
    for number in range(13):
        status = Status.OK if number == 12 else Status.RAISED
        life.step(Asked(Batch(number, 0, 2, 0, LIMIT_S, is_one=False)), 2.0)
        life.step(Received(Frame(Kind.DONE, batch=number, status=status)), 2.1)
        failing.append(bool(life.failing))

    assert failing == [False] * 11 + [True, False]
