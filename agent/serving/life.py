"""An executor's life, as the process that started it sees it: what each event means, and what is done. PURE.

STARTING, LOADING, READY, DRAINING, then CLOSED or DEAD. One batch runs and one is staged behind it. A batch that takes
longer than its limit, a packet that makes no sense, and an end that nobody asked for make the executor DEAD: it is
killed, and its batches are named as lost, so that the front can queue them again.

A front that looks late may have stood still, with the answer unread: so an overdue batch is looked at once more, after
as long as the first look was late.
"""

import enum
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from farside.agent.serving.frames import Frame, Kind, Status

IN_FLIGHT_MAX = 2
PREPARE_S, PREPARE_S_MAX = 60.0, 3600  # until it is ready: unless another time is given, and at most
LOOK_AGAIN_S = 0.1  # at least, after a batch was found overdue
# Once it has raised on so many requests in a row that were alone, or on so many batches of any kind, a model counts as
# failing until a batch of it ends well. One bad request in a batch of 1,024 makes fewer raise, by halves.
RAISED_IN_A_ROW, BATCHES_RAISED_IN_A_ROW = 3, 12


class State(enum.Enum):
    """Where an executor is."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    CLOSED = "closed"
    DEAD = "dead"


ENDED = (State.CLOSED, State.DEAD)


class Batch(NamedTuple):
    """A batch to run: its number, the model's, rows, slot, and after how many seconds of running it counts as hung.

    ``is_one``: it is of one request, so that nothing else in it can be why the model raises.
    """

    number: int
    model: int
    rows: int
    slot: int
    limit_s: float
    is_one: bool = True


# ---- events


class Received(NamedTuple):
    """A packet came."""

    frame: Frame


class Exited(NamedTuple):
    """The process has ended, or its end of the socket has; the line says how."""

    line: str


class Woke(NamedTuple):
    """Time has passed: ``wake_s`` of the life was reached."""


class Asked(NamedTuple):
    """The front wants a batch to run."""

    batch: Batch


class Closing(NamedTuple):
    """The front wants it to end: what runs and is staged may take ``within_s`` seconds more."""

    within_s: float


class Allowed(NamedTuple):
    """Longer limits of batches in flight, in seconds by the model's number; a shorter one changes nothing."""

    limit_s: Mapping[int, float]


Event: TypeAlias = Received | Exited | Woke | Asked | Closing | Allowed


# ---- actions


class Send(NamedTuple):
    """Send this packet."""

    frame: Frame


class Became(NamedTuple):
    """The executor is READY: batches may be asked."""


class Finished(NamedTuple):
    """A batch ended; ``raised``: the model raised, and its slot has the line."""

    batch: Batch
    raised: bool
    started_ns: int
    ended_ns: int


class Warmed(NamedTuple):
    """A model ran a first batch in ``took_s`` seconds."""

    model: int
    rows: int
    took_s: float


class Kill(NamedTuple):
    """Kill the process."""


class Ended(NamedTuple):
    """The executor is over. ``line``: why, empty where it was asked to end. ``lost``: batches that have no answer."""

    line: str
    lost: tuple[Batch, ...]


class Failed(NamedTuple):
    """The executor could not start: the line is in the first slot of this model. Ended follows.

    ``is_spoilt``: It can use its device no more.
    """

    model: int
    is_spoilt: bool


Action: TypeAlias = Send | Became | Finished | Warmed | Kill | Ended | Failed


