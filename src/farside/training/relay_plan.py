"""The plan of a job that Farside's manager runs: by the relay of the node's agent, which may come and go."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping

from farside.agent.aggregator.layout import Layout, Tensor
from farside.agent.aggregator.plan import JobPlan
from farside.agent.relay_protocol import (
    HEAD_BYTES,
    POLL_S,
    Ask,
    Declare,
    FromMember,
    FromRelay,
    Given,
    Measured,
    Refused,
    encoded,
    from_relay,
    length_of,
    ticket_in,
)
from farside.errors import ConfigError, PeerError, RemoteProtocolError, Unavailable
from farside.log import get_log

SOCKET, TOKEN = "FARSIDE_AGGREGATION", "FARSIDE_AGGREGATION_TOKEN"
ANSWER_LIMIT_S = POLL_S + 15.0
RETRY_FIRST_S, RETRY_MAX_S = 0.05, 1.0
TELL_PERIOD_S = 10.0

_log = get_log("training")


class RelayPlan:
    """A plan that the manager changes while the job trains.

    The agent may be started anew meanwhile, and the manager may be away: `plan` then waits, and training goes on.
    """

    is_static = False

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Reads the environment of a job's process; speaks to nobody.

        Raises:
            ConfigError: This is no process of a job with shared aggregation.
        """
        self._path, self._token = environment.get(SOCKET, ""), environment.get(TOKEN, "")
        if not self._path or not self._token:
            hint = 'submit it with aggregation = "shared", or name a service and a key_file'
            raise ConfigError("this process is in no job with shared aggregation", hint=hint)
        try:
            ticket = ticket_in(self._token)
        except RemoteProtocolError as error:
            raise ConfigError(f"{TOKEN}: {error}", hint="leave it as Farside has set it") from error
        self.job, self.start, self.rank, self.members = ticket.job, ticket.start, ticket.rank, ticket.members
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._telling: socket.socket | None = None

    def plan(self, layout: Layout, *, rule: str, after_epoch: int) -> JobPlan:
        """Blocks until there is a plan newer than this epoch; 0: the present one. See `PlanSource`.

        Raises:
            PeerError: There will be none, as the relay says in one line.
            Unavailable: `close` was called.
        """
        tensors: tuple[Tensor, ...] = ()
        pause_s, told_s, problem = RETRY_FIRST_S, time.monotonic(), ""
        while not self._closed.is_set():
            ask = Ask(token=self._token, digest=layout.digest, rule=rule, after_epoch=after_epoch, tensors=tensors)
            try:
                answer = self._asked(ask)
            except (OSError, RemoteProtocolError) as error:
                # The agent is being started anew; the plan of before stands meanwhile.
                problem = str(error)
                if time.monotonic() - told_s >= TELL_PERIOD_S:
                    told_s = time.monotonic()
                    _log.warning("the node's agent does not answer, and training waits for no news", why=problem)
                self._closed.wait(pause_s)
                pause_s = min(RETRY_MAX_S, 2 * pause_s)
                continue
            pause_s = RETRY_FIRST_S
            if isinstance(answer, Given):
                return answer.plan
            if isinstance(answer, Refused):
                raise PeerError(f"job {self.job}: {answer.line}")
            # Said again with each question: whoever answers next may be another process that knows nothing.
            tensors = layout.tensors if isinstance(answer, Declare) else tensors
        raise Unavailable("the member was closed")

    def measured(self, iteration: int, iteration_s: float) -> None:
        """Tells how long this member's last iterations took, an iteration; lost where nobody listens."""
        message = Measured(token=self._token, iteration=iteration, iteration_s=iteration_s)
        with self._lock:
            if self._closed.is_set():
                return
            try:
                if self._telling is None:
                    self._telling = self._connection(timeout_s=1.0)
                self._telling.sendall(encoded(message))
            except OSError:
                if self._telling is not None:
                    self._telling.close()
                self._telling = None

    def close(self) -> None:
        """Ends calls that block."""
        self._closed.set()
        with self._lock:
            for sock in (*self._open, *filter(None, [self._telling])):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            if self._telling is not None:
                self._telling.close()
                self._telling = None

    def _connection(self, *, timeout_s: float) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.settimeout(timeout_s)
            sock.connect(self._path)
        except OSError:
            sock.close()
            raise
        return sock

    def _asked(self, message: FromMember) -> FromRelay:
        with self._connection(timeout_s=ANSWER_LIMIT_S) as sock:
            with self._lock:
                self._open.add(sock)
            try:
                sock.sendall(encoded(message))
                return from_relay(_received(sock, length_of(_received(sock, HEAD_BYTES))))
            finally:
                with self._lock:
                    self._open.discard(sock)


def _received(sock: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        part = sock.recv(min(count - len(found), 1 << 16))
        if not part:
            raise ConnectionResetError("the agent ended")
        found += part
    return bytes(found)
