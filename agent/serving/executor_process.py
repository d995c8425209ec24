"""The executor's own process: joins its part of the device, loads its models, warms them up, and runs batches.

It parses nothing that a client has sent: shapes were checked before, and tensors lie in the arena.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from farside.agent.serving.cuda import is_context_broken
from farside.agent.serving.frames import FRAME_BYTES, Frame, Kind, Status, decode, encode
from farside.agent.serving.model_file import Framework, ModelFile
from farside.agent.serving.partition.policy import Entry
from farside.agent.serving.priority import go_with_others

if TYPE_CHECKING:
    from farside.agent.serving.arena import Arena
    from farside.agent.serving.model import Load

Loader = Callable[[Framework], "Load"]


class Part(Protocol):
    """What models run on, for `run_models`."""

    def on(self) -> AbstractContextManager[object]:
        """What runs in its body runs on the part."""
        ...

    def ready(self) -> None:
        """All models are loaded, and were run."""
        ...

    def is_spoilt(self, error: Exception) -> bool:
        """Whether what a model has raised leaves the device unusable by this process."""
        ...

    def end(self) -> None:
        """Ends this process, as it is spoilt; the front knows what the model has raised."""
        ...


class _ThisProcess:
    """The part that a process is on with all that it does. ``is_broken``: whether the device fails there for good."""

    def __init__(self, is_broken: Callable[[], bool]) -> None:
        self._is_broken = is_broken

    def on(self) -> AbstractContextManager[object]:
        """All of this process runs there."""
        return nullcontext()

    def ready(self) -> None:
        """What is loaded stays; collections then look at little."""
        gc.freeze()

    def is_spoilt(self, error: Exception) -> bool:
        """Asks the device."""
        return self._is_broken()

    def end(self) -> None:
        """Another process can use the device."""
        from farside.log import get_log, start_logging  # no executor needs it before

        start_logging("info")
        get_log("agent.serving").error("an executor ends", why="an error has left the GPU unusable by its process")
        os._exit(SPOILT)  # what would clean up may wait for the GPU for ever


# The exit code of a process that can use its device no more.
SPOILT = 3
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor needs to start: how it gets into its part, and its models."""

    entry: Entry
    models: tuple[ModelFile, ...]


def main(arguments: list[str], load: "Loader | None" = None, is_broken: Callable[[], bool] = is_context_broken) -> int:
    """Runs until STOP, or until the other end of the socket is gone; the exit code.

    Args:
        arguments: File descriptors: of the socket, the arena, and a file with the Setup.
        load: What loads models of a framework; ``model.loader``, but for tests that let models fail.
        is_broken: Whether this process can use its device no more, after a model has raised; others in tests.
    """
    end_with_front()
    socket_fd, arena_fd, setup_fd = map(int, arguments)
    line = socket.socket(fileno=socket_fd)
    with open(setup_fd, "rb", closefd=False) as file:
        setup = msgspec.json.decode(file.read(), type=Setup)
    # Before anything is imported that makes threads: they stay where they were made.
    problem = _join(setup.entry)
    from farside.agent.serving.arena import Arena

    arena = Arena(setup.models, arena_fd)
    if setup.entry.host and not problem:
        line.send(encode(Frame(Kind.HELLO)))
        problem = _hold_place(setup.entry, (socket_fd, arena_fd, setup_fd))
    if problem:
        arena.write_text(0, 0, problem)
        line.send(encode(Frame(Kind.FAILED)))
        return 1
    line.send(encode(Frame(Kind.HELLO)))
    return run_models(line, arena, setup, load, _ThisProcess(is_broken))


