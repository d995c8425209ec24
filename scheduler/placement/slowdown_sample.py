"""Sample of one ended job: skew, spread and speed, from which PACKLIMIT is learned. PURE."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """An ended job on its last allocation, or a start of it that was measured.

    Attributes:
        skew: S_J.
        spread: How far from consolidated it was, from 0 to 1 (slowdown.py has a measure).
        speed: Its speed there as a share of its speed consolidated.
    """

    skew: float
    spread: float
    speed: float
