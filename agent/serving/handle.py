"""An executor as a front uses it, wherever its process is: what its life brings about, but for how it is reached."""

import abc
import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from farside.agent.serving import frames
from farside.agent.serving.arena import Array
from farside.agent.serving.life import (
    ENDED,
    Action,
    Allowed,
    Asked,
    Batch,
    Became,
    Closing,
    Ended,
    Event,
    Failed,
    Finished,
    Kill,
    Life,
    Send,
    State,
    Warmed,
    Woke,
)
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.policy import Measured
from farside.errors import FarsideError

HELLO_S = 30.0
LIMIT_S_MIN = 1.0  # of a batch, before it counts as hung
LIMIT_TIMES = 3  # what the slowest is expected to take


class ServeError(FarsideError):
    """An executor could not be started, or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A batch ended. ``problem`` is what the model raised, empty where it ran; times are CLOCK_MONOTONIC."""

    batch: int
    model: str
    rows: int
    slot: int
    problem: str
    started_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorEnded:
    """An executor is over. ``line`` says why, empty where it was closed; ``lost`` are batches without an answer."""

    line: str
    lost: tuple[int, ...]


OnDone = Callable[[BatchDone], None]
OnExit = Callable[[ExecutorEnded], None]


class ExecutorHandle(abc.ABC):
    """Runs batches of its models; used from one event loop."""

    def __init__(
        self,
        models: Sequence[ModelFile],
        on_done: OnDone,
        on_exit: OnExit,
        *,
        p99_s: Mapping[str, float],
        prepare_s: float,
    ) -> None:
        self.models = tuple(models)
        self._numbers = {model.name: number for number, model in enumerate(models)}
        self.pid = 0  # of its process, on whichever host; 0: not known
        self._on_done, self._on_exit = on_done, on_exit
        self._limit_s: dict[str, float] = {}
        self._warmed_s: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        # Why it can't become ready; empty: it takes batches. No error, whose traceback would refer to this again.
        self._ready: asyncio.Future[str] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._why = ""
        self._is_spoilt = False  # it has said as it failed that it can use its device no more
        self._life = Life(len(models), self._loop.time(), hello_s=HELLO_S, prepare_s=prepare_s)
        self.expect(p99_s)

    # ---- how it is reached

    @abc.abstractmethod
    def slot_inputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """Views of ``max_batch`` rows of each input; slots are 0 and 1."""

    @abc.abstractmethod
    def slot_outputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """Views of ``max_batch`` rows of each output: those of the slot's last batch, until the next one is run."""

    @property
    @abc.abstractmethod
    def part_pct(self) -> int:
        """The size of its part."""

    @abc.abstractmethod
    async def resize(self, part_pct: int, p99_s: Mapping[str, float] | None = None) -> bool:
        """Another size of its part; False: this driver or size needs a new executor, and nothing has changed.

        ``p99_s``: as for `expect`; None: what was expected before.
        """

    @abc.abstractmethod
    def measured(self) -> Measured | None:
        """What its part has used of the device; None: nobody counts it here."""

    @abc.abstractmethod
    def _send(self, frame: frames.Frame) -> None:
        """Sends a RUN or a STOP, or nothing where it has ended."""

    @abc.abstractmethod
    def _kill(self) -> None:
        """Ends it at once."""

    @abc.abstractmethod
    def _text(self, model: int, slot: int) -> str:
        """The line that it left at a slot."""

    # ---- for the front

    @property
    def is_ready(self) -> bool:
        """Whether it runs and takes batches; at most one runs and one is staged."""
        return self._life.state is State.READY

    @property
    def can_take(self) -> bool:
        """Whether `run` may be called now."""
        return self._life.can_take

    @property
    def in_flight(self) -> tuple[int, ...]:
        """Numbers of the batch that runs and of the one that is staged."""
        return tuple(batch.number for batch in self._life.in_flight)

    @property
    def failing(self) -> frozenset[str]:
        """Models that have raised on three requests in a row that were alone, or on twelve batches in a row."""
        return frozenset(self.models[number].name for number in self._life.failing)

    @property
    def warmed_s(self) -> Mapping[str, float]:
        """The longest run of each model's warm-up, in seconds."""
        return self._warmed_s

    @property
    def limit_s(self) -> Mapping[str, float]:
        """Seconds by model from which a batch counts as hung, where the slowest is known."""
        return self._limit_s

    def expect(self, p99_s: Mapping[str, float]) -> None:
        """Seconds of the slowest batches by model, since another size of its part has others.

        Those in flight may take as long, where that is longer: what is left of them runs on a smaller part.
        """
        self._limit_s = {name: max(LIMIT_TIMES * p99, LIMIT_S_MIN) for name, p99 in p99_s.items()}
        if self._life.in_flight:
            self._step(Allowed({number: self._limit_s.get(name, 0.0) for name, number in self._numbers.items()}))

    def hand_over(self, on_done: OnDone, on_exit: OnExit) -> None:
        """From now on these are called in place of those that were, also for what is under way."""
        self._on_done, self._on_exit = on_done, on_exit

    def kill(self) -> None:
        """Kills its process: batches that it had are lost, and ``on_exit`` names them."""
        if self._life.state not in ENDED:
            self._kill()

    def run(self, batch: int, model: str, rows: int, slot: int, *, is_one: bool = True) -> None:
        """Runs the first rows of a slot, after the batch that runs already. Only while ``can_take``.

        ``is_one``: They are of one request.
        """
        number = self._numbers[model]
        assert 1 <= rows <= self.models[number].max_batch, "rows of a batch"
        limit_s = self._limit_s.get(model)
        if limit_s is None:
            limit_s = max(LIMIT_TIMES * self._warmed_s.get(model, 0.0), LIMIT_S_MIN)
        self._step(Asked(Batch(batch, number, rows, slot, limit_s, is_one)))

    async def close(self, within_s: float = 5.0) -> None:
        """Ends it: what runs and is staged may take ``within_s`` seconds, then it is killed."""
        self._step(Closing(within_s))
        await asyncio.shield(self._ended)

    async def ready(self) -> None:
        """Waits until it takes batches.

        Raises:
            ServeError: It can't; it has ended then.
        """
        try:
            line = await self._ready
            if line:
                await self.close(0)
        except asyncio.CancelledError:
            await self.close(0)
            raise
        if line:
            raise ServeError(f"an executor did not become ready: {line}")

    # ---- its life

    def _woken(self) -> None:
        self._timer = None
        self._step(Woke())

    def _step(self, event: Event) -> None:
        for action in self._life.step(event, self._loop.time()):
            self._act(action)
        self._set_timer()

    def _set_timer(self) -> None:
        wake_s = self._life.wake_s
        if self._timer is not None:
            if self._timer.when() == wake_s:
                return
            self._timer.cancel()
            self._timer = None
        if wake_s != math.inf:
            self._timer = self._loop.call_at(wake_s, self._woken)

    def _act(self, action: Action) -> None:
        match action:
            case Send(frame):
                self._send(frame)
            case Finished(batch, raised, started_ns, ended_ns):
                self._on_done(
                    BatchDone(
                        batch=batch.number,
                        model=self.models[batch.model].name,
                        rows=batch.rows,
                        slot=batch.slot,
                        problem=self._text(batch.model, batch.slot) if raised else "",
                        started_ns=started_ns,
                        ended_ns=ended_ns,
                    )
                )
            case Warmed(model, _, took_s):
                name = self.models[model].name
                self._warmed_s[name] = max(self._warmed_s.get(name, 0.0), took_s)
            case Became():
                if not self._ready.done():
                    self._ready.set_result("")
            case Failed(model, is_spoilt):
                self._why, self._is_spoilt = self._text(model, 0), is_spoilt
            case Kill():
                self._kill()
            case Ended(line, lost):
                self._over(self._why or line, tuple(batch.number for batch in lost))

    def _over(self, line: str, lost: tuple[int, ...]) -> None:
        tell = self._on_exit
        # Who is told has this executor, mostly: so both are forgotten together, without garbage collection.
        self.hand_over(_to_nobody, _to_nobody)
        if not self._ready.done():
            self._ready.set_result(line or "it was closed")
        elif not self._ready.cancelled():
            tell(ExecutorEnded(line=line, lost=lost))


def _to_nobody(_: object) -> None:
    """For an executor that has ended."""
