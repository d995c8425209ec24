"""The front's side of the process that reads large requests.

A JSON body of megabytes takes hundreds of milliseconds to read, with the interpreter's lock: a thread would hold up all
other requests as the event loop does. So a process reads it. Bodies and tensors go through memory files, which are
written by a thread and mapped.
"""

import asyncio
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import msgspec

from farside.agent.serving.model_file import ModelFile
from farside.log import get_log
from farside.serve.door_server import Cancel
from farside.serve.http2.call import CallError
from farside.serve.inference import InferenceError, InferRequest, Kind
from farside.serve.large.message import PACKET_BYTES_MAX, Job, Result, request_of

# Of requests that wait to be read, or are read.
HELD_BYTES_MAX = 512 << 20
LIMIT_S = 30.0  # of one
_ENDED = "the process that reads large requests ended"

_log = get_log("serve.large")

# Submits a request to its model; what it gives back forgets it.
Done = Callable[[ModelFile, InferRequest], Cancel]
Fail = Callable[[InferenceError | CallError], None]


class Ticket:
    """A request that is read, until it is answered."""

    __slots__ = ("_after", "_is_cancelled", "done", "fail", "size")

    def __init__(self, size: int, done: Done, fail: Fail) -> None:
        self.size, self.done, self.fail = size, done, fail
        self._after: Cancel | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Its client has gone."""
        self._is_cancelled = True
        if self._after is not None:
            self._after()

    def read(self, model: ModelFile, request: InferRequest) -> None:
        """The request is there."""
        if not self._is_cancelled:
            self._after = self.done(model, request)

    def refused(self, error: InferenceError | CallError) -> None:
        """There is no request."""
        if not self._is_cancelled:
            self.fail(error)


class LargeReader:
    """Reads large requests in their order; used from one event loop.

    Args:
        models: By name.
    """

    def __init__(self, models: Mapping[str, ModelFile]) -> None:
        self._models = models
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "large-requests")
        self._tickets: dict[int, Ticket] = {}
        self._number = self._held = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """Number of the process that reads; 0: there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def waiting(self) -> int:
        """Requests that are not read."""
        return len(self._tickets)

    def start(self) -> None:
        """Starts the process, so that the first large request need not wait for it."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        setup = os.memfd_create("farside-models")
        try:
            os.write(setup, msgspec.json.encode(tuple(self._models.values())))
            os.lseek(setup, 0, os.SEEK_SET)
            fds = (theirs.fileno(), setup)
            command = [sys.executable, "-P", "-m", "farside.serve.large.process", *map(str, fds)]
            # Its numbers are looked at by one thread; a pool of BLAS would take memory for nothing.
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, env=environment)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(setup)
        self._line = ours
        self._loop.add_reader(ours, self._readable)

    def read(
        self, body: bytes | bytearray, done: Done, fail: Fail, *, model: str = "", encoding: str = "identity"
    ) -> Cancel:
        """Has a body read; ``done`` or ``fail`` is called later, unless what is given back was.

        Args:
            body: As it came, and not changed any more.
            done: Takes the model and the request.
            fail: Takes why it is none.
            model: What it is for; empty: it is a gRPC message that names it.
            encoding: How the gRPC message is compressed.

        Raises:
            InferenceError: Too much waits already, or there is no process.
        """
        if self._held + len(body) > HELD_BYTES_MAX:
            raise InferenceError(Kind.FULL, "too many large requests wait to be read", hint="try again later")
        try:
            self.start()
        except OSError as error:
            raise InferenceError(Kind.FULL, f"large requests can not be read now: {error.strerror}") from error
        assert self._line is not None
        self._number += 1
        self._held += len(body)
        ticket = self._tickets[self._number] = Ticket(len(body), done, fail)
        job = Job(number=self._number, size=len(body), model=model, encoding=encoding)
        if self._timer is None:
            self._timer = self._loop.call_later(LIMIT_S, self._kill)
        handed = self._loop.run_in_executor(self._thread, _hand_over, self._line, job, body)
        handed.add_done_callback(lambda _: handed.cancelled() or handed.exception())  # its end is told by the socket
        return ticket.cancel

    def close(self) -> None:
        """Ends the process; what is not read is refused."""
        self._kill()
        self._over()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _readable(self) -> None:
        assert self._line is not None
        try:
            packet, fds, _, _ = socket.recv_fds(self._line, PACKET_BYTES_MAX, 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            packet, fds = b"", []
        if not packet or not fds:
            _log.error(_ENDED, hint="the next large request starts it again")
            self._kill()
            self._over()
            return
        try:
            result = msgspec.json.decode(packet, type=Result)
            ticket = self._tickets.pop(result.number)
            self._held -= ticket.size
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(LIMIT_S, self._kill) if self._tickets else None
            self._tell(ticket, result, fds[0])
        finally:
            os.close(fds[0])

    def _tell(self, ticket: Ticket, result: Result, file: int) -> None:
        if result.kind:
            ticket.refused(InferenceError(Kind[result.kind], result.line))
        elif result.code:
            ticket.refused(CallError(result.code, result.line))
        else:
            model = self._models[result.model]
            memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
            ticket.read(model, request_of(model, result, memoryview(memory)))

    def _kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)

    def _over(self) -> None:
        process, self._process = self._process, None
        line, self._line = self._line, None
        if process is None or line is None:
            return
        self._loop.remove_reader(line)
        line.close()
        process.wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tickets, self._tickets, self._held = self._tickets, {}, 0
        for ticket in tickets.values():
            ticket.refused(InferenceError(Kind.DIED, _ENDED, hint="try again"))


def _hand_over(line: socket.socket, job: Job, body: bytes | bytearray) -> None:
    """Writes a body into a file, and sends that: in a thread, as both may take their time."""
    file = os.memfd_create("farside-body", os.MFD_CLOEXEC)
    try:
        left = memoryview(body)
        while left:
            left = left[os.write(file, left) :]
        socket.send_fds(line, [msgspec.json.encode(job)], [file])
    finally:
        os.close(file)
