"""Control connection over a real socket, for both roles: bytes and file descriptors in and out.

How it works
============
The protocol is ``protocol.py``'s; this file moves its bytes. asyncio's streams cannot carry SCM_RIGHTS, so the socket
is watched with ``add_reader`` and ``add_writer`` and used with ``recvmsg`` and ``sendmsg``.

* One task reads (``next_event``). Any code of the same loop may send: sending never waits, frames leave in the order
  of the calls, and what the socket does not take at once is kept up to OUT_BYTES_MAX. A peer that does not read loses
  its connection there, instead of our memory or time.
* Descriptors travel from donor to borrower only, on unix sockets, with the first byte of their frame. A borrower takes
  them with ``take_fds`` when it handles that frame. A donor's socket has no room for ancillary data, so the kernel
  closes what a borrower sends.
* ``hand_over`` gives up the socket after WELCOME of a data connection, with nothing read beyond it.
"""

import array
import asyncio
import os
import socket
from collections import deque
from collections.abc import Sequence

from farside.daemon.control import messages as m
from farside.daemon.control.protocol import Connection, Event, NeedData, Output, PeerClosed, Received, Side
from farside.errors import PeerError, RemoteProtocolError

OUT_BYTES_MAX = 1 << 20
"""Unsent bytes a peer may cost us: 16 of the largest frames, more than all answers to IN_FLIGHT_MAX requests."""
_READ_BYTES = 65536


