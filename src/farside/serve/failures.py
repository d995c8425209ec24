"""What fails again and again is left alone for a while, each time for longer. PURE."""

from dataclasses import dataclass

# A device on which an executor could not be started is left out for so long, and twice as long each time.
LEFT_OUT_S = 10.0
# A failure that is so old counts no more.
FORGOTTEN_S = 3600.0
_DOUBLED_MAX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often something has failed, when it did last, and until when it is left out."""

    count: int = 0
    last_s: float = 0.0
    until_s: float = 0.0

    def and_one(self, now_s: float, first_s: float, *, doubled_max: int = _DOUBLED_MAX) -> "Failures":
        """With one more now: it is left out for ``first_s`` at first, and twice as long each time.

        ``doubled_max``: how often that is doubled at most.
        """
        count = self.count + 1 if now_s - self.last_s < FORGOTTEN_S else 1
        return Failures(count=count, last_s=now_s, until_s=now_s + first_s * 2 ** min(count - 1, doubled_max))
