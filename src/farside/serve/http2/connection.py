"""One connection of HTTP/2 as its server sees it, sans-I/O: bytes in, requests out, answers in, bytes out. PURE.

How it works
  A request is told of once, when it is whole; or early, where it is not wanted, too large or too slow. What comes of it
  later is dropped then. Bodies that are not whole, answers that are not taken, headers, streams and frames without a
  request are bounded: a client that goes beyond loses its call, or its connection with a GOAWAY that says why.

  A stream's window holds the largest body, so that no stream waits for us. The connection's window is given back at
  once; what bodies may hold is bounded by refusing, as a shared window would have calls wait for each other.

  Answers beyond what the client's windows allow wait here, in turns by frames.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from farside.serve.http2 import frame as h2
from farside.serve.http2.budget import LEAST_BYTES_A_S, WRITE_LIMIT_S, Budget, Share
from farside.serve.http2.frame import Fault
from farside.serve.http2.head import Head, HeadReader
from farside.serve.http2.sender import SMALL_BYTES, Sender

# So many frames, then others' connections have their turn.
FRAMES_A_TURN = 64
# A body of so much ends the turn: it takes time to read.
LARGE_BYTES = 64 << 10
# Fields of so much that were not read before end it, too.
HEADS_BYTES = 16 << 10
OPEN_LIMIT_S, BODY_LIMIT_S = 10.0, 30.0
PING_EVERY_S, PING_LIMIT_S = 30.0, 10.0
_WINDOW_BYTES = 16 << 20
_BLOCK_FRAMES_MAX = 64
_DROPPED_MAX = 4096
_SETTINGS_COST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of one connection.

    ``head_bytes``: a request's fields. ``body_bytes``: the largest body of any request. ``held_bytes``: bodies that are
    not whole. ``unsent_bytes``: answers that the client's windows do not let through. ``idle_s``: without a request.
    """

    head_bytes: int
    body_bytes: int
    held_bytes: int
    unsent_bytes: int
    streams: int
    idle_s: float


class Judged(Protocol):
    """What `read` makes of a head."""

    @property
    def is_refused(self) -> bool:
        """Whether it is answered before its body has come."""
        ...

    def is_too_large(self, body: bytes | bytearray) -> bool:
        """Whether a body of which so much is here is too large, or says that it will be."""
        ...


class Whole(NamedTuple):
    """A request is here."""

    stream: int
    head: Any
    body: bytes | bytearray


class Early(NamedTuple):
    """A request to be answered now, though the rest of it may come.

    ``why``: refused, large, slow, crowded (its connection holds too much) or full (all of them do).
    """

    stream: int
    head: Any
    why: str


class Gone(NamedTuple):
    """The client has given up a request that an event named."""

    stream: int


Event = Whole | Early | Gone


@dataclass(slots=True, eq=False)
class _Stream:
    """``left``: its content-length, -1 without one. ``credit``: left of its window. ``is_told``: an event named it."""

    head: Judged
    opened_s: float
    left: int
    credit: int
    body: bytes | bytearray = b""
    size: int = 0
    is_whole: bool = False
    is_told: bool = False


