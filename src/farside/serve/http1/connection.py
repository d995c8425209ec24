"""One connection of HTTP/1.1 as its server sees it, sans-I/O: bytes in, requests out, answers in, bytes out. PURE.

How it works
  httptools takes messages apart. A request is told of once it is whole; the next one of its connection once that is
  answered. What comes before stays here, and no more is read than `HELD_BYTES_MAX` of it.

  `read` judges a request by its head. A body that is not wanted is read and dropped up to a bound; one that is too
  large, or not wanted and asks first (Expect: 100-continue), is answered at once, and the connection closes.

  A socket that closes with bytes unread in it resets its connection, and then a client that is still sending sees no
  answer. So where more may come after the last answer, it is read and thrown away for a while: `lingers`.

  Bodies that are not whole are bounded: each by what its head allows, and all connections' together by a `Share`.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import httptools

from farside.serve.http1.answer import JSON, error_body, written
from farside.serve.http2.budget import Share

HEAD_LIMIT_S, BODY_LIMIT_S = 10.0, 30.0
# Of what comes behind a request that is not answered.
HELD_BYTES_MAX = 64 << 10
# So much that is no body, then others' connections have their turn.
_TURN_BYTES = 16 << 10
# What comes after the last answer is thrown away until nothing came for so long, a body is late, or so much came.
# A client can hold an idle connection for longer, and have us read as much in bodies that are refused at more cost.
LINGER_SILENT_S, LINGER_BYTES_MAX = 5.0, 256 << 20


class Judged(Protocol):
    """What `read` makes of a head."""

    @property
    def body_bytes_max(self) -> int:
        """The largest body; nothing is kept of one that is larger."""
        ...

    @property
    def wants_body(self) -> bool:
        """Whether anything of its body is kept."""
        ...


class Head(NamedTuple):
    """A request's head. ``fields``: values by name in lower case, the last of several."""

    method: bytes
    target: bytes
    fields: Mapping[bytes, bytes]


