"""Samples of ended jobs: skew, spread and speed, and the newest of them, from which PACKLIMIT is learned. PURE."""

from dataclasses import dataclass

from farside.scheduler.predict.newest_by_user import NewestByUser

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


class SampleWindow(NewestByUser[Sample]):
    """The newest samples, the oldest first: at most `HISTORY`, and `OF_ONE_USER` of each user's."""

    def __init__(self) -> None:
        super().__init__(HISTORY, OF_ONE_USER, lambda sample: sample.user or None)
