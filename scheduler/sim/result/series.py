"""Time series of quantities that change at events, stored as means over equal intervals. PURE.

How it works
  What is added holds until the next addition. Sums of quantity times time are kept by stretch; when the last of at most
  `POINTS` stretches is full, each two become one, and stretches are twice as long from then on. So memory is bounded,
  whatever the number of events, and no area is lost: means over any number of whole stretches are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farside.scheduler.table import Floats

# More than a picture is wide; even, so that each two become one.
POINTS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Recorded time series.

    Attributes:
        at_s: Where each stretch begins; one of no length where all time was one instant.
        until_s: Where the last one ends.
        means: A row a stretch, a column a quantity.
        mean: Of each quantity over all of the time.
        peak: The greatest value that each quantity had, if only for a moment.
    """

    at_s: Floats
    until_s: float
    means: Floats
    mean: Floats
    peak: Floats


class SeriesRecorder:
    """Recorder of changing values. ``count``: the number of quantities."""

    def __init__(self, count: int, *, points: int = POINTS, stretch_s: float = 1.0) -> None:
        self._areas = np.zeros((points, count))
        self._values = np.zeros(count)
        self._peak = np.zeros(count)
        self._start_s = self._now_s = 0.0
        self._is_empty = True
        self.stretch_s = stretch_s

    def add(self, now_s: float, values: Sequence[float]) -> None:
        """Set the values from this time on. Time never goes back."""
        if self._is_empty:
            self._start_s = self._now_s = now_s
            self._is_empty = False
        elif now_s > self._now_s:
            self._advance(now_s)
        self._values[:] = values
        np.maximum(self._peak, self._values, out=self._peak)

    def finish(self, end_s: float) -> Series:
        """Finish at ``end_s``, not before the last change."""
        if end_s > self._now_s:
            self._advance(end_s)
        span_s = max(0.0, end_s - self._start_s)
        full, rest_s = divmod(span_s, self.stretch_s)
        count = int(full) + (rest_s > 0)
        lengths_s = np.full(count, self.stretch_s)
        if rest_s > 0:
            lengths_s[-1] = rest_s
        areas = self._areas[:count]
        if not count:
            at_s = np.full(0 if self._is_empty else 1, self._start_s)
            means = np.tile(self._values, (len(at_s), 1))
            return Series(at_s=at_s, until_s=end_s, means=means, mean=np.zeros(areas.shape[1]), peak=self._peak)
        return Series(
            at_s=self._start_s + self.stretch_s * np.arange(count, dtype=np.float64),
            until_s=end_s,
            means=areas / lengths_s[:, np.newaxis],
            mean=areas.sum(axis=0) / span_s,
            peak=self._peak,
        )

    def _advance(self, now_s: float) -> None:
        points = len(self._areas)
        while now_s - self._start_s >= points * self.stretch_s:
            pairs = self._areas.reshape(points // 2, 2, -1).sum(axis=1)
            self._areas[: points // 2] = pairs
            self._areas[points // 2 :] = 0.0
            self.stretch_s *= 2
        first, into_s = divmod(self._now_s - self._start_s, self.stretch_s)
        last, until_s = divmod(now_s - self._start_s, self.stretch_s)
        at, end = int(first), int(last)
        if at == end:
            self._areas[at] += self._values * (until_s - into_s)
        else:
            self._areas[at] += self._values * (self.stretch_s - into_s)
            self._areas[at + 1 : end] += self._values * self.stretch_s
            if until_s > 0:
                self._areas[end] += self._values * until_s
        self._now_s = now_s
