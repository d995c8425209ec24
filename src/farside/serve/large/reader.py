"""The front's side of the process that reads large requests.

A JSON body of megabytes takes hundreds of milliseconds to read or to write, with the interpreter's lock: a thread would
hold up all other requests as the event loop does. So a process does that. Bodies and tensors go through memory files,
which are written by a thread and mapped.
"""

import asyncio
import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from farside.agent.serving.model_file import ModelFile
from farside.log import get_log
from farside.serve.door_server import Cancel
from farside.serve.http2.call import CallError
from farside.serve.inference import Array, InferenceError, InferRequest, Kind
from farside.serve.large.memory import Parts, write_parts
from farside.serve.large.message import PACKET_BYTES_MAX, Job, Result, Writing, laid_out, request_of

# Of requests that wait to be read, or are read, and of outputs that answers are made of.
HELD_BYTES_MAX = 512 << 20
LIMIT_S = 30.0  # of one
# Handed over: one that is done, and the next. Others wait here, where those whose clients have gone are dropped.
_HANDED_MAX = 2
_ENDED = "the process that reads large requests ended"

_log = get_log("serve.large")

# Submits a request to its model; what it gives back forgets it.
Done = Callable[[ModelFile, InferRequest], Cancel]
# Takes what a client is told, and the model that is asked; empty: it is not known.
Fail = Callable[[InferenceError | CallError, str], None]
# Takes the body of an answer and the bytes of its head; None where it is JSON alone.
Written = Callable[[tuple[memoryview, int | None]], None]


class Ticket:
    """A request that is read, until it is answered; or an answer that is written."""

    __slots__ = ("_after", "_is_cancelled", "_take", "fail", "job")

    def __init__(self, job: Job | Writing, take: Callable[[Result, memoryview], Cancel | None], fail: Fail) -> None:
        self.job, self._take, self.fail = job, take, fail
        self._after: Cancel | None = None
        self._is_cancelled = False

    def cancel(self) -> None:
        """Its client has gone."""
        self._is_cancelled = True
        if self._after is not None:
            self._after()

    def done(self, result: Result, memory: memoryview) -> None:
        """The request or the answer is there."""
        if not self._is_cancelled:
            self._after = self._take(result, memory)

    def refused(self, error: InferenceError | CallError, model: str) -> None:
        """There is none."""
        if not self._is_cancelled:
            self.fail(error, model)


