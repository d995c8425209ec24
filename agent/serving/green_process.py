"""The process that computes for all parts of a GPU, each in a green context of its own: a thread for each executor.

Its parent says which parts there are, and their sizes; executors' processes pass their file descriptors on
(executor_process.py). Where one of them ends, its thread ends after the batch that runs. If that batch hangs, or an
error has left the GPU unusable by this process, this process ends, and all parts with it: they are started again.

The main thread makes no call that waits for the GPU, so that it always sees a batch that hangs.
"""

import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from farside.agent.serving.arena import Arena
from farside.agent.serving.executor_process import Loader, Setup, end_with_front, run_models
from farside.agent.serving.frames import Frame, Kind, encode
from farside.agent.serving.model_file import Framework
from farside.agent.serving.partition.granules import assign
from farside.agent.serving.partition.green import FRAMEWORK
from farside.agent.serving.priority import go_with_others
from farside.errors import Unavailable
from farside.log import get_log, start_logging

if TYPE_CHECKING:
    from farside.agent.serving.green_gpu import Gpu
    from farside.agent.serving.model import Load

# A batch that runs when its executor has ended may take so long. What still loads takes its time.
END_S = 5.0
# An executor's process sends its file descriptors as soon as it is connected.
_PASS_S = 5.0
_LOOK_S = 0.05
_FDS = 3
_LINE_BYTES = 64
_STATE_BYTES = 1 << 16

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
    end_with_front()
    start_logging("info")
    parent, listener = (socket.socket(fileno=int(fd)) for fd in arguments)
    parent.setblocking(False)
    gpu, problem = None, ""
    try:
        gpu = (make_gpu or _green_gpu)()
    except Exception as error:  # whatever PyTorch and the driver raise
        problem = " ".join(str(error).split()) or type(error).__name__
    _Host(parent, listener, _Parts(parent, gpu), load or _loader, end_s, problem).run()
    return 0


def _green_gpu() -> "Gpu":
    from farside.agent.serving.green_gpu import GreenGpu

    return GreenGpu()


def _loader(framework: Framework) -> "Load":
    from farside.agent.serving.model import loader

    if framework != FRAMEWORK:
        raise Unavailable("green contexts serve TorchScript files alone", hint="use mps for others")
    return loader(framework)


class _Parts:
    """Which SMs each part has: what the parent said last. All threads use it; ``gpu`` is None where there is none."""

    def __init__(self, parent: socket.socket, gpu: "Gpu | None") -> None:
        self._parent, self.gpu = parent, gpu
        self._lock = threading.Lock()
        self._ranges: dict[int, range] = {}

    def read(self) -> bool:
        """Takes what the parent has said; False once it is gone. Waits for nothing."""
        with self._lock:
            said, is_there = b"", True
            with suppress(BlockingIOError):
                while packet := self._parent.recv(_STATE_BYTES):
                    said = packet
                is_there = False
            if said and self.gpu is not None:
                sizes = msgspec.json.decode(said, type=list[tuple[int, int]])
                before, self._ranges = self._ranges, assign(sizes, self.gpu.granules, self._ranges)
                for part, part_pct in sizes:
                    if part not in before:
                        sms = self.gpu.sms(self._ranges[part])
                        _log.info("a part of the GPU was opened", part=part, part_pct=part_pct, sms=sms)
            return is_there

    @contextmanager
    def on(self, part: int) -> Iterator[None]:
        """What runs in its body runs on the part's SMs, those that the parent gave it last.

        Raises:
            Unavailable: There is no such part any more.
        """
        self.read()
        granules = self._ranges.get(part)
        if granules is None or self.gpu is None:
            raise Unavailable("this part of the GPU was closed")
        with self.gpu.on(granules):
            yield


