"""Limits of the frames of a kind, of what all connections hold together, and of how slowly a client may read. PURE."""

import math
from dataclasses import dataclass

from farside.serve.http2.frame import ENHANCE_YOUR_CALM, Fault

WRITE_LIMIT_S = 30.0
# A client that takes answers more slowly uses up those seconds.
LEAST_BYTES_A_S = 64 << 10


@dataclass(slots=True)
class Budget:
    """A bucket of tokens.

    ``what``: what they are spent on. ``most``: at once. ``each_s``: more a second.
    """

    what: str
    most: float
    each_s: float
    _left: float = -1.0
    _at_s: float = 0.0

    def spend(self, count: int, now_s: float) -> None:
        """Takes some.

        Raises:
            Fault: There are none left.
        """
        left = self.most if self._left < 0 else min(self.most, self._left + self.each_s * (now_s - self._at_s))
        self._at_s = now_s
        if left < count:
            raise Fault(ENHANCE_YOUR_CALM, f"more than {self.each_s:g} {self.what} a second")
        self._left = left - count

    def earn(self, count: int) -> None:
        """Gives some more."""
        if self._left >= 0:
            self._left = min(self.most, self._left + count)


@dataclass(slots=True)
class Share:
    """Bytes that all connections hold together. ``most``: beyond it one is refused or closed. ``held``: now."""

    most: int
    held: int = 0


@dataclass(slots=True)
class Unsent:
    """Answers that wait for one client.

    ``share``: what waits for all of them. ``size``: bytes. ``sent_s``: when some went on last. ``due_s``: when all has
    to be taken: `WRITE_LIMIT_S` beyond the time for it at `LEAST_BYTES_A_S`.
    """

    share: Share
    size: int = 0
    sent_s: float = 0.0
    due_s: float = 0.0

    @property
    def latest_s(self) -> float:
        """When its client has to begin to read at the least rate to be in time; infinite where nothing waits."""
        return self.due_s - self.size / LEAST_BYTES_A_S if self.size else math.inf

    def add(self, size: int, now_s: float) -> None:
        """More waits."""
        if not self.size:
            self.sent_s, self.due_s = now_s, now_s + WRITE_LIMIT_S
        self.due_s += size / LEAST_BYTES_A_S
        self._change(size)

    def sent(self, size: int, now_s: float) -> None:
        """Some went on."""
        self._change(-size)
        self.sent_s = now_s
        self.due_s = min(self.due_s, now_s + WRITE_LIMIT_S + self.size / LEAST_BYTES_A_S)

    def drop(self, size: int) -> None:
        """Some is not sent at all."""
        self.due_s -= size / LEAST_BYTES_A_S
        self._change(-size)

    def _change(self, size: int) -> None:
        self.size += size
        self.share.held += size
