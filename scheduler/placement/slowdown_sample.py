"""Samples of ended jobs: skew, spread and speed, and the newest of them, from which PACKLIMIT is learned. PURE."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

HISTORY = 1000
"""Older jobs say what the cluster was like once; and each fit takes time in proportion."""
OF_ONE_USER = 100
"""At most this many of them are one user's: programs tell their times themselves, and nobody checks them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An ended job on its last allocation, or a start of it that was measured.

    Attributes:
        skew: S_J.
        spread: How far from consolidated it was, from 0 to 1 (slowdown.py has a measure).
        speed: Its speed there as a share of its speed consolidated.
        user: Whose job told it; empty: nobody did, it is a slowdown model's.
    """

    skew: float
    spread: float
    speed: float
    user: str = ""


class SampleWindow:
    """The newest samples, the oldest first: at most `HISTORY`, and `OF_ONE_USER` of each user's.

    A user who has so many there pushes out own ones alone. It follows from the samples in their order.

    Attributes:
        seen: How many were added, those that are gone among them.
    """

    def __init__(self) -> None:
        self.seen = 0
        self._samples: dict[int, Sample] = {}
        self._by_user: dict[str, deque[int]] = {}  # those with a user, by number

    def __len__(self) -> int:
        """How many are there."""
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        """Those that are there."""
        return iter(self._samples.values())

    def __contains__(self, sample: object) -> bool:
        """Whether an equal one is there."""
        return sample in self._samples.values()

    def add(self, sample: Sample) -> None:
        """Add the newest."""
        own = self._by_user.get(sample.user)
        if own is not None and len(own) == OF_ONE_USER:
            self._drop(own[0])
        elif len(self._samples) == HISTORY:
            self._drop(next(iter(self._samples)))
        if sample.user:
            self._by_user.setdefault(sample.user, deque()).append(self.seen)
        self._samples[self.seen] = sample
        self.seen += 1

    def _drop(self, number: int) -> None:
        user = self._samples.pop(number).user
        if user:
            self._by_user[user].popleft()  # of each user's the oldest goes first
            if not self._by_user[user]:
                del self._by_user[user]
