"""A server of unary gRPC calls: sockets, time, and the limits that concern all connections.

A connection's frames are read some at a time, and then all others have their turn. What is answered within one turn of
the loop goes out in one call.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from farside.log import get_log
from farside.scheduler.manager.api.limit.connections import Connections
from farside.serve.door_server import Cancel, DoorConnection, DoorServer
from farside.serve.http2.budget import Share
from farside.serve.http2.call import (
    ANSWER_END,
    ANSWER_HEAD,
    PREFIX_BYTES,
    Call,
    CallError,
    failed,
    read_call,
    read_message,
    too_large,
    written,
)
from farside.serve.http2.connection import (
    BODY_LIMIT_S,
    Bounds,
    Early,
    Event,
    Gone,
    Http2Connection,
)
from farside.serve.http2.head import Head

CALLS_MAX = 1024
IDLE_LIMIT_S = 75.0  # as HTTP's
# Of bodies that are not whole, and of answers that a client does not take: beside each other on one connection.
_HELD_AT_ONCE = 4
_HELD_BYTES_MIN, _UNSENT_BYTES_MAX = 1 << 20, 64 << 20
# Of bodies that are not whole, on all connections; the largest body is 64 MiB.
_HELD_BYTES_ALL = 512 << 20

_log = get_log("serve.grpc")


class Reply:
    """Where the answer to one call goes; a client that has gone gets none."""

    __slots__ = ("_connection", "_stream")

    def __init__(self, connection: "_Connection", stream: int) -> None:
        self._connection, self._stream = connection, stream

    def ok(self, message: bytes) -> None:
        """Answers with a message."""
        self._connection.answer(self._stream, message)

    def fail(self, code: str, line: str) -> None:
        """Ends with a status."""
        self._connection.fail(self._stream, code, line)


# Takes call, message and reply; what it gives back is called where the client gives the call up before its answer.
Serve = Callable[[Call, bytes, Reply], Cancel | None]


class Method(NamedTuple):
    """What serves the calls of a path, and the largest message that it takes."""

    serve: Serve
    message_bytes_max: int


class Large(NamedTuple):
    """Bodies of ``path`` beyond ``size`` bytes, as they come or decompressed, are not taken apart here.

    ``serve`` takes them as they came.
    """

    path: bytes
    size: int
    serve: Callable[[Call, bytes | bytearray, Reply], Cancel | None]


class GrpcServer(DoorServer):
    """Calls by their path.

    Args:
        methods: By their path.
        barred: Why an authorization does not let a call pass; empty: it does.
        head_bytes_max: Of a call.
        listener: Listens already.
        tls: Context that speaks TLS; it has to offer h2.
        connections: Counts the connections of each address.
        large: What serves large messages otherwise.
    """

    def __init__(
        self, methods: Mapping[bytes, Method], barred: Callable[[bytes], str], *, head_bytes_max: int,
        listener: socket.socket, tls: ssl.SSLContext | None, connections: Connections, large: Large | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            lambda: _Connection(self, self._loop), listener=listener, tls=tls, connections=connections, alpn="h2"
        )
        self.methods, self.large, self.under_way = methods, large, 0
        known = {path: one.message_bytes_max for path, one in methods.items()}
        message_bytes_max = max(known.values())
        self.read: Callable[[Head], Call] = partial(read_call, known=known, barred=barred)
        self.share = Share(_HELD_BYTES_ALL)
        self.bounds = Bounds(
            head_bytes=head_bytes_max, body_bytes=message_bytes_max + PREFIX_BYTES,
            held_bytes=max(_HELD_BYTES_MIN, _HELD_AT_ONCE * message_bytes_max), unsent_bytes=_UNSENT_BYTES_MAX,
            streams=CALLS_MAX, idle_s=IDLE_LIMIT_S,
        )  # fmt: skip


class _Connection(DoorConnection):
    """One connection: bytes from its socket, calls to the server."""

    def __init__(self, server: GrpcServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._state = Http2Connection(server.bounds, server.read, loop.time(), server.share, server.unsent)
        super().__init__(server, loop, self._state, self._state.sender.unsent)
        self._cancels: dict[int, Cancel | None] = {}
        self._is_flushing = False

    # ---- the socket

    def opened(self) -> None:
        """Sends its settings."""
        self._flush()

    def gone(self) -> None:
        """Cancels what its client waits for."""
        for stream in tuple(self._cancels):
            self._gone(stream)

    def data_received(self, data: bytes) -> None:
        """Some frames."""
        self._handle(self._state.receive(data, self._loop.time()))
        if self._state.has_more:
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)
        self._flush()

    def _go_on(self) -> None:
        if self._transport.is_closing():
            return
        self._handle(self._state.go_on(self._loop.time()))
        if self._state.has_more:
            self._loop.call_soon(self._go_on)
        elif not self._stalled_s:
            self._transport.resume_reading()
        self._flush()

    def pause_writing(self) -> None:
        """Its client does not read what it is sent, so nothing more is read of it."""
        self._stalled_s = self._loop.time()
        self._state.sender.is_stalled = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Its client reads on."""
        self._stalled_s = 0.0
        self._state.sender.is_stalled = False
        if not self._state.has_more:
            self._transport.resume_reading()
        self._flush_soon()

    def due(self, now_s: float) -> None:
        """Ends calls and connections whose client is late."""
        self._handle(self._state.look(now_s))
        self._flush()

    def leave(self) -> None:
        """Takes no new calls, and closes once those under way are answered."""
        super().leave()
        self._state.leave()
        self._flush()

    # ---- calls

    def answer(self, stream: int, message: bytes) -> None:
        """Sends what a call is answered with."""
        self._over(stream)
        if not self._state.answer(stream, ANSWER_HEAD, written(message), ANSWER_END):
            self._state.answer(stream, failed("RESOURCE_EXHAUSTED", "too many answers wait for this client to read"))
        self._server.make_room()
        self._flush_soon()

    def fail(self, stream: int, code: str, line: str) -> None:
        """Sends the status that a call ends with."""
        self._over(stream)
        self._state.answer(stream, failed(code, " ".join(line.split())))
        self._flush_soon()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Gone):
                self._gone(event.stream)
            elif isinstance(event, Early):
                self._refuse(event)
            else:
                self._call(event.stream, event.head, event.body)

    def _refuse(self, event: Early) -> None:
        call: Call = event.head
        if call.refusal:
            self._state.answer(event.stream, call.refusal)
        elif event.why == "large":
            self.fail(event.stream, "RESOURCE_EXHAUSTED", too_large(call.message_bytes_max).line)
        elif event.why == "crowded":
            line = f"the messages that are under way on this connection are over {self._server.bounds.held_bytes} bytes"
            self.fail(event.stream, "RESOURCE_EXHAUSTED", line)
        elif event.why == "full":
            line = f"the messages that are under way are over {self._server.share.most} bytes; try again later"
            self.fail(event.stream, "RESOURCE_EXHAUSTED", line)
        else:
            self.fail(event.stream, "DEADLINE_EXCEEDED", f"the message did not come within {BODY_LIMIT_S:g} s")

    def _call(self, stream: int, call: Call, body: bytes | bytearray) -> None:
        server = self._server
        reply = Reply(self, stream)
        try:
            if server.under_way >= CALLS_MAX:
                raise CallError("RESOURCE_EXHAUSTED", f"{CALLS_MAX} calls are under way already; try again later")
            message = self._message(call, body)
        except CallError as error:
            self.fail(stream, error.code, error.line)
            return
        self._cancels[stream] = None
        server.under_way += 1
        try:
            if message is not None:
                cancel = server.methods[call.path].serve(call, message, reply)
            else:
                assert server.large is not None
                cancel = server.large.serve(call, body, reply)
        except Exception as error:  # the top of a call: a fault of ours is recorded, and the door stays open
            _log.error("a request failed", cause=error)
            self.fail(stream, "INTERNAL", "the server failed on this request; its log says why")
            return
        if stream in self._cancels:
            self._cancels[stream] = cancel

    def _message(self, call: Call, body: bytes | bytearray) -> bytes | None:
        """The message of a call; None where it is large, and taken apart elsewhere."""
        large = self._server.large
        if large is None or call.path != large.path or call.message_bytes_max <= large.size:
            return read_message(call, body, call.message_bytes_max)
        if len(body) > large.size:
            return None
        try:
            return read_message(call, body, large.size)
        except CallError as error:
            if error.code == "RESOURCE_EXHAUSTED":  # it becomes large: whether too large is told elsewhere
                return None
            raise

    def _gone(self, stream: int) -> None:
        cancel = self._over(stream)
        if cancel is not None:
            cancel()

    def _over(self, stream: int) -> Cancel | None:
        if stream not in self._cancels:
            return None
        cancel = self._cancels.pop(stream)
        self._server.under_way -= 1
        return cancel

    # ---- bytes out

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if self._transport.is_closing():
            return
        state = self._state
        while not self._stalled_s and (data := state.sender.take(self._loop.time())):
            self._transport.write(data)
        if state.is_closed or (self._is_leaving and not state.calls):
            self.finish()
        # With a call's message or answer in between, it is not idle.
        self.count(is_waiting=not state.calls and not self._transport.get_write_buffer_size())
