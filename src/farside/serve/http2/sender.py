"""What one connection sends: frames in order, and answers that its client's windows hold back, in turns. PURE."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from farside.serve.http2 import frame as h2
from farside.serve.http2.budget import Share, Unsent
from farside.serve.http2.frame import Fault

# So much is made at once of what waits; the rest stays in one copy until that is taken.
_OUT_BYTES = 256 << 10
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
        share: What waits so on all connections.
        on_sent: Is called with a stream whose answer is all written.
        on_data: Is called for each DATA frame that is not small.

    Attributes:
        is_stalled: The socket takes nothing now.
        unsent: Answers that wait.
    """

    def __init__(
        self, unsent_bytes: int, share: Share, on_sent: Callable[[int], None], on_data: Callable[[], None]
    ) -> None:
        self.is_stalled, self.unsent = False, Unsent(share)
        self._unsent_bytes, self._on_sent, self._on_data = unsent_bytes, on_sent, on_data
        self._window, self._initial, self._frame_bytes = h2.WINDOW_BYTES, h2.WINDOW_BYTES, h2.FRAME_BYTES
        self._extra: dict[int, int] = {}  # of streams, beyond the initial window
        self._held: dict[int, _Held] = {}
        self._ready = deque[int]()
        self._out: list[bytes] = []
        self._out_bytes = 0

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
        if stream in held or (held and self.unsent.size + size > self._unsent_bytes):
            return False
        self.write(h2.frame(h2.HEADERS, h2.END_HEADERS, stream, head))
        held[stream] = _Held(memoryview(body), trailers)
        self.unsent.add(size, now_s)
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
            self.unsent.drop(len(held.body))

    def forget_all(self) -> None:
        """Drops all that waits."""
        self._held.clear()
        self.unsent.drop(self.unsent.size)

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
            self.unsent.sent(size, now_s)
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
