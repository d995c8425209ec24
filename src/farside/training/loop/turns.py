"""A worker's turns on a node that several jobs share: it asks its node's executor before each subtask.

A turn makes jobs quicker and is never a condition. Where the connection ends, the worker goes on without and tries
again before its next subtask; where nobody answers for `SILENCE_S`, it does not try for `QUIET_S`, or it would wait
before each of them [harmony §IV-A].

While it is on the network, and when it asks for a turn, its thread goes before those that compute: another job has the
processors then, and a link would be idle until that one's slice is over.
"""

import contextlib
import socket
import time
from typing import Protocol

from farside.agent.training.alpha import Keep, Use
from farside.agent.training.messages import (
    SILENCE_S,
    SPILLING_VERSION,
    VERSION,
    WORKER_BYTES_MAX,
    Beat,
    FromWorker,
    Granted,
    HasDone,
    Here,
    Keeps,
    Refused,
    Wants,
    Yields,
    packet_of,
    to_worker,
    wire_of_use,
)
from farside.agent.training.subtask import INIT_COMP, resource_of
from farside.errors import RemoteProtocolError
from farside.kmod_shim.time_slice import EVERYBODYS_NS, SHORT_NS, set_time_slice
from farside.log import get_log

_log = get_log("training")

QUIET_S = 1.0
"""After silence: an executor that died is replaced within moments, but for one that dies again and again."""
EXECUTOR = "FARSIDE_EXECUTOR"
"""Environment variable: the socket of this node's executor."""


class Turns(Protocol):
    """How a worker takes turns."""

    def ask(self, position: int) -> None:
        """Returns when the subtask may begin; the one before is over."""

    def done(self) -> None:
        """The subtask that was asked for is over."""

    def give_way(self) -> None:
        """Lets others use the network, on which nothing moves; returns when it may go on."""

    def tell(self, use: Use) -> bool:
        """Says what an iteration took; whether somebody hears that and decides."""
        ...

    def told(self) -> Keep | None:
        """What was decided since this was last asked; None: nothing has changed."""

    def close(self) -> None:
        """No subtask follows."""


class NoTurns:
    """A node of its own."""

    def ask(self, position: int) -> None:
        """Begins at once."""

    def done(self) -> None:
        """Nobody waits."""

    def give_way(self) -> None:
        """Nobody waits."""

    def tell(self, use: Use) -> bool:
        """Nobody hears it."""
        return False

    def told(self) -> Keep | None:
        """Nobody decides."""
        return None

    def close(self) -> None:
        """Nothing is open."""


class SharedNode:
    """Turns by the executor of this node."""

    def __init__(self, path: str, *, job: str, worker: int, workers: int, spills: bool = False) -> None:
        """Connects when a subtask is asked for.

        Args:
            path: The executor's socket.
            job: Name of the job, which counts for this user alone.
            worker: This worker's number in it.
            workers: How many there are, each on a node of its own.
            spills: Whether it will say what its memory is.
        """
        self._version = SPILLING_VERSION if spills else VERSION
        self._keep: Keep | None = None
        self._path, self._job, self._worker, self._workers = path, job, worker, workers
        self._sock: socket.socket | None = None
        self._position = INIT_COMP
        self._is_refused = self._is_warned = False
        self._has_lease = False
        self._asks_from_s = 0.0
        self.without = 0
        """Subtasks that began without a turn."""

    def ask(self, position: int) -> None:
        """Returns when the subtask may begin, with a turn or without."""
        self._position = position
        set_time_slice(SHORT_NS)
        if self._sock is None and time.monotonic() >= self._asks_from_s:
            self._connect(position)
        self._say(Wants(position))
        self._await()
        if resource_of(position) == "cpu":
            set_time_slice(EVERYBODYS_NS)

    def done(self) -> None:
        """Gives the turn back."""
        self._say(HasDone(self._position))

    def give_way(self) -> None:
        """Gives the turn back and asks for it again."""
        # Who was let through has nothing to give, and gets no answer.
        if self._sock is not None and self._has_lease:
            self._say(Yields(self._position))
            self._await()

    def tell(self, use: Use) -> bool:
        """Tells the executor, which answers before or with the next turn."""
        self._say(wire_of_use(use))
        return self._sock is not None

    def told(self) -> Keep | None:
        """What the executor has said last, once."""
        keep, self._keep = self._keep, None
        return keep

    def close(self) -> None:
        """Leaves the node's queue."""
        set_time_slice(EVERYBODYS_NS)
        self._hang_up()

    def _hang_up(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _connect(self, position: int) -> None:
        if self._is_refused:
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(SILENCE_S)
        try:
            sock.connect(self._path)
        except OSError as error:
            sock.close()
            if not self._is_warned:
                _log.warning("no executor answers; this worker goes on without turns", socket=self._path, reason=error)
            self._is_warned = True
            return
        self._sock = sock
        self._say(Here(self._version, self._job, self._worker, self._workers, position, position == INIT_COMP))

    def _say(self, message: FromWorker) -> None:
        if self._sock is not None:
            try:
                self._sock.send(packet_of(message))
            except OSError:
                self._hang_up()

    def _received(self) -> bytes:
        assert self._sock is not None
        try:
            return self._sock.recv(WORKER_BYTES_MAX + 1)
        except TimeoutError:
            self._asks_from_s = time.monotonic() + QUIET_S
            raise

    def _await(self) -> None:
        """Waits for the turn at this position."""
        while self._sock is not None:
            with contextlib.suppress(OSError, RemoteProtocolError):
                packet = self._received()
                answer = to_worker(packet) if packet else None
                if isinstance(answer, Granted):
                    if answer.position == self._position:
                        self._has_lease = answer.lease_s is not None
                        self.without += not self._has_lease
                        return
                    continue  # of a subtask that was begun without
                if isinstance(answer, Beat):
                    continue
                if isinstance(answer, Keeps):
                    self._keep = Keep(spilled=answer.spilled, by_peer=answer.by_peer)
                    continue
                if isinstance(answer, Refused):
                    self._is_refused = True
                    _log.warning("this worker goes on without turns", reason=answer.line)
            self._hang_up()
        self._has_lease = False
        self.without += 1
