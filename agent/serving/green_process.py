"""The process that computes for all parts of a GPU, each in a green context of its own: a thread for each executor.

Its parent says which parts there are, and their sizes; executors' processes hand their ends over (executor_process.py).
Where one of them ends, its thread ends after the batch that runs; if that hangs, or an error has left the GPU unusable
by this process, this process ends, and all parts with it: they are started anew.
"""

import ctypes
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from farside.agent.serving.arena import Arena
from farside.agent.serving.executor_process import Loader, Setup, run_models
from farside.agent.serving.model_file import Framework
from farside.agent.serving.partition.granules import assign
from farside.agent.serving.partition.green import FRAMEWORK
from farside.agent.serving.priority import go_with_others
from farside.errors import FarsideError, Unavailable
from farside.log import get_log, start_logging

if TYPE_CHECKING:
    from farside.agent.serving.green_gpu import Gpu
    from farside.agent.serving.model import Load

# A batch that runs when its executor has ended may take so long.
END_S = 5.0
_FDS = 3
_LINE_BYTES = 64
_STATE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_log = get_log("agent.serving")


def main(
    arguments: list[str], make_gpu: "Callable[[], Gpu] | None" = None, load: Loader | None = None, end_s: float = END_S
) -> int:
    """Computes until the parent is gone; the exit code.

    Args:
        arguments: File descriptors: of the parent's line, and of the socket that executors connect to.
        make_gpu: What makes the GPU; GreenGpu, but for tests.
        load: What loads models of a framework; `_loader`, but for tests.
        end_s: As END_S.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for ending in (signal.SIGINT, signal.SIGTERM):  # as for executors
        signal.signal(ending, signal.SIG_IGN)
    start_logging("info")
    parent, listener = (socket.socket(fileno=int(fd)) for fd in arguments)
    parent.setblocking(False)
    try:
        gpu = (make_gpu or _green_gpu)()
    except (ImportError, FarsideError) as error:
        return _refuse(listener, str(error))
    _Host(parent, listener, _Parts(parent, gpu), load or _loader, end_s).run()
    return 0


def _green_gpu() -> "Gpu":
    from farside.agent.serving.green_gpu import GreenGpu

    return GreenGpu()


def _loader(framework: Framework) -> "Load":
    from farside.agent.serving.model import loader

    if framework != FRAMEWORK:
        raise Unavailable("green contexts serve TorchScript files alone", hint="use mps for others")
    return loader(framework)


def _refuse(listener: socket.socket, why: str) -> int:
    """Tells each executor why it can't start, until the parent ends this process."""
    while True:
        connection, _ = listener.accept()
        with connection:
            _, fds, _, _ = socket.recv_fds(connection, _LINE_BYTES, _FDS)
            if len(fds) == _FDS:
                _Executor(connection, fds).fail(why)


class _Parts:
    """Which SMs each part has: what the parent said last. Used from all threads."""

    def __init__(self, parent: socket.socket, gpu: "Gpu") -> None:
        self._parent, self._gpu = parent, gpu
        self._lock = threading.Lock()
        self._ranges: dict[int, range] = {}
        self.is_orphan = False

    def read(self) -> None:
        """Takes what the parent has said; sets ``is_orphan`` once it is gone."""
        with self._lock:
            self._read()

    @contextmanager
    def on(self, part: int) -> Iterator[None]:
        """What runs in its body runs on the part's SMs, those that the parent gave it last.

        Raises:
            Unavailable: There is no such part any more.
        """
        with self._lock:
            self._read()
            granules = self._ranges.get(part)
            if granules is None:
                raise Unavailable("this part of the GPU was closed")
            stream = self._gpu.on(granules)
        try:
            with stream:
                yield
        except Exception:
            if self._gpu.is_broken():
                _end("an error has left the GPU unusable by this process")
            raise

    def _read(self) -> None:
        said = b""
        with suppress(BlockingIOError):
            while packet := self._parent.recv(_STATE_BYTES):
                said = packet
            self.is_orphan = True
        if not said:
            return
        sizes = msgspec.json.decode(said, type=list[tuple[int, int]])
        before, self._ranges = self._ranges, assign(sizes, self._gpu.granules, self._ranges)
        for part, part_pct in sizes:
            granules = self._ranges[part]
            if before.get(part) != granules:
                _log.info(
                    "a part has SMs", part=part, part_pct=part_pct, sms=self._gpu.sms(granules),
                    granules=f"{granules.start} to {granules.stop - 1} of {self._gpu.granules}",
                )  # fmt: skip
        self._gpu.forget_unused()


