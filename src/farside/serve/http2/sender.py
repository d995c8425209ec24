"""What one connection sends: frames in order, and answers that its client's windows hold back, in turns. PURE."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from farside.serve.http2 import frame as h2
from farside.serve.http2.frame import Fault

# So much is made at once of what waits; the rest stays in one copy until that is taken.
_OUT_BYTES = 1 << 20
WRITE_LIMIT_S = 30.0
# A client that takes answers more slowly uses up those seconds.
LEAST_BYTES_A_S = 64 << 10
# Smaller DATA frames say nothing for their client: it may have asked for each by a window of its size.
SMALL_BYTES = 256
_LAST = h2.END_HEADERS | h2.END_STREAM


@dataclass(slots=True)
class _Held:
    body: memoryview
    trailers: bytes


class Sender:
    """Frames that are to be sent.

    Args:
        unsent_bytes: Of answers that wait for windows, all together.
        on_sent: Is called with a stream whose answer is all written.
        on_data: Is called for each DATA frame that is not small.
        now_s: The time.

    Attributes:
        is_stalled: The socket takes nothing now.
        sent_s: When an answer that waits made its last step.
        due_s: When all that waits has to be taken: `WRITE_LIMIT_S` beyond the time for it at `LEAST_BYTES_A_S`.
    """

    def __init__(
        self, unsent_bytes: int, on_sent: Callable[[int], None], on_data: Callable[[], None], now_s: float
    ) -> None:
        self.is_stalled, self.sent_s, self.due_s = False, now_s, now_s
        self._unsent_bytes, self._on_sent, self._on_data = unsent_bytes, on_sent, on_data
        self._window, self._initial, self._frame_bytes = h2.WINDOW_BYTES, h2.WINDOW_BYTES, h2.FRAME_BYTES
        self._extra: dict[int, int] = {}  # of streams, beyond the initial window
        self._held: dict[int, _Held] = {}
        self._ready, self._unsent = deque[int](), 0
        self._out: list[bytes] = []
        self._out_bytes = 0

    @property
    def unsent(self) -> int:
        """Bytes of answers that wait."""
        return self._unsent

    def write(self, data: bytes) -> None:
        """Sends frames that no window concerns."""
        self._out.append(data)
        self._out_bytes += len(data)

    def answer(self, stream: int, head: bytes, body: bytes, trailers: bytes, now_s: float) -> bool:
        """Sends an answer; False, and nothing happens, where too much waits already."""
        size, held = len(body), self._held
        window = self._extra.get(stream, 0) + self._initial
        is_free = not held and not self.is_stalled
        if is_free and size <= self._window and size <= window and size <= self._frame_bytes:
            self._window -= size
            self.write(
                h2.frame(h2.HEADERS, h2.END_HEADERS, stream, head) + h2.frame(h2.DATA, 0, stream, body)
                + h2.frame(h2.HEADERS, _LAST, stream, trailers)
            )  # fmt: skip
            if size >= SMALL_BYTES:
                self._on_data()
            self._on_sent(stream)
            return True
        if stream in held or (held and self._unsent + size > self._unsent_bytes):
            return False
        self.write(h2.frame(h2.HEADERS, h2.END_HEADERS, stream, head))
        if not held:
            self.sent_s, self.due_s = now_s, now_s + WRITE_LIMIT_S
        held[stream] = _Held(memoryview(body), trailers)
        self._unsent += size
        self.due_s += size / LEAST_BYTES_A_S
        self._ready.append(stream)
        return True

    def holds(self, stream: int) -> bool:
        """Whether some of its answer waits."""
        return stream in self._held

    def forget(self, stream: int) -> None:
        """Drops what waits of a stream."""
        self._extra.pop(stream, None)
        held = self._held.pop(stream, None)
        if held is not None:
            self._unsent -= len(held.body)
            self.due_s -= len(held.body) / LEAST_BYTES_A_S

    def take(self, now_s: float) -> bytes:
        """What is to be sent next; empty: nothing now."""
        self._pump(now_s)
        data = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        return data

    def _pump(self, now_s: float) -> None:
        while self._ready and self._window > 0 and self._out_bytes < _OUT_BYTES:
            stream = self._ready.popleft()
            held = self._held.get(stream)
            if held is None:
                continue
            extra = self._extra.get(stream, 0)
            size = min(len(held.body), self._frame_bytes, self._window, extra + self._initial)
            if size <= 0:
                continue  # it comes again by its WINDOW_UPDATE, or by SETTINGS
            part, held.body = held.body[:size], held.body[size:]
            self._extra[stream] = extra - size
            self._window -= size
            self._unsent -= size
            self.sent_s = now_s
            self.due_s = min(self.due_s, now_s + WRITE_LIMIT_S + self._unsent / LEAST_BYTES_A_S)
            self.write(h2.frame(h2.DATA, 0, stream, bytes(part)))
            if size >= SMALL_BYTES:
                self._on_data()
            if held.body:
                self._ready.append(stream)
            else:
                self.write(h2.frame(h2.HEADERS, _LAST, stream, held.trailers))
                self.forget(stream)
                self._on_sent(stream)

    # ---- what the client grants

    def set_frame_bytes(self, value: int) -> None:
        """Its largest frame.

        Raises:
            Fault: None that may be.
        """
        if not h2.FRAME_BYTES <= value <= h2.FRAME_BYTES_MAX:
            raise Fault(h2.PROTOCOL_ERROR, f"MAX_FRAME_SIZE is {value}")
        self._frame_bytes = min(value, _OUT_BYTES)

    def set_initial(self, value: int) -> None:
        """The window of each stream, those that are open too.

        Raises:
            Fault: A window would be beyond the most.
        """
        if value > h2.WINDOW_MAX or any(one + value > h2.WINDOW_MAX for one in self._extra.values()):
            raise Fault(h2.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is beyond a window's most")
        self._initial = value
        self._ready = deque(self._held)

    def widen(self, size: int) -> None:
        """The connection's window grows.

        Raises:
            Fault: By nothing, or beyond the most.
        """
        self._window += size
        if not size or self._window > h2.WINDOW_MAX:
            raise Fault(h2.FLOW_CONTROL_ERROR if size else h2.PROTOCOL_ERROR, "the connection's window is wrong")

    def widen_stream(self, stream: int, size: int) -> int:
        """A stream's window grows; the code of what is wrong with that, or 0."""
        before = self._extra.get(stream, 0)
        if not size or before + size + self._initial > h2.WINDOW_MAX:
            return h2.FLOW_CONTROL_ERROR if size else h2.PROTOCOL_ERROR
        self._extra[stream] = before + size
        if before + self._initial <= 0 < before + size + self._initial and stream in self._held:
            self._ready.append(stream)
        return 0