def run_models(line: socket.socket, arena: "Arena", setup: Setup, load: "Loader | None", part: Part) -> int:
    """Loads the models and runs batches, until STOP, or until the other end of the socket is gone; the exit code.

    Args:
        line: To the front; HELLO has been said.
        arena: Where the tensors lie.
        setup: The models.
        load: As of `main`.
        part: What they run on.
    """
    from farside.agent.serving.model import loader

    models = []
    for number, model in enumerate(setup.models):
        try:
            with part.on():
                loaded = (load or loader)(model.framework)(
                    model, arena.slots[number], setup.entry.threads, setup.entry.computes_on
                )
            line.send(encode(Frame(Kind.LOADED, model=number)))
            for rows in warm_up_sizes(model.max_batch):
                started_ns = time.monotonic_ns()
                with part.on():
                    loaded.run(rows, 0)
                line.send(
                    encode(
                        Frame(Kind.WARMED, model=number, rows=rows, started_ns=started_ns, ended_ns=time.monotonic_ns())
                    )
                )
        except Exception as error:  # whatever a framework raises
            arena.write_text(number, 0, f"{model.path}: {error}")
            is_spoilt = part.is_spoilt(error)  # asked before: the front kills who has failed
            status = Status.SPOILT if is_spoilt else Status.RAISED
            line.send(encode(Frame(Kind.FAILED, status=status, model=number)))
            if is_spoilt:
                part.end()
            return 1
        models.append(loaded)
    part.ready()
    line.send(encode(Frame(Kind.READY)))
    while (packet := line.recv(FRAME_BYTES + 1)) and (frame := decode(packet)).kind is Kind.RUN:
        status, started_ns, raised = Status.OK, time.monotonic_ns(), None
        try:
            with part.on():
                models[frame.model].run(frame.rows, frame.slot)
        except Exception as error:  # whatever a framework raises
            status, raised = Status.RAISED, error
            arena.write_text(frame.model, frame.slot, str(error) or type(error).__name__)
        line.send(
            encode(frame._replace(kind=Kind.DONE, status=status, started_ns=started_ns, ended_ns=time.monotonic_ns()))
        )
        if raised is not None and part.is_spoilt(raised):
            part.end()
    return 0


def end_with_front() -> None:
    """Ends this process with the one that started it, by SIGKILL, and by nothing that a terminal or a service sends.

    Ctrl-C, and a SIGTERM to all processes of a service, are for the front, which ends executors in order.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for ending in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ending, signal.SIG_IGN)


def warm_up_sizes(max_batch: int) -> tuple[int, ...]:
    """Batches that are run before the first request: 1, 2, 4, ... and the largest.

    A size between them then takes no longer the first time than later: the slots are bound, and memory is there.
    """
    return tuple(sorted({min(1 << power, max_batch) for power in range(max_batch.bit_length() + 1)}))


def _join(entry: Entry) -> str:
    """Moves this process to its part; why it can't, or nothing."""
    for name in entry.files:
        try:
            Path(name).write_text("0")  # 0 is the process that writes
        except OSError as error:
            return f"{name}: {error.strerror}"
    if entry.cores:
        try:
            os.sched_setaffinity(0, entry.cores)
        except OSError as error:
            return f"cores {', '.join(map(str, entry.cores))}: {error.strerror}"
    if entry.daemon:
        from farside.agent.serving.partition.mps_control import why_silent  # few parts need it

        return why_silent(entry.daemon)
    return ""


def _hold_place(entry: Entry, fds: tuple[int, ...]) -> str:
    """Passes the file descriptors to the process that computes for the part, and ends with the code that it sends, or 1
    where it ends; returns where it can't be reached, with one line of why.

    That process sees the end of this one by the connection, and computes no more for the part then.
    """
    host = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        host.connect(entry.host)
        socket.send_fds(host, [str(entry.part).encode()], fds)
    except OSError as error:
        return f"the process that computes for all parts of the GPU can't be reached: {error.strerror}"
    code = b""
    with suppress(OSError):
        code = host.recv(1)
    os._exit(code[0] if code else 1)  # at once: the front would kill one whose end of the line is closed before


if __name__ == "__main__":
    go_with_others()
    sys.exit(main(sys.argv[1:]))