class Life:
    """One executor's state.

    Args:
        models: How many models it has.
        now_s: When its process was started.
        hello_s: Seconds until its first packet.
        prepare_s: Seconds until it is ready.
    """

    def __init__(self, models: int, now_s: float, *, hello_s: float, prepare_s: float) -> None:
        self.state = State.STARTING
        self.failing: frozenset[int] = frozenset()
        self._models = models
        self._hello_by_s, self._ready_by_s = now_s + hello_s, now_s + prepare_s
        self._hello_s, self._prepare_s = hello_s, prepare_s
        self._closed_by_s = math.inf
        self._in_flight: deque[Batch] = deque()
        self._more_s = 0.0  # that a batch gets which was found overdue
        self._begins(now_s)
        self._raised = [(0, 0)] * models  # in a row: requests that were alone, batches

    @property
    def in_flight(self) -> Sequence[Batch]:
        """The batch that runs and the one that is staged."""
        return tuple(self._in_flight)

    @property
    def can_take(self) -> bool:
        """Whether a batch may be asked."""
        return self.state is State.READY and len(self._in_flight) < IN_FLIGHT_MAX

    @property
    def wake_s(self) -> float:
        """When it has to be woken if nothing comes; infinity: never."""
        if self.state is State.STARTING:
            return min(self._hello_by_s, self._ready_by_s)
        if self.state is State.LOADING:
            return self._ready_by_s
        if self.state in ENDED:
            return math.inf
        return min(self._hung_s, self._closed_by_s)

    @property
    def _hung_s(self) -> float:
        """When the batch that runs counts as hung; infinity: none runs."""
        return self._runs_since_s + self._in_flight[0].limit_s + self._more_s if self._in_flight else math.inf

    def step(self, event: Event, now_s: float) -> list[Action]:
        """What an event brings about; after the end nothing does."""
        if self.state in ENDED:
            return []
        match event:
            case Received(frame):
                return self._received(frame, now_s)
            case Exited(line):
                return self._end("" if self.state is State.DRAINING and not self._in_flight else line, kill=False)
            case Woke():
                return self._woke(now_s)
            case Asked(batch):
                return self._asked(batch, now_s)
            case Closing(within_s):
                return self._closing(now_s + within_s)
            case Allowed(limit_s):
                self._in_flight = deque(
                    one._replace(limit_s=max(one.limit_s, limit_s.get(one.model, 0.0))) for one in self._in_flight
                )
                return []

    def _asked(self, batch: Batch, now_s: float) -> list[Action]:
        assert self.can_take, "one batch runs and one is staged, at most, and only once it is ready"
        assert batch.model < self._models, "a model that it does not have"
        assert all((one.model, one.slot) != (batch.model, batch.slot) for one in self._in_flight), "the slot is in use"
        if not self._in_flight:
            self._begins(now_s)
        self._in_flight.append(batch)
        return [Send(Frame(Kind.RUN, batch=batch.number, model=batch.model, rows=batch.rows, slot=batch.slot))]

    def _received(self, frame: Frame, now_s: float) -> list[Action]:
        match (self.state, frame.kind):
            case (State.STARTING, Kind.HELLO):
                self.state = State.LOADING
                return []
            case (State.STARTING | State.LOADING, Kind.FAILED) if frame.model < self._models:
                return [Failed(frame.model, frame.status is Status.SPOILT), *self._end("it could not start", kill=True)]
            case (State.LOADING, Kind.LOADED) if frame.model < self._models:
                return []
            case (State.LOADING, Kind.WARMED) if frame.model < self._models:
                return [Warmed(frame.model, frame.rows, (frame.ended_ns - frame.started_ns) / 1e9)]
            case (State.LOADING, Kind.READY):
                self.state = State.READY
                return [Became()]
            case (State.READY | State.DRAINING, Kind.DONE):
                return self._done(frame, now_s)
            case (State.DRAINING, _) if frame.kind is not Kind.DONE:
                return []  # it was told to end while it started
        return self._end(f"it sent {frame.kind.name} while {self.state.value}", kill=True)

    def _done(self, frame: Frame, now_s: float) -> list[Action]:
        if not self._in_flight or self._in_flight[0].number != frame.batch:
            return self._end(f"it answered batch {frame.batch}, which does not run", kill=True)
        batch = self._in_flight.popleft()
        self._begins(now_s)
        raised = frame.status is not Status.OK
        alone, batches = self._raised[batch.model]
        self._raised[batch.model] = (alone + batch.is_one, batches + 1) if raised else (0, 0)
        self.failing = frozenset(
            model
            for model, (alone, batches) in enumerate(self._raised)
            if alone >= RAISED_IN_A_ROW or batches >= BATCHES_RAISED_IN_A_ROW
        )
        return [Finished(batch, raised, frame.started_ns, frame.ended_ns)]

    def _woke(self, now_s: float) -> list[Action]:
        if now_s < self.wake_s:
            return []
        if self.state is State.STARTING and now_s >= self._hello_by_s:
            return self._end(f"it has not begun within {self._hello_s:g} s", kill=True)
        if self.state in (State.STARTING, State.LOADING):
            return self._end(f"it was not ready within {self._prepare_s:g} s", kill=True)
        late_s = now_s - self._hung_s
        if late_s >= 0:
            hung = self._in_flight[0]
            if not self._more_s and now_s < self._closed_by_s:
                self._more_s = late_s + min(max(late_s, LOOK_AGAIN_S), hung.limit_s)
                return []
            return self._end(f"a batch of {hung.rows} took longer than {hung.limit_s:g} s", kill=True)
        return self._end("", kill=True)

    def _begins(self, now_s: float) -> None:
        """The batch that is next runs from now on."""
        self._runs_since_s, self._more_s = now_s, 0.0

    def _closing(self, by_s: float) -> list[Action]:
        told = self.state is State.DRAINING
        self._closed_by_s = min(self._closed_by_s, by_s)
        self.state = State.DRAINING
        return [] if told else [Send(Frame(Kind.STOP))]

    def _end(self, line: str, *, kill: bool) -> list[Action]:
        self.state = State.DEAD if line else State.CLOSED
        lost, self._in_flight = tuple(self._in_flight), deque()
        return [*([Kill()] if kill else []), Ended(line, lost)]