class LargeReader:
    """Has large requests read and large answers written, in their order; used from one event loop.

    Args:
        models: By name.
    """

    def __init__(self, models: Mapping[str, ModelFile]) -> None:
        self._models = models
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "large-requests")
        self._tickets: dict[int, Ticket] = {}
        self._parts: dict[int, Parts] = {}  # of those that are not handed over
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
        """Requests that are not read, and answers that are not written."""
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
        job = Job(number=self._number + 1, size=len(body), model=model, encoding=encoding)
        return self._give(job, [(0, body)], partial(self._read, done), fail)

    def write(
        self, model: ModelFile, request: InferRequest, arrays: Sequence[Array], done: Written, fail: Fail
    ) -> Cancel:
        """Has the body of an answer by HTTP written; ``done`` or ``fail`` is called later, as by `read`.

        Args:
            model: The model.
            request: What was asked.
            arrays: The outputs that it wants, in its order; they are not changed any more.
            done: Takes the body.
            fail: Takes why there is none.

        Raises:
            InferenceError: Too much waits already, or there is no process.
        """
        parts = laid_out([model.outputs[place] for place in request.outputs], request.rows, arrays)
        at, last = parts[-1]
        job = Writing(
            number=self._number + 1, size=at + len(last), model=model.name, id=request.id, rows=request.rows,
            outputs=request.outputs, binary=request.binary,
        )  # fmt: skip
        return self._give(job, parts, partial(_write, done), fail)

    def _give(
        self, job: Job | Writing, parts: Parts, take: Callable[[Result, memoryview], Cancel | None], fail: Fail
    ) -> Cancel:
        if self._held + job.size > HELD_BYTES_MAX:
            raise InferenceError(Kind.FULL, "too many large requests and answers wait", hint="try again later")
        try:
            self.start()
        except OSError as error:
            raise _not_now(error) from error
        self._number = job.number
        self._held += job.size
        ticket = self._tickets[job.number] = Ticket(job, take, fail)
        self._parts[job.number] = parts
        if self._timer is None:
            self._timer = self._loop.call_later(LIMIT_S, self._kill)
        self._hand_on()
        return partial(self._cancel, ticket)

    def _cancel(self, ticket: Ticket) -> None:
        ticket.cancel()
        if self._parts.pop(ticket.job.number, None) is not None:
            self._taken(ticket.job.number)

    def _hand_on(self) -> None:
        while self._parts and len(self._tickets) - len(self._parts) < _HANDED_MAX:
            assert self._line is not None
            number = next(iter(self._parts))
            job, parts = self._tickets[number].job, self._parts.pop(number)
            handed = self._loop.run_in_executor(self._thread, _hand_over, self._line, job, parts)
            handed.add_done_callback(partial(self._handed, number))

    def _handed(self, number: int, handed: asyncio.Future[None]) -> None:
        """Refuses a request that could not be handed over; if the process has ended, the socket shows that."""
        error = None if handed.cancelled() else handed.exception()
        if error is None or isinstance(error, ConnectionError) or number not in self._tickets:
            return
        ticket = self._taken(number)
        # Those that the process has keep their time: it may hang.
        if not self._tickets:
            self._stop_timer()
        self._hand_on()
        ticket.refused(_not_now(error), ticket.job.model)

    def _taken(self, number: int) -> Ticket:
        """One that waits no longer."""
        ticket = self._tickets.pop(number)
        self._held -= ticket.job.size
        return ticket

    def close(self) -> None:
        """Ends the process; what is not read or written is refused."""
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
            ticket = self._taken(result.number)
            self._stop_timer()
            if self._tickets:
                self._timer = self._loop.call_later(LIMIT_S, self._kill)
                self._hand_on()
            self._tell(ticket, result, fds[0])
        finally:
            os.close(fds[0])

    def _tell(self, ticket: Ticket, result: Result, file: int) -> None:
        if result.kind:
            ticket.refused(InferenceError(Kind[result.kind], result.line), result.model)
        elif result.code:
            ticket.refused(CallError(result.code, result.line), result.model)
        else:
            try:
                memory = memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
            except OSError as error:
                ticket.refused(_not_now(error), result.model)
                return
            ticket.done(result, memory)

    def _read(self, done: Done, result: Result, memory: memoryview) -> Cancel:
        model = self._models[result.model]
        return done(model, request_of(model, result, memory))

    def _kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        process, self._process = self._process, None
        line, self._line = self._line, None
        if process is None or line is None:
            return
        self._loop.remove_reader(line)
        line.close()
        process.wait()
        self._stop_timer()
        tickets, self._tickets, self._held = self._tickets, {}, 0
        self._parts.clear()
        for ticket in tickets.values():
            ticket.refused(InferenceError(Kind.DIED, _ENDED, hint="try again"), ticket.job.model)


def _not_now(error: BaseException) -> InferenceError:
    why = error.strerror if isinstance(error, OSError) else type(error).__name__
    return InferenceError(Kind.FULL, f"large requests and answers can not be served now: {why}")


def _write(done: Written, result: Result, memory: memoryview) -> None:
    done((memory, None if result.head < 0 else result.head))


def _hand_over(line: socket.socket, job: Job | Writing, parts: Parts) -> None:
    """Writes a body or tensors into a file, and sends that: in a thread, as both may take their time."""
    file = os.memfd_create("farside-body", os.MFD_CLOEXEC)
    try:
        write_parts(file, parts)
        socket.send_fds(line, [msgspec.json.encode(job)], [file])
    finally:
        os.close(file)