class _Executor:
    """An executor: what its process has passed on, and the thread that computes for it. It is run_models' Part."""

    def __init__(self, connection: socket.socket, fds: list[int], parts: _Parts) -> None:
        self._connection, self._parts = connection, parts
        self._line = socket.socket(fileno=fds[0])
        with open(fds[2], "rb") as file:
            file.seek(0)
            self._setup = msgspec.json.decode(file.read(), type=Setup)
        self._arena = Arena(self._setup.models, fds[1])
        self.is_ready = False
        self.end_by_s = 0.0
        self.thread: threading.Thread | None = None

    def refuse(self, why: str) -> None:
        """Tells the front that it can't start."""
        self._arena.write_text(0, 0, why)
        with suppress(OSError):
            self._line.send(encode(Frame(Kind.FAILED)))
        self._end(1)

    def start(self, load: Loader) -> None:
        """Computes in a thread of its own until the front stops it, or its process has ended."""
        self.thread = threading.Thread(target=self._run, args=(load,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Has it end after what runs now."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def _run(self, load: Loader) -> None:
        code = 1
        try:
            with suppress(OSError):  # the front is gone
                code = run_models(self._line, self._arena, self._setup, load, self)
        finally:
            self._end(code)

    def _end(self, code: int) -> None:
        """Has its process end, and gives what that has passed on back."""
        with suppress(OSError):
            self._connection.send(bytes([code]))
        self._line.close()
        self._arena.close()

    # ---- for run_models

    def on(self) -> AbstractContextManager[None]:
        """On the SMs of its part."""
        return self._parts.on(self._setup.entry.part)

    def ready(self) -> None:
        """All models are loaded."""
        self.is_ready = True

    def is_spoilt(self, error: Exception) -> bool:
        """Whether it has left the GPU unusable by all parts."""
        return self._parts.gpu is not None and self._parts.gpu.is_broken(error)

    def end(self) -> None:
        """All parts end; the front knows the error already."""
        _end("an error has left the GPU unusable by this process")


class _Host:
    """Takes executors over, and watches for their ends. ``problem``: why it computes nothing; empty: it does."""

    def __init__(
        self, parent: socket.socket, listener: socket.socket, parts: _Parts, load: Loader, end_s: float, problem: str
    ) -> None:
        self._parent, self._listener, self._parts, self._load = parent, listener, parts, load
        self._end_s, self._problem = end_s, problem
        self._executors: dict[socket.socket, _Executor] = {}

    def run(self) -> None:
        """Until the parent is gone."""
        with selectors.DefaultSelector() as selector:
            for known in (self._parent, self._listener):
                selector.register(known, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(self._wait_s())]
                if not self._parts.read():
                    return
                for one in ready:
                    if one is self._listener:
                        self._accept(selector)
                    elif isinstance(one, socket.socket) and one in self._executors:
                        self._ended(selector, one)
                self._forget()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with ExitStack() as stack:
            try:
                connection, _ = self._listener.accept()
                stack.callback(connection.close)
                connection.settimeout(_PASS_S)
                _, fds, _, _ = socket.recv_fds(connection, _LINE_BYTES, _FDS)
                if len(fds) != _FDS:  # its process has ended
                    for fd in fds:
                        os.close(fd)
                    return
                executor = _Executor(connection, fds, self._parts)
            except (
                OSError,
                ValueError,
            ) as error:  # no file descriptors or memory are left: it ends, and is tried again
                _log.warning("an executor could not be taken over", why=str(error))
                return
            if self._problem:
                executor.refuse(self._problem)
                return
            stack.pop_all()
        self._executors[connection] = executor
        selector.register(connection, selectors.EVENT_READ)
        executor.start(self._load)

    def _ended(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        """Its process is gone: it was killed, or ended when its thread did."""
        selector.unregister(connection)
        executor = self._executors[connection]
        executor.stop()
        executor.end_by_s = time.monotonic() + self._end_s

    def _forget(self) -> None:
        """Those whose threads have ended; ends this process where one hangs."""
        for connection, executor in list(self._executors.items()):
            if not executor.end_by_s:
                continue
            assert executor.thread is not None
            if not executor.thread.is_alive():
                del self._executors[connection]
                connection.close()
            elif executor.is_ready and time.monotonic() >= executor.end_by_s:
                _end(f"a batch runs on {self._end_s:g} s after its executor has ended")

    def _wait_s(self) -> float | None:
        """Seconds until threads have to be looked at; None: not before a socket is ready."""
        return _LOOK_S if any(one.end_by_s for one in self._executors.values()) else None


def _end(why: str) -> None:
    _log.error("the process of a GPU ends, and all its parts with it", why=why)
    os._exit(1)


if __name__ == "__main__":
    go_with_others()
    sys.exit(main(sys.argv[1:]))
