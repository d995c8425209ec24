"""An executor, seen from the front: starts its process on a part of a device, hands it batches, notices its end."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from farside.agent.serving.arena import Arena, Array
from farside.agent.serving.executor_process import Setup
from farside.agent.serving.frames import FRAME_BYTES, decode, encode
from farside.agent.serving.life import (
    ENDED,
    Action,
    Asked,
    Batch,
    Became,
    Closing,
    Ended,
    Event,
    Exited,
    Failed,
    Finished,
    Kill,
    Life,
    Received,
    Send,
    State,
    Warmed,
    Woke,
)
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.policy import Measured, Place
from farside.errors import FarsideError, RemoteProtocolError

HELLO_S = 10.0
PREPARE_S = 60.0
LIMIT_S_MIN = 1.0  # of a batch, before it counts as hung
LIMIT_TIMES = 3  # what the slowest is expected to take
PROGRAM = ("-P", "-m", "farside.agent.serving.executor_process")
_PACKETS_AT_ONCE = 16


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


async def start_executor(
    place: Place,
    models: Sequence[ModelFile],
    on_done: OnDone,
    on_exit: OnExit,
    *,
    p99_s: Mapping[str, float] | None = None,
    prepare_s: float = PREPARE_S,
    program: Sequence[str] = PROGRAM,
) -> "Executor":
    """An executor that has loaded its models and run them.

    Args:
        place: Its part of a device; it is closed with the executor, and when this fails.
        models: What it serves, for its whole life.
        on_done: Called for each batch that ended, in the order in which they were asked.
        on_exit: Called once when it is over, whether it was closed or not; not if this fails.
        p99_s: Seconds of the slowest batches by model, from a profile: one that takes over three times that, and over
            a second, counts as hung. Without it what the warm-up took is used.
        prepare_s: How long it may take to be ready.
        program: Python's arguments that start it; others than PROGRAM in tests.

    Raises:
        ServeError: It did not become ready; one line of why.
    """
    assert models, "an executor serves something"
    executor = Executor(place, models, on_done, on_exit, p99_s or {}, prepare_s, program)
    try:
        await executor._ready
    except (asyncio.CancelledError, ServeError):
        await executor.close(0)
        raise
    return executor


class Executor:
    """A process on a part of a device; made by `start_executor`. Used from one event loop."""

    def __init__(
        self,
        place: Place,
        models: Sequence[ModelFile],
        on_done: OnDone,
        on_exit: OnExit,
        p99_s: Mapping[str, float],
        prepare_s: float,
        program: Sequence[str],
    ) -> None:
        self.place = place
        self.models = tuple(models)
        self._numbers = {model.name: number for number, model in enumerate(models)}
        self._on_done, self._on_exit = on_done, on_exit
        self._limit_s = {name: max(LIMIT_TIMES * p99, LIMIT_S_MIN) for name, p99 in p99_s.items()}
        self._warmed_s: dict[str, float] = {}
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._why = ""
        try:
            self._arena = Arena(self.models)
        except (OSError, ValueError) as error:
            place.close()
            raise ServeError(f"an executor's slots could not be made: {error}", hint="lower max_batch") from error
        try:
            self._line, self._process = _start(place, self.models, self._arena, program)
        except OSError as error:
            self._arena.close()
            place.close()
            raise ServeError(f"an executor could not be started: {error.strerror}") from error
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._life = Life(len(models), self._loop.time(), hello_s=HELLO_S, prepare_s=prepare_s)
        self._loop.add_reader(self._line, self._read)
        self._loop.add_reader(self._pidfd, self._has_exited)
        self._set_timer()

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
        """Models that have raised on three batches in a row."""
        return frozenset(self.models[number].name for number in self._life.failing)

    @property
    def warmed_s(self) -> Mapping[str, float]:
        """The longest run of each model's warm-up, in seconds."""
        return self._warmed_s

    def slot_inputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """Views of ``max_batch`` rows of each input; slots are 0 and 1."""
        return self._arena.slots[self._numbers[model]][slot].inputs

    def slot_outputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """Views of ``max_batch`` rows of each output: those of the slot's last batch, until the next one is run."""
        return self._arena.slots[self._numbers[model]][slot].outputs

    def run(self, batch: int, model: str, rows: int, slot: int) -> None:
        """Runs the first rows of a slot, after the batch that runs already. Only while ``can_take``."""
        number = self._numbers[model]
        assert 1 <= rows <= self.models[number].max_batch, "rows of a batch"
        limit_s = self._limit_s.get(model)
        if limit_s is None:
            limit_s = max(LIMIT_TIMES * self._warmed_s.get(model, 0.0), LIMIT_S_MIN)
        self._step(Asked(Batch(batch, number, rows, slot, limit_s)))

    async def resize(self, part_pct: int) -> bool:
        """Another size of its part; False: this driver or size needs a new executor, and nothing has changed."""
        return self._life.state not in ENDED and self.place.resize(part_pct)

    def measured(self) -> Measured | None:
        """What its part has used of the device."""
        return self.place.measured()

    async def close(self, within_s: float = 5.0) -> None:
        """Ends it: what runs and is staged may take ``within_s`` seconds, then it is killed."""
        self._step(Closing(within_s))
        await asyncio.shield(self._ended)

    # ---- events

    def _read(self) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = self._line.recv(FRAME_BYTES + 1)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                # Its process ends, as its pidfd will tell; one that only closed its end is of no use.
                self._loop.remove_reader(self._line)
                self._kill()
                return
            try:
                self._step(Received(decode(packet)))
            except RemoteProtocolError as error:
                self._kill()
                self._step(Exited(str(error)))
            if self._life.state in ENDED:
                return

    def _has_exited(self) -> None:
        self._loop.remove_reader(self._pidfd)
        self._read_rest()
        code = self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        self._step(Exited(f"its process {how}"))
        self._release()

    def _read_rest(self) -> None:
        """What it said before it ended."""
        if self._life.state not in ENDED and self._line.fileno() >= 0:
            self._read()

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
        if wake_s != float("inf"):
            self._timer = self._loop.call_at(wake_s, self._woken)

    # ---- actions

    def _act(self, action: Action) -> None:
        match action:
            case Send(frame):
                try:
                    self._line.send(encode(frame))
                except OSError:  # it has ended, as its pidfd will tell
                    pass
            case Finished(batch, raised, started_ns, ended_ns):
                self._on_done(
                    BatchDone(
                        batch=batch.number,
                        model=self.models[batch.model].name,
                        rows=batch.rows,
                        slot=batch.slot,
                        problem=self._arena.read_text(batch.model, batch.slot) if raised else "",
                        started_ns=started_ns,
                        ended_ns=ended_ns,
                    )
                )
            case Warmed(model, _, took_s):
                name = self.models[model].name
                self._warmed_s[name] = max(self._warmed_s.get(name, 0.0), took_s)
            case Became():
                if not self._ready.done():
                    self._ready.set_result(None)
            case Failed(model):
                self._why = self._arena.read_text(model, 0)
            case Kill():
                self._kill()
            case Ended(line, lost):
                self._over(self._why or line, tuple(batch.number for batch in lost))

    def _over(self, line: str, lost: tuple[int, ...]) -> None:
        if not self._ready.done():
            self._ready.set_exception(ServeError(f"an executor did not become ready: {line or 'it was closed'}"))
            return
        if not self._ready.cancelled():
            self._on_exit(ExecutorEnded(line=line, lost=lost))

    def _kill(self) -> None:
        try:
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:  # it has ended
            pass

    def _release(self) -> None:
        """Its process is gone: everything of it is given back."""
        self._loop.remove_reader(self._line)
        self._line.close()
        os.close(self._pidfd)
        self._arena.close()
        self.place.close()
        if not self._ended.done():
            self._ended.set_result(None)


def _start(
    place: Place, models: tuple[ModelFile, ...], arena: Arena, program: Sequence[str]
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    setup_fd = os.memfd_create("farside-setup")
    try:
        os.write(setup_fd, msgspec.json.encode(Setup(entry=place.entry, models=models)))
        os.lseek(setup_fd, 0, os.SEEK_SET)
        fds = (theirs.fileno(), arena.fd, setup_fd)
        process = subprocess.Popen(
            [sys.executable, *program, *map(str, fds)],
            pass_fds=fds,
            env={**os.environ, **place.entry.environment, "OMP_NUM_THREADS": str(place.entry.threads)},
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(setup_fd)
    return ours, process
