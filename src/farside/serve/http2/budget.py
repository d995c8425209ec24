"""Limits: how many frames of a kind a client may send at once and a second, and what all hold together. PURE."""

from dataclasses import dataclass

from farside.serve.http2.frame import ENHANCE_YOUR_CALM, Fault


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
    """Bytes that all connections hold together. ``most``: beyond it who holds more is refused. ``held``: now."""

    most: int
    held: int = 0