class Http2Connection:
    """State of one connection. Nothing raises: what a client does wrong ends in `is_closed` and a GOAWAY.

    Args:
        bounds: Its bounds.
        read: Makes of a request's head what events have.
        now_s: When it was opened.
        share: What bodies that are not whole hold on all connections; `lost` gives back what this one has.
        unsent: What answers that wait for their clients hold on all connections; `lost` gives that back, too.

    Attributes:
        sender: What is to be sent.
        is_closed: No more is read; what `take` has is sent, and the connection closed.
        has_more: More frames are here: `go_on`.
    """

    def __init__(
        self, bounds: Bounds, read: Callable[[Head], Judged], now_s: float, share: Share, unsent: Share
    ) -> None:
        self.is_closed = self.has_more = False
        # A client gives back its two windows for what it is sent.
        self.sender = Sender(bounds.unsent_bytes, unsent, self._sent, lambda: self._frames.earn(2))
        self._share = share
        self._bounds, self._heads = bounds, HeadReader(bounds.head_bytes, read)
        self._now_s = self._opened_s = self._heard_s = self._busy_s = self._pinged_s = now_s
        self._buffer, self._at = b"", 0
        self._is_greeted = self._is_settled = self._is_leaving = self._is_turn_over = False
        self._streams: dict[int, _Stream] = {}
        self._dropped: dict[int, None] = {}
        self._last = 0
        self._block: list[bytes] = []
        self._block_of = (0, 0)  # stream and flags; stream 0: none is open
        self._block_bytes, self._block_s = 0, now_s
        self._credit, self._held = _WINDOW_BYTES, 0
        self._events: list[Event] = []
        self._frames = Budget("frames without a request", 5000, 5000)
        self._resets = Budget("resets", 1000, 1000)
        self._credit_each = min(h2.WINDOW_MAX, bounds.body_bytes + 2 * h2.FRAME_BYTES)
        own = ((h2.MAX_STREAMS, bounds.streams), (h2.INITIAL_WINDOW, self._credit_each),
               (h2.MAX_HEADER_LIST, bounds.head_bytes))  # fmt: skip
        self.sender.write(h2.settings_frame(own) + h2.window_frame(0, _WINDOW_BYTES - h2.WINDOW_BYTES))
        self._readers: dict[int, Callable[[int, int, bytes], None]] = {
            h2.DATA: self._read_data, h2.HEADERS: self._read_headers, h2.PRIORITY: self._read_priority,
            h2.RST_STREAM: self._read_reset, h2.SETTINGS: self._read_settings, h2.PING: self._read_ping,
            h2.GOAWAY: self._read_goaway, h2.WINDOW_UPDATE: self._read_window,
            h2.CONTINUATION: self._read_continuation,
        }  # fmt: skip

    @property
    def calls(self) -> int:
        """Streams that are open."""
        return len(self._streams)

    # ---- bytes in

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """What some bytes bring."""
        self._heard_s = now_s
        self._buffer, self._at = self._buffer[self._at :] + data, 0
        return self.go_on(now_s)

    def go_on(self, now_s: float) -> list[Event]:
        """What the next frames of those bytes bring."""
        self._now_s, self._events, self.has_more, self._is_turn_over = now_s, [], False, False
        self._heads.decoded = 0
        if not self.is_closed:
            try:
                if self._is_greeted or self._greeted():
                    self._work()
            except Fault as fault:
                self.close(fault.code, fault.line)
        return self._events

    def _greeted(self) -> bool:
        begin = self._buffer[: len(h2.PREFACE)]
        if not h2.PREFACE.startswith(begin):
            raise Fault(h2.PROTOCOL_ERROR, "this port speaks HTTP/2, by gRPC")
        if len(begin) == len(h2.PREFACE):
            self._at, self._is_greeted = len(begin), True
        return self._is_greeted

    def _work(self) -> None:
        buffer, end = self._buffer, len(self._buffer)
        for _ in range(FRAMES_A_TURN):
            if end - self._at < h2.HEAD_BYTES:
                return
            size, kind, flags, stream = h2.read_head(buffer, self._at)
            if size > h2.FRAME_BYTES:
                raise Fault(h2.FRAME_SIZE_ERROR, f"a frame of {size} bytes; at most {h2.FRAME_BYTES} are taken")
            start = self._at + h2.HEAD_BYTES
            if end - start < size:
                return
            self._at = start + size
            if (self._block_of[0] and (kind, stream) != (h2.CONTINUATION, self._block_of[0])) or (
                not self._is_settled and kind != h2.SETTINGS
            ):
                raise Fault(h2.PROTOCOL_ERROR, "a frame comes where another one has to")
            reader = self._readers.get(kind)
            if kind == h2.PUSH_PROMISE:
                raise Fault(h2.PROTOCOL_ERROR, "a client pushes nothing")
            if reader is None:
                self._frames.spend(1, self._now_s)
            else:
                reader(flags, stream, buffer[start : self._at])
            if self._is_turn_over or self._heads.decoded > HEADS_BYTES:
                break
        self.has_more = end - self._at >= h2.HEAD_BYTES

    # ---- requests

    def _read_headers(self, flags: int, stream: int, payload: bytes) -> None:
        payload = h2.unpadded(flags, payload)
        if flags & h2.HAS_PRIORITY:
            if len(payload) < 5:
                raise Fault(h2.FRAME_SIZE_ERROR, "HEADERS is shorter than its priority")
            payload = payload[5:]
        if flags & h2.END_HEADERS:
            self._headed(stream, flags, payload)
            return
        if not stream:
            raise Fault(h2.PROTOCOL_ERROR, "HEADERS without a stream")
        self._block, self._block_of = [payload], (stream, flags)
        self._block_bytes, self._block_s = len(payload), self._now_s

    def _read_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if not self._block_of[0]:
            raise Fault(h2.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block.append(payload)
        self._block_bytes += len(payload)
        if self._block_bytes > self._bounds.head_bytes or len(self._block) > _BLOCK_FRAMES_MAX:
            raise Fault(h2.ENHANCE_YOUR_CALM, f"headers are larger than {self._bounds.head_bytes} bytes")
        if flags & h2.END_HEADERS:
            (stream, first), block, self._block = self._block_of, b"".join(self._block), []
            self._block_of = 0, 0
            self._headed(stream, first, block)

    def _headed(self, stream: int, flags: int, block: bytes) -> None:
        known = self._streams.get(stream)
        if known is not None:
            self._trailed(stream, known, flags, block)
        elif not stream & 1:
            raise Fault(h2.PROTOCOL_ERROR, f"a client has no stream {stream}")
        elif stream > self._last:
            self._last = stream
            self._open(stream, flags, block)
        elif stream in self._dropped:
            self._heads.trailers(block)
        else:
            raise Fault(h2.STREAM_CLOSED, f"HEADERS on stream {stream}, which is closed")

    def _trailed(self, stream: int, known: _Stream, flags: int, block: bytes) -> None:
        if known.is_whole:
            raise Fault(h2.STREAM_CLOSED, f"HEADERS on stream {stream}, whose request has ended")
        is_sound = self._heads.trailers(block)
        if not flags & h2.END_STREAM or not is_sound:
            self._reset(stream, h2.PROTOCOL_ERROR)
        else:
            self._ended(stream, known)

    def _open(self, stream: int, flags: int, block: bytes) -> None:
        # Read whatever becomes of it: blocks that follow build on it.
        head, length = self._heads.request(block)
        if head is None or self._is_leaving or len(self._streams) >= self._bounds.streams:
            self._frames.spend(1, self._now_s)
            self._reset(stream, h2.PROTOCOL_ERROR if head is None else h2.REFUSED_STREAM)
            return
        self._frames.earn(4)
        self._busy_s = self._now_s
        made = self._streams[stream] = _Stream(head, self._now_s, length, self._credit_each)
        if head.is_refused:
            made.is_told = True
            self._events.append(Early(stream, head, "refused"))
        if flags & h2.END_STREAM:
            self._ended(stream, made)

    def _read_data(self, flags: int, stream: int, payload: bytes) -> None:
        size = len(payload)
        self._credit -= size
        if self._credit < 0:
            raise Fault(h2.FLOW_CONTROL_ERROR, "more data than the connection's window")
        if self._credit < _WINDOW_BYTES // 2:
            self.sender.write(h2.window_frame(0, _WINDOW_BYTES - self._credit))
            self._credit = _WINDOW_BYTES
        known = self._streams.get(stream)
        if known is None or known.is_whole:
            self._frames.spend(1, self._now_s)
            if stream not in self._dropped:
                code = h2.STREAM_CLOSED if stream & 1 and stream <= self._last else h2.PROTOCOL_ERROR
                raise Fault(code, f"DATA on stream {stream}, which is not open")
            return
        known.credit -= size
        if known.credit < 0:
            raise Fault(h2.FLOW_CONTROL_ERROR, f"more data than the window of stream {stream}")
        if flags & h2.PADDED:
            payload = h2.unpadded(flags, payload)
            known.credit += size - len(payload)
            self.sender.write(h2.window_frame(stream, size - len(payload)))
        is_end = bool(flags & h2.END_STREAM)
        if len(payload) < SMALL_BYTES and not is_end:
            self._frames.spend(1, self._now_s)
        if payload and not known.is_told:
            # One piece is kept as it is; more grow in one place, so that the last has nothing to join.
            if known.size:
                if isinstance(known.body, bytes):
                    known.body = bytearray(known.body)
                known.body += payload
            else:
                known.body = payload
            known.size += len(payload)
            self._hold(len(payload))
            if known.head.is_too_large(known.body):
                self._tell_early(stream, known, "large")
            # One that is whole now goes on at once, and holds nothing.
            elif not is_end and self._held > self._bounds.held_bytes:
                self._tell_early(stream, known, "crowded")
            elif not is_end and self._share.held > self._share.most:
                self._tell_early(stream, known, "full")
        if is_end:
            self._ended(stream, known)

    def _ended(self, stream: int, known: _Stream) -> None:
        known.is_whole = True
        if known.is_told:
            return
        if known.left not in (-1, known.size):
            self._reset(stream, h2.PROTOCOL_ERROR)
            return
        known.is_told = True
        body, known.body = known.body, b""
        self._hold(-known.size)
        self._is_turn_over = known.size >= LARGE_BYTES
        self._events.append(Whole(stream, known.head, body))

    def _hold(self, size: int) -> None:
        self._held += size
        self._share.held += size

    def _tell_early(self, stream: int, known: _Stream, why: str) -> None:
        self._hold(-known.size)
        known.body, known.is_told = b"", True
        self._events.append(Early(stream, known.head, why))

    def _reset(self, stream: int, code: int) -> None:
        self.sender.write(h2.reset_frame(stream, code))
        self._forget(stream)
        self._dropped[stream] = None
        if len(self._dropped) > _DROPPED_MAX:
            del self._dropped[next(iter(self._dropped))]
        # Whoever has us reset streams pays as who resets them; what is refused is paid for as a frame.
        if code not in (h2.NO_ERROR, h2.REFUSED_STREAM):
            self._resets.spend(1, self._now_s)

    def _forget(self, stream: int) -> _Stream | None:
        self.sender.forget(stream)
        known = self._streams.pop(stream, None)
        if known is not None:
            self._busy_s = self._now_s
            if not known.is_told:
                self._hold(-known.size)
        return known

    # ---- frames beside requests

    def _read_reset(self, flags: int, stream: int, payload: bytes) -> None:
        _sized("RST_STREAM", payload, 4)
        self._not_idle("RST_STREAM", stream)
        self._resets.spend(1, self._now_s)
        known = self._forget(stream)
        if known is not None and known.is_told:
            self._events.append(Gone(stream))

    def _read_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise Fault(h2.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & h2.ACK:
            _sized("SETTINGS with ACK", payload, 0)
            self._frames.spend(1, self._now_s)
            return
        found = h2.read_settings(payload)
        # Each may have us look at all streams.
        self._frames.spend(_SETTINGS_COST + len(found), self._now_s)
        self._is_settled = True
        for number, value in found:
            if number == h2.ENABLE_PUSH and value > 1:
                raise Fault(h2.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
            if number == h2.MAX_FRAME:
                self.sender.set_frame_bytes(value)
        windows = [value for number, value in found if number == h2.INITIAL_WINDOW]
        if windows:
            self.sender.set_initial(max(windows))  # none of them may be too large, the last counts
            self.sender.set_initial(windows[-1])
        self.sender.write(h2.frame(h2.SETTINGS, h2.ACK, 0))

    def _read_window(self, flags: int, stream: int, payload: bytes) -> None:
        _sized("WINDOW_UPDATE", payload, 4)
        self._frames.spend(1, self._now_s)
        size = int.from_bytes(payload, "big") & h2.WINDOW_MAX
        if not stream:
            self.sender.widen(size)
            return
        self._not_idle("WINDOW_UPDATE", stream)
        known = self._streams.get(stream)
        wrong = self.sender.widen_stream(stream, size) if known is not None else h2.NO_ERROR
        if wrong:
            if known is not None and known.is_told:
                self._events.append(Gone(stream))
            self._reset(stream, wrong)

    def _read_ping(self, flags: int, stream: int, payload: bytes) -> None:
        _sized("PING", payload, 8)
        self._frames.spend(1, self._now_s)
        if stream:
            raise Fault(h2.PROTOCOL_ERROR, "PING of a stream")
        if not flags & h2.ACK:
            self.sender.write(h2.frame(h2.PING, h2.ACK, 0, payload))

    def _read_priority(self, flags: int, stream: int, payload: bytes) -> None:
        _sized("PRIORITY", payload, 5)
        self._frames.spend(1, self._now_s)
        if not stream or int.from_bytes(payload[:4], "big") & h2.WINDOW_MAX == stream:
            raise Fault(h2.PROTOCOL_ERROR, "PRIORITY of no stream, or on itself")

    def _read_goaway(self, flags: int, stream: int, payload: bytes) -> None:
        self._frames.spend(1, self._now_s)
        if stream or len(payload) < 8:
            raise Fault(h2.PROTOCOL_ERROR if stream else h2.FRAME_SIZE_ERROR, "GOAWAY is none")

    def _not_idle(self, what: str, stream: int) -> None:
        if not stream & 1 or stream > self._last:
            raise Fault(h2.PROTOCOL_ERROR, f"{what} of stream {stream}, which nobody opened")

    # ---- answers

    def answer(self, stream: int, head: bytes, body: bytes = b"", trailers: bytes = b"") -> bool:
        """Answers a request that an event named; nothing happens where its client has given it up.

        Args:
            stream: Its stream.
            head: A block of fields.
            body: What follows.
            trailers: The block that ends the answer; empty: ``head`` is all.

        Returns:
            False, and nothing is sent, where the client has not taken too much already.
        """
        if stream not in self._streams or self.sender.holds(stream):
            return True
        if trailers:
            return self.sender.answer(stream, head, body, trailers, self._now_s)
        self.sender.write(h2.frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, stream, head))
        self._sent(stream)
        return True

    def _sent(self, stream: int) -> None:
        known = self._streams.get(stream)
        if known is not None and not known.is_whole:
            self._reset(stream, h2.NO_ERROR)
        else:
            self._forget(stream)

    # ---- time, and the end

    def look(self, now_s: float) -> list[Event]:
        """Requests that are too slow; closes a connection that is idle, dead or does not read. About once a second."""
        self._now_s, self._events = now_s, []
        if self.is_closed:
            return []
        unsent = self.sender.unsent
        if not self._is_settled and now_s - self._opened_s > OPEN_LIMIT_S:
            self.close(h2.NO_ERROR, f"nothing came within {OPEN_LIMIT_S:g} s")
        elif self._block_of[0] and now_s - self._block_s > OPEN_LIMIT_S:
            self.close(h2.ENHANCE_YOUR_CALM, f"headers did not come within {OPEN_LIMIT_S:g} s")
        elif not self._streams and now_s - self._busy_s > self._bounds.idle_s:
            self.close(h2.NO_ERROR, f"no call for {self._bounds.idle_s:g} s")
        elif unsent.size and now_s - unsent.sent_s > WRITE_LIMIT_S:
            self.close(h2.ENHANCE_YOUR_CALM, f"no answer was taken within {WRITE_LIMIT_S:g} s")
        elif unsent.size and now_s > unsent.due_s:
            self.close(h2.ENHANCE_YOUR_CALM, f"answers were taken at less than {LEAST_BYTES_A_S >> 10} KiB a second")
        elif self._pinged_s > self._heard_s:
            if now_s - self._pinged_s > PING_LIMIT_S:
                self.close(h2.NO_ERROR, f"no answer to a ping within {PING_LIMIT_S:g} s")
        elif now_s - self._heard_s > PING_EVERY_S:
            self._pinged_s = now_s
            self.sender.write(h2.frame(h2.PING, 0, 0, bytes(8)))
        for stream, known in self._streams.items():
            if not known.is_told and now_s - known.opened_s > BODY_LIMIT_S:
                self._tell_early(stream, known, "slow")
        return self._events

    def leave(self) -> None:
        """Takes no new requests; those that are open are answered."""
        if not self.is_closed and not self._is_leaving:
            self._is_leaving = True
            self.sender.write(h2.goaway_frame(self._last, h2.NO_ERROR, "the server ends"))

    def lost(self) -> None:
        """There is no connection any more: gives back what it held."""
        self._hold(-self._held)
        self.sender.forget_all()
        self._streams.clear()
        self.is_closed = True

    def close(self, code: int, line: str) -> None:
        """Sends the reason; nothing is read after it."""
        if not self.is_closed:
            self.sender.write(h2.goaway_frame(self._last, code, line))
            self.is_closed = True
            self._buffer, self._at = b"", 0


def _sized(what: str, payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise Fault(h2.FRAME_SIZE_ERROR, f"{what} has {len(payload)} bytes, not {size}")
