"""An executor whose process is on this host: starts it on a part of a device, hands it batches, notices its end."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import msgspec

from farside.agent.serving.arena import Arena, Array
from farside.agent.serving.executor_process import SPOILT, Setup
from farside.agent.serving.frames import FRAME_BYTES, Frame, decode, encode
from farside.agent.serving.handle import BatchDone, ExecutorEnded, ExecutorHandle, OnDone, OnExit, ServeError
from farside.agent.serving.life import ENDED, PREPARE_S, Exited, Received
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.policy import Entry, Measured, Place, SharedFate
from farside.errors import RemoteProtocolError

__all__ = [
    "PROGRAM",
    "BatchDone",
    "Executor",
    "ExecutorEnded",
    "OnDone",
    "OnExit",
    "ServeError",
    "start_executor",
]

PROGRAM = ("-P", "-m", "farside.agent.serving.executor_process")
_PACKETS_AT_ONCE = 16
_HUGE_PAGES = "glibc.malloc.hugetlb"


async def start_executor(
    place: Place,
    models: Sequence[ModelFile],
    on_done: OnDone,
    on_exit: OnExit,
    *,
    p99_s: Mapping[str, float] | None = None,
    prepare_s: float = PREPARE_S,
    prepare_pct: int = 100,
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
        prepare_pct: So much of the device it gets at most until it is ready, where its driver can hold it to that; 100:
            its part.
        program: Python's arguments that start it; others than PROGRAM in tests.

    Raises:
        ServeError: It did not become ready; one line of why.
    """
    assert models, "an executor serves something"
    is_held = prepare_pct < 100 and place.hold(prepare_pct)
    executor = Executor(place, models, on_done, on_exit, p99_s or {}, prepare_s, program)
    try:
        await executor.ready()
    finally:
        if is_held:
            place.let_go()
    return executor


class Executor(ExecutorHandle):
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
        super().__init__(models, on_done, on_exit, p99_s=p99_s, prepare_s=prepare_s)
        self.place = place
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
        if isinstance(place, SharedFate):
            place.on_spoilt = self._kill
        self._loop.add_reader(self._line, self._read)
        self._loop.add_reader(self._pidfd, self._has_exited)
        self._set_timer()

    def slot_inputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """Views of ``max_batch`` rows of each input; slots are 0 and 1."""
        return self._arena.slots[self._numbers[model]][slot].inputs

    def slot_outputs(self, model: str, slot: int) -> Mapping[str, Array]:
        """Views of ``max_batch`` rows of each output: those of the slot's last batch, until the next one is run."""
        return self._arena.slots[self._numbers[model]][slot].outputs

    @property
    def part_pct(self) -> int:
        """The size of its part."""
        return self.place.part_pct

    async def resize(self, part_pct: int, p99_s: Mapping[str, float] | None = None) -> bool:
        """Another size of its part; False: this driver or size needs a new executor, and nothing has changed."""
        is_done = self._life.state not in ENDED and self.place.resize(part_pct)
        if is_done and p99_s is not None:
            self.expect(p99_s)
        return is_done

    def measured(self) -> Measured | None:
        """What its part has used of the device."""
        return self.place.measured()

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
        if (code == SPOILT or self._is_spoilt) and isinstance(self.place, SharedFate):
            self.place.spoilt()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        self._step(Exited(f"its process {how}"))
        self._release()

    def _read_rest(self) -> None:
        """What it said before it ended."""
        if self._life.state not in ENDED and self._line.fileno() >= 0:
            self._read()

    # ---- actions

    def _send(self, frame: Frame) -> None:
        try:
            self._line.send(encode(frame))
        except OSError:  # it has ended, as its pidfd will tell
            pass

    def _text(self, model: int, slot: int) -> str:
        return self._arena.read_text(model, slot)

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
            env=_environment(place.entry),
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(setup_fd)
    return ours, process


def _environment(entry: Entry) -> dict[str, str]:
    """This process's, with the part's variables and threads.

    On a CPU the C library asks for transparent huge pages: a batch reads all weights of its model, and with small pages
    it looks for many of them first. Who sets this tunable of glibc decides instead.
    """
    environment = {**os.environ, **entry.environment, "OMP_NUM_THREADS": str(entry.threads)}
    tunables = environment.get("GLIBC_TUNABLES", "")
    if entry.computes_on == "cpu" and _HUGE_PAGES not in tunables:
        environment["GLIBC_TUNABLES"] = ":".join(filter(None, (tunables, f"{_HUGE_PAGES}=1")))
    return environment