class _Executor:
    """The ends that an executor's process has handed over."""

    def __init__(self, connection: socket.socket, fds: list[int]) -> None:
        self.connection = connection
        self.line = socket.socket(fileno=fds[0])
        with open(fds[2], "rb") as file:
            file.seek(0)
            self.setup = msgspec.json.decode(file.read(), type=Setup)
        self.arena = Arena(self.setup.models, fds[1])
        self.thread: threading.Thread | None = None
        self.end_by_s = 0.0

    def fail(self, why: str) -> None:
        """Tells the front that it can't start."""
        self.arena.write_text(0, 0, why)
        self._say_failed()
        self.close()

    def run(self, parts: _Parts, load: Loader) -> None:
        """Computes until it is told to stop, or its process has ended."""
        code = 1
        try:
            with suppress(OSError):  # the front is gone
                code = run_models(self.line, self.arena, self.setup, load, lambda: parts.on(self.setup.entry.part))
        finally:
            with suppress(OSError):
                self.connection.send(bytes([code]))
            self.close()

    def stop(self) -> None:
        """Has it end after the batch that runs."""
        with suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Gives its ends back."""
        self.line.close()
        self.arena.close()

    def _say_failed(self) -> None:
        from farside.agent.serving.frames import Frame, Kind, encode

        with suppress(OSError):
            self.line.send(encode(Frame(Kind.FAILED)))


class _Host:
    """Takes executors over, and watches for their ends."""

    def __init__(
        self, parent: socket.socket, listener: socket.socket, parts: _Parts, load: Loader, end_s: float
    ) -> None:
        self._parent, self._listener, self._parts, self._load, self._end_s = parent, listener, parts, load, end_s
        self._executors: dict[socket.socket, _Executor] = {}

    def run(self) -> None:
        """Until the parent is gone."""
        with selectors.DefaultSelector() as selector:
            for one in (self._parent, self._listener):
                selector.register(one, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(self._wait_s())]
                self._parts.read()
                if self._parts.is_orphan:
                    return
                for one in ready:
                    if one is self._listener:
                        self._accept(selector)
                    elif isinstance(one, socket.socket) and one in self._executors:
                        self._ended(selector, one)
                self._end_hung()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        connection, _ = self._listener.accept()
        with ExitStack() as stack:
            stack.callback(connection.close)
            _, fds, _, _ = socket.recv_fds(connection, _LINE_BYTES, _FDS)
            if len(fds) != _FDS:  # its process ended before it said anything
                for fd in fds:
                    os.close(fd)
                return
            executor = _Executor(connection, fds)
            stack.pop_all()
        self._executors[connection] = executor
        selector.register(connection, selectors.EVENT_READ)
        executor.thread = threading.Thread(target=executor.run, args=(self._parts, self._load), daemon=True)
        executor.thread.start()

    def _ended(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        """Its process is gone: it was killed, or its thread has told it to end."""
        selector.unregister(connection)
        executor = self._executors[connection]
        executor.stop()
        executor.end_by_s = time.monotonic() + self._end_s

    def _end_hung(self) -> None:
        for connection, executor in list(self._executors.items()):
            if not executor.end_by_s:
                continue
            assert executor.thread is not None
            if not executor.thread.is_alive():
                del self._executors[connection]
                connection.close()
            elif time.monotonic() >= executor.end_by_s:
                _end(f"a batch runs on {self._end_s:g} s after its executor has ended")

    def _wait_s(self) -> float | None:
        """Until something has to be looked at that no socket tells."""
        return 0.05 if any(one.end_by_s for one in self._executors.values()) else None


def _end(why: str) -> None:
    _log.error("the process of a GPU ends, and all its parts with it", why=why)
    os._exit(1)


if __name__ == "__main__":
    go_with_others()
    sys.exit(main(sys.argv[1:]))
