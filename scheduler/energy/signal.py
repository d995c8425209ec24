"""Signals of the need for nodes: recent maxima, by which rules expect the near future. PURE.

A policy keeps a signal's value and a buffer. Each signal is a row of numbers that moves on by one interval at a time,
and never falls below what is busy now.
"""

from dataclasses import dataclass, field

import numpy as np

from farside.scheduler.table import Floats


@dataclass(slots=True)
class RecentMax:
    """The most that was busy at once in the last intervals, for several lengths of memory (in intervals)."""

    steps: tuple[int, ...]
    values: Floats = field(init=False)
    _ring: Floats = field(init=False)
    _at: int = -1

    def __post_init__(self) -> None:
        self._ring = np.full(max(self.steps), -np.inf)
        self.values = np.zeros(len(self.steps))

    def watch(self, active: float) -> None:
        """One more interval."""
        self._at += 1
        length = len(self._ring)
        self._ring[self._at % length] = active
        end = self._at % length + 1
        for place, steps in enumerate(self.steps):
            if end >= steps:
                self.values[place] = self._ring[end - steps : end].max()
            else:  # the window goes on at the other end of the ring
                self.values[place] = max(self._ring[:end].max(), self._ring[end - steps :].max())


@dataclass(slots=True)
class FadingMax:
    """What was busy, fading towards what is busy now, for several half-lives in intervals; 0: now alone.

    A forgotten peak leaves the recent maximum all at once; here room is given up little by little, so that fewer
    wake-ups find nodes that fell asleep a moment ago.
    """

    half_lives: tuple[float, ...]
    values: Floats = field(init=False)
    _kept_share: Floats = field(init=False)

    def __post_init__(self) -> None:
        lives = np.array(self.half_lives)
        self._kept_share = np.where(lives > 0, 0.5 ** (1 / np.maximum(lives, 1e-9)), 0.0)
        self.values = np.zeros(len(lives))

    def watch(self, active: float) -> None:
        """One more interval."""
        # The present value is the floor: a signal never falls below what is busy now.
        np.maximum(active, active + (self.values - active) * self._kept_share, out=self.values)
