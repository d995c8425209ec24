"""A server of HTTP/1.1: sockets, time, and requests one after the other on each connection.

A request costs no task and no timer of its own: what takes its bytes apart calls who serves it, and an answer is
written where it is made.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

from farside.log import get_log
from farside.scheduler.manager.api.limit.connections import Connections
from farside.serve.door_server import Cancel, DoorConnection, DoorServer
from farside.serve.http1.answer import JSON, answer_parts, error_body
from farside.serve.http1.connection import Bounds, Head, Http1Connection, Judged, Whole
from farside.serve.http2.budget import Share, Unsent

IDLE_LIMIT_S = 75.0  # clients keep connections for their next request, and see a reset where one is closed
# Of bodies that are not whole, on all connections.
HELD_BYTES_ALL = 512 << 20
# An answer is given to the kernel in parts of so much, as its client takes them.
_PART_BYTES = 256 << 10

_log = get_log("serve.http")


class Reply:
    """Where the answer to one request goes; a client that has gone gets none."""

    __slots__ = ("_connection",)

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection

    def answer(self, status: int, fields: bytes, body: bytes | memoryview) -> None:
        """Answers; ``fields`` are lines of the head, each with its end."""
        self._connection.answer(self, status, fields, body)

    def later(self, cancel: Cancel) -> None:
        """The answer takes another step; ``cancel`` is called where the client hangs up before."""
        self._connection.later(self, cancel)


# What it gives back is called where the client hangs up before its answer.
Serve = Callable[[Whole, Reply], Cancel | None]


class HttpServer(DoorServer):
    """Requests over HTTP/1.1.

    Args:
        read: Judges heads.
        serve: Answers requests.
        head_bytes_max: Of a request.
        wire_bytes_max: Of a body with what frames it.
        listener: Listens already.
        tls: Context that speaks TLS.
        connections: Counts the connections of each address.
    """

    def __init__(
        self, read: Callable[[Head], Judged], serve: Serve, *, head_bytes_max: int, wire_bytes_max: int,
        listener: socket.socket, tls: ssl.SSLContext | None, connections: Connections,
    ) -> None:  # fmt: skip
        super().__init__(lambda: _Connection(self, self._loop), listener=listener, tls=tls, connections=connections)
        self.read, self.serve, self.share = read, serve, Share(HELD_BYTES_ALL)
        self.bounds = Bounds(head_bytes=head_bytes_max, wire_bytes=wire_bytes_max, idle_s=IDLE_LIMIT_S)


class _Connection(DoorConnection):
    """One connection: bytes from its socket, requests to the server."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._state = Http1Connection(server.bounds, server.read, loop.time(), server.share)
        super().__init__(server, loop, self._state, Unsent(server.unsent))
        self._reply: Reply | None = None  # of the request under way, until it is answered
        self._cancel: Cancel | None = None
        self._left = memoryview(b"")  # of an answer
        self._is_paused = self._is_turn_asked = self._is_ended = False

    # ---- the socket

    def gone(self) -> None:
        """Cancels what its client waits for."""
        self._reply, cancel = None, self._cancel
        self._cancel = None
        if cancel is not None:
            cancel()

    def release(self) -> None:
        """Drops what is left of an answer, too."""
        super().release()
        self._left = memoryview(b"")
        self.unsent.drop(self.unsent.size)

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        self._state.receive(data, self._loop.time())
        self._go_on()

    def pause_writing(self) -> None:
        """Its client does not read what it is sent, so nothing more is read of it."""
        self._stalled_s = self._loop.time()
        self._pause()

    def resume_writing(self) -> None:
        """Its client reads on."""
        self._stalled_s = 0.0
        # Not from here: asyncio ends a connection twice that is closed while it says so.
        self._loop.call_soon(self._send)
        self._pause()

    def due(self, now_s: float) -> None:
        """Closes a connection whose client is late."""
        if self.unsent.size and now_s > self.unsent.due_s:
            self._transport.abort()
        elif now_s > self._state.late_s:
            if self._state.is_closed:  # its answer may still be on the way
                self.finish()
            else:
                self._transport.abort()

    def leave(self) -> None:
        """Closes once the request under way is answered."""
        super().leave()
        if not self._state.is_busy:
            self.finish()

    # ---- requests

    def _turn(self) -> None:
        self._is_turn_asked = False
        if not self._transport.is_closing():
            self._state.go_on(self._loop.time())
            self._go_on()

    def _go_on(self) -> None:
        state = self._state
        self._write_out()
        whole = None if self._stalled_s or self._is_leaving else state.take()
        if whole is not None:
            self.count(is_waiting=False)
            self._call(whole)
        elif state.has_more:
            self._ask_turn()
        if state.is_closed and not state.is_busy:
            self._end_answers()
        self._pause()

    def _write_out(self) -> None:
        if self._state.out:
            self._transport.write(self._state.out)
            self._state.out = b""

    def _call(self, whole: Whole) -> None:
        reply = self._reply = Reply(self)
        try:
            cancel = self._server.serve(whole, reply)
        except Exception as error:  # the top of a request: a fault of ours is recorded, and the door stays open
            _log.error("a request failed", cause=error)
            self.answer(reply, 500, JSON, error_body("the server failed on this request; its log says why"))
            return
        if self._reply is reply:
            self._cancel = cancel

    def later(self, reply: Reply, cancel: Cancel) -> None:
        """Has something else cancelled where its client hangs up."""
        if self._reply is reply:
            self._cancel = cancel

    def answer(self, reply: Reply, status: int, fields: bytes, body: bytes | memoryview) -> None:
        """Sends an answer."""
        if self._reply is not reply:
            return
        self._reply = self._cancel = None
        has_body, is_kept = self._state.answers()
        self._is_leaving |= not is_kept
        parts = answer_parts(status, fields, body, is_kept=not self._is_leaving, has_body=has_body)
        if len(body) < _PART_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.write(parts[0])
            self._left = memoryview(body) if has_body else memoryview(b"")
            self.unsent.add(len(self._left), self._loop.time())
        self._send()
        self._server.make_room()

    def _send(self) -> None:
        """Sends on; the next request has its turn once all of an answer is with the kernel or nearly so."""
        if self._transport.is_closing():
            return
        while self._left and not self._stalled_s:
            part, self._left = self._left[:_PART_BYTES], self._left[_PART_BYTES:]
            self._transport.write(part)
            self.unsent.sent(len(part), self._loop.time())
        if self._left or self._reply is not None:
            return
        if self._state.is_busy:
            self._state.answered(self._loop.time())
            if self._is_leaving:
                self._end_answers()
                return
            self._write_out()
            self.count(is_waiting=True)
        self._ask_turn()  # a turn takes no request while its client does not read, so the next one may wait here

    def _end_answers(self) -> None:
        """Closes; where its client may still be sending, its answer is not lost to a reset by that."""
        if not self._state.lingers or self._server.is_stopping:
            self.finish()
        elif not self._is_ended and not self._transport.is_closing():
            self._is_ended = True
            self.count(is_waiting=True)
            if self._transport.can_write_eof():  # TLS has no such half
                try:
                    self._transport.write_eof()
                except OSError:  # its client has gone
                    self.end()

    def _ask_turn(self) -> None:
        if self._state.is_pending and not self._is_turn_asked:
            self._is_turn_asked = True
            self._loop.call_soon(self._turn)

    def _pause(self) -> None:
        is_paused = bool(self._stalled_s) or self._state.is_full
        if is_paused != self._is_paused and not self._transport.is_closing():
            self._is_paused = is_paused
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()