class Whole(NamedTuple):
    """A request is here; ``why``: empty, large (its body is) or full (all connections' bodies are)."""

    head: Any
    body: bytes | bytearray
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of one connection.

    ``head_bytes``: a request's head. ``wire_bytes``: of its body, with what frames it. ``idle_s``: between requests.
    """

    head_bytes: int
    wire_bytes: int
    idle_s: float


@dataclass(slots=True, eq=False, kw_only=True)
class _Message:
    """``left``: of its content-length; -1 without one. ``asks``: its client waits for 100 Continue."""

    method: bytes
    head: Any
    is_kept: bool
    left: int
    body: bytes | bytearray = b""
    why: str = ""
    asks: bool = False


class Http1Connection:
    """State of one connection. Nothing raises: what a client does wrong ends in `is_closed`.

    Args:
        bounds: Its bounds.
        read: Judges a request's head.
        now_s: When it was opened.
        share: What bodies that are not whole hold on all connections; `lost` gives back what this one has.

    Attributes:
        out: What is to be sent before the next answer; the caller empties it after each call.
        is_closed: No more is read; the connection closes once ``out`` and what is under way are sent.
        is_busy: A request is under way: `take` gave it, and `answered` was not called.
        lingers: Its client may not have sent all: once closed, only the side that writes ends, and what comes is still
            read, until ``late_s`` or until this is false.
        late_s: When what its client owes has to be there; infinity: it owes nothing.
    """

    def __init__(self, bounds: Bounds, read: Callable[[Head], Judged], now_s: float, share: Share) -> None:
        self.out = b""
        self.is_closed = self.is_busy = self.lingers = False
        self.late_s = now_s + HEAD_LIMIT_S
        self._bounds, self._read, self._share, self._now_s = bounds, read, share, now_s
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._whole: deque[_Message] = deque()
        self._message: _Message | None = None  # None: its head is not whole
        self._under_way: _Message | None = None
        self._target, self._fields = b"", dict[bytes, bytes]()
        self._bytes = self._shared = self._bulk = 0
        self._is_idle, self._is_deaf = True, False
        self._linger_bytes, self._linger_s = LINGER_BYTES_MAX, 0.0

    @property
    def has_more(self) -> bool:
        """Whether there is something to `go_on` with now."""
        return bool(self._waiting) and not self._whole and not self.is_busy and not self.is_closed

    @property
    def is_pending(self) -> bool:
        """Whether something of its client waits here: `go_on`, then `take`."""
        return bool(self._whole or self._waiting) and not self.is_closed

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be read from its socket now."""
        return self._waiting_bytes > HELD_BYTES_MAX

    # ---- bytes in

    def receive(self, data: bytes, now_s: float) -> None:
        """Takes bytes: `take` has what came of them."""
        if self._is_deaf:
            self._throw_away(len(data), now_s)
            return
        if self._is_idle and not self.is_busy:
            self._expect_head(now_s)
        self._waiting.append(memoryview(data))
        self._waiting_bytes += len(data)
        self.go_on(now_s)

    def go_on(self, now_s: float) -> None:
        """Takes apart what is here, for a turn at most, up to the end of a request."""
        self._now_s, spent = now_s, 0
        while self.has_more and spent < _TURN_BYTES:
            data = self._waiting.popleft()
            bulk = self._message.left if self._message is not None else 0
            size = min(len(data), max(bulk, _TURN_BYTES))
            if size < len(data):
                self._waiting.appendleft(data[size:])
            self._waiting_bytes -= size
            self._bytes += size
            self._bulk = 0
            self._feed(data[:size])
            spent += size - self._bulk

    def take(self) -> Whole | None:
        """The next request; the connection is busy with it until `answered`."""
        if self.is_busy or not self._whole:
            return None
        message = self._under_way = self._whole.popleft()
        self.is_busy, self.late_s = True, float("inf")
        body, message.body = message.body, b""  # not kept until all of the answer is taken
        return Whole(message.head, body, message.why)

    def answers(self) -> tuple[bool, bool]:
        """The request under way is answered now: whether with a body, and whether the connection stays open."""
        message = self._under_way
        assert message is not None, "a request is under way"
        return message.method != b"HEAD", message.is_kept and not self.is_closed

    def answered(self, now_s: float) -> None:
        """The request under way has its answer; the connection closes where it does not stay open."""
        message, self._under_way = self._under_way, None
        self.is_busy = False
        if message is None or not message.is_kept:
            self._now_s = now_s
            self._close()
        elif self._is_idle and not self._waiting:
            self.late_s = now_s + self._bounds.idle_s
        elif self._is_idle:
            self._expect_head(now_s)
        else:  # some of the next is here; the time that it waited for us is not its client's
            self.late_s = now_s + (HEAD_LIMIT_S if self._message is None else BODY_LIMIT_S)
            self._continue()

    def lost(self) -> None:
        """The connection is gone."""
        self.lingers = False
        self._close()

    def _expect_head(self, now_s: float) -> None:
        # Blank lines before a request keep nobody's connection open: they are part of its head.
        self._is_idle, self._bytes, self.late_s = False, 0, now_s + HEAD_LIMIT_S

    def _feed(self, data: memoryview) -> None:
        try:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(400, str(error))
        if self._is_deaf:
            return
        if self._message is None:
            if not self._is_idle and self._bytes > self._bounds.head_bytes:
                self._refuse(431, f"the head is larger than {self._bounds.head_bytes} bytes")
        elif self._bytes > self._bounds.wire_bytes:
            self._answer_early(self._message, "large")

    def _ignore_upgrade(self, rest: memoryview) -> None:
        """Reads on in HTTP/1.1: without a 101 its client speaks no other protocol (RFC 9110, 7.8)."""
        message = self._message
        if message is None:  # CONNECT: what comes behind it is not HTTP/1.1 perhaps
            self._whole[-1].is_kept = False
            self._linger()
            return
        if rest:
            self._waiting.appendleft(rest)
            self._waiting_bytes += len(rest)
        # A parser takes no body behind a head with Upgrade; another parser gets the length of this body alone.
        coding = self._fields.get(b"transfer-encoding", b"")
        framing = b"Content-Length: %d" % message.left if message.left >= 0 else b"Transfer-Encoding: " + coding
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + framing + b"\r\n\r\n")

    def _refuse(self, status: int, line: str) -> None:
        """Ends what can't be read on, behind the requests before it."""
        before = self._whole[-1] if self._whole else self._under_way
        self._linger()
        if before is not None:
            before.is_kept = False
            return
        self.out += written(status, JSON, error_body(line), is_kept=False)
        self._close()

    def _answer_early(self, message: _Message, why: str) -> None:
        """Has a request answered whose body is not here, as the last one."""
        self._drop_body(message, message.why or why)
        message.is_kept, self._message = False, None
        self._fields = {}  # those of the message are not added to
        self._whole.append(message)
        self._linger()

    def _linger(self) -> None:
        """Throws away what its client may still send."""
        if not self._is_deaf:
            self.lingers, self._linger_s = True, self._now_s + BODY_LIMIT_S
        self._drop_input()

    def _throw_away(self, size: int, now_s: float) -> None:
        self._linger_bytes -= size
        self.lingers &= self._linger_bytes >= 0
        if self.is_closed and self.lingers:
            self.late_s = min(self._linger_s, now_s + LINGER_SILENT_S)

    def _drop_input(self) -> None:
        self._is_deaf = True
        self._waiting.clear()
        self._waiting_bytes = 0

    def _close(self) -> None:
        self.is_closed = True
        self.late_s = self._now_s + LINGER_SILENT_S if self.lingers else float("inf")
        if self.lingers:  # from now on, however long the request under way has taken
            self._linger_s = max(self._linger_s, self.late_s)
        self._whole.clear()
        self._drop_input()
        self._message = None
        self._share.held -= self._shared
        self._shared = 0

    # ---- what httptools calls

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._is_deaf or self._message is not None:  # `_ignore_upgrade` begins it anew for its body
            return
        self._target, self._fields, self._message = b"", {}, None
        if self._is_idle:  # it came behind another one in the same piece
            self._expect_head(self._now_s)

    def on_url(self, part: bytes) -> None:
        """Some of the target."""
        self._target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field; those behind a body are of no use."""
        if self._message is None:
            name, value = name.lower(), value.strip()  # httptools leaves what comes behind it
            if name == b"transfer-encoding" and name in self._fields:
                value = self._fields[name] + b", " + value
            self._fields[name] = value

    def on_headers_complete(self) -> None:
        """The head is here."""
        if self._is_deaf or self._message is not None:
            return
        fields, parser = self._fields, self._parser
        head = self._read(Head(parser.get_method(), self._target, fields))
        length = fields.get(b"content-length", b"")
        left = int(length) if length.isdigit() else 0 if b"transfer-encoding" not in fields else -1
        message = self._message = _Message(
            method=parser.get_method(), head=head, is_kept=parser.should_keep_alive(), left=left
        )
        self._bytes, self.late_s = 0, self._now_s + BODY_LIMIT_S
        if left > (head.body_bytes_max if head.wants_body else self._bounds.wire_bytes):
            self._answer_early(message, "large")
        elif left and fields.get(b"expect", b"").lower() == b"100-continue":
            if not head.wants_body:
                self._answer_early(message, "")
            else:
                message.asks = True
                self._continue()

    def on_body(self, part: bytes) -> None:
        """Some of the body: without a copy where it comes in one piece."""
        message = self._message
        if message is None:
            return
        size = len(part)
        if message.left >= 0:
            message.left -= size
            self._bulk += size
        if not message.head.wants_body or message.why:
            return
        if message.left == 0 and not message.body:
            message.body = part
            return
        if len(message.body) + size > message.head.body_bytes_max:
            self._answer_early(message, "large")
        elif self._share.held + size > self._share.most:
            self._drop_body(message, "full")
        else:
            if not message.body:
                message.body = bytearray()
            message.body += part
            self._share.held += size
            self._shared += size

    def on_message_complete(self) -> None:
        """A request is whole."""
        if self._message is not None and self._message.method != b"CONNECT" and self._parser.should_upgrade():
            return  # its body is still to come
        message, self._message = self._message, None
        if message is None:
            return
        self._share.held -= self._shared
        self._shared, self._is_idle, self._bytes = 0, True, 0
        self.late_s = float("inf")
        self._whole.append(message)

    def _continue(self) -> None:
        """Lets a client send the body that it asks for, behind the answers before it."""
        message = self._message
        if message is not None and message.asks and not self._whole:
            message.asks = False
            self.out += b"HTTP/1.1 100 Continue\r\n\r\n"

    def _drop_body(self, message: _Message, why: str) -> None:
        message.body, message.why = b"", why
        self._share.held -= self._shared
        self._shared = 0