class Channel:
    """A connected stream socket that speaks the control protocol. Owns the socket until ``hand_over``."""

    def __init__(self, sock: socket.socket, connection: Connection) -> None:
        sock.setblocking(False)
        self.connection = connection
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        # A donor never asks recvmsg(2) for descriptors: the kernel then closes those that a borrower sends.
        self._takes_fds = sock.family == socket.AF_UNIX and connection.side is Side.BORROWER
        self._fds_in: deque[int] = deque()
        # Frames, or the rest of the first one, with the descriptors that go with its next byte.
        self._out: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._out_bytes = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._broken: OSError | None = None
        self._is_closed = False
        # What next_event waits for; close() ends the wait by it.
        self._reading: asyncio.Future[None] | None = None

    @property
    def is_local(self) -> bool:
        """True on a unix socket: the peer is on this host, and descriptors can be passed."""
        return self._sock.family == socket.AF_UNIX

    # ---- handshake

    async def open(self, *, role: m.Role = "control", session: int = 0, worker: int = 0, epoch: int = 0) -> m.Welcome:
        """Borrower: sends HELLO, proves the key both ways, and returns the donor's WELCOME.

        Raises:
            PeerError: the donor refused (its ErrorCode is in ``code``) or went away.
            RemoteProtocolError: the donor broke the protocol, or does not have the key.
        """
        self._send(self.connection.start(role=role, session=session, worker=worker, epoch=epoch))
        while True:
            match await self.next_event():
                case Received(message=m.Welcome() as welcome):
                    return welcome
                case Received(message=m.Error() as error):
                    raise PeerError(f"the donor refused: {error.message}", code=error.code)
                case PeerClosed():
                    raise PeerError("the donor closed the connection during the handshake")

    def decide(self, answer: m.Welcome | m.Error) -> None:
        """Donor: welcomes a proved borrower, or refuses it."""
        self._send(self.connection.send(answer))

    # ---- messages

    async def next_event(self) -> Event:
        """Wait for the peer's next event; the handshake's own bytes are sent on the way.

        Raises:
            PeerError: the connection is lost.
            RemoteProtocolError: the peer broke the protocol.
        """
        while True:
            event = self.connection.next_event()
            if isinstance(event, Output):
                self._send(event.data)
            elif not isinstance(event, NeedData):
                return event
            else:
                await self._readable()
                self._receive_nowait()

    def ask(self, message: m.Message) -> int:
        """Sends a request, or a donor's notice, without waiting; returns its sequence, which the answer carries."""
        self._check_open()
        self._send(self.connection.send(message))
        return self.connection.last_seq

    def answer(self, seq: int, message: m.Message, fds: Sequence[int] = ()) -> None:
        """Sends the answer to request `seq`, with descriptors that the caller keeps and may close after this call."""
        assert not fds or (self.is_local and self.connection.side is Side.DONOR)
        self._check_open()
        self._send(self.connection.send(message, reply_to=seq), tuple(fds))

    def farewell(self, code: m.ErrorCode, text: str) -> None:
        """Send the reason why the connection ends, as far as the socket takes it now; then close."""
        if self._is_closed:
            return
        try:
            self._send(self.connection.farewell(code, text))
        except PeerError:
            pass  # it is gone, or does not read: nobody to tell
        self.close()

    def take_fds(self, count: int) -> tuple[int, ...]:
        """Borrower: the next `count` descriptors received; the caller owns them.

        Raises:
            RemoteProtocolError: fewer have come than the frame says.
        """
        if count > len(self._fds_in):
            raise RemoteProtocolError(f"{count} descriptors announced, {len(self._fds_in)} came")
        return tuple(self._fds_in.popleft() for _ in range(count))

    @property
    def fds_waiting(self) -> int:
        """How many descriptors have come and were not taken."""
        return len(self._fds_in)

    # ---- the end

    async def drain(self) -> None:
        """Returns when everything sent so far is with the kernel, or the connection is lost."""
        await self._drained.wait()

    async def hand_over(self) -> socket.socket:
        """Gives up the socket of a data connection, blocking again, exactly after WELCOME.

        Raises:
            PeerError: the connection was lost before.
            RemoteProtocolError: the peer sent bytes that it should not have sent yet.
        """
        self._check_open()
        await self.drain()
        if self._broken:
            raise PeerError(f"connection lost: {self._broken.strerror}")
        if self.connection.unread:
            raise RemoteProtocolError("bytes came before the data connection was handed over")
        # close() below must leave the socket alone that goes to the engine: it gets an unconnected one to close.
        sock, self._sock = self._sock, socket.socket(self._sock.family)
        self.close()
        sock.setblocking(True)
        return sock

    def close(self) -> None:
        """Close the socket and all descriptors not taken; a waiting ``next_event`` raises PeerError. Harmless twice."""
        self._is_closed = True
        if self._reading is not None and not self._reading.done():
            self._reading.set_exception(PeerError("the connection was closed here"))
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()
        for fd in self._fds_in:
            os.close(fd)
        self._fds_in.clear()
        self._forget_out()

    # ---- the socket

    def _check_open(self) -> None:
        # Closed by another task, as when the peer came back on a new connection: for the caller the peer is gone.
        if self._is_closed:
            raise PeerError("the connection was closed here")

    async def _readable(self) -> None:
        self._check_open()
        fd, future = self._sock.fileno(), self._loop.create_future()
        self._reading = future
        # Registered only while next_event waits: what nobody asks for stays in the kernel's buffer and slows the peer.
        self._loop.add_reader(fd, _wake, future)
        try:
            await future
        finally:
            self._reading = None
            # close() has taken it out itself; by now the number may be another file's.
            if not self._is_closed:
                self._loop.remove_reader(fd)

    def _receive_nowait(self) -> None:
        try:
            data = self._recvmsg() if self._takes_fds else self._sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerError(f"connection lost: {error.strerror}") from error
        self.connection.receive(data)

    def _recvmsg(self) -> bytes:
        # As much as the kernel passes with one sendmsg (LEASES_MAX).
        room = socket.CMSG_SPACE(m.LEASES_MAX * array.array("i").itemsize)
        data, ancillary, flags, _ = self._sock.recvmsg(_READ_BYTES, room, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                # What was cut may end within a descriptor's number.
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
                self._fds_in.extend(fds)
        # The kernel closes descriptors that find no room, and says so by MSG_CTRUNC only.
        if flags & socket.MSG_CTRUNC or len(self._fds_in) > 2 * m.LEASES_MAX:
            raise RemoteProtocolError("more descriptors than one message may have")
        return data

    def _send(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        self._check_open()
        if not data:
            return
        if self._broken:
            raise PeerError(f"connection lost: {self._broken.strerror}")
        if self._out_bytes + len(data) > OUT_BYTES_MAX:
            raise PeerError("the other side does not read its answers")
        self._out.append((memoryview(data), self._duplicates(fds)))
        self._out_bytes += len(data)
        # Tried at once: in most cases the socket takes the frame, and nothing waits for the loop.
        self._drained.clear()
        self._flush()

    def _duplicates(self, fds: Sequence[int]) -> tuple[int, ...]:
        """Descriptors of our own, for a frame that must wait: the caller may close its right after the call."""
        ours: list[int] = []
        try:
            for fd in fds:
                ours.append(os.dup(fd))
        except OSError as error:
            for fd in ours:
                os.close(fd)
            # The protocol has counted the frame, so none can be sent after it.
            self._broken = error
            raise PeerError(f"no descriptors to pass: {error.strerror}") from error
        return tuple(ours)

    def _flush(self) -> None:
        try:
            while self._out:
                self._send_first()
        except BlockingIOError:
            # Harmless when it is registered already: asyncio replaces the callback.
            self._loop.add_writer(self._sock.fileno(), self._flush)
            return
        except OSError as error:
            self._broken = error  # the reader will meet it too; who sends next is told
            self._forget_out()
        self._loop.remove_writer(self._sock.fileno())
        self._drained.set()

    def _send_first(self) -> None:
        data, fds = self._out[0]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        # MSG_NOSIGNAL: a peer that is gone is an error here, and no SIGPIPE.
        sent = self._sock.sendmsg([data], rights, socket.MSG_NOSIGNAL)
        self._out_bytes -= sent
        # The kernel has its own references from the first byte on, so the rest of the frame goes without descriptors.
        for fd in fds:
            os.close(fd)
        self._out.popleft()
        if sent < len(data):
            self._out.appendleft((data[sent:], ()))

    def _forget_out(self) -> None:
        for _, fds in self._out:
            for fd in fds:
                os.close(fd)
        self._out.clear()
        self._out_bytes = 0
        self._drained.set()


# The future may be done already: the waiting task was cancelled, or the channel closed, in the same turn of the loop.
def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
