"""Correction from the median of a run time to its mean, by the errors of past estimates. PURE.

Estimates made of logarithms are medians. Which job should go first is decided by the mean: of two jobs with the same
median, the one of which little is known may take a hundred times as long, and all jobs behind it would wait. For a
log-normal the mean is the median times exp(variance / 2), and the variance is seen when jobs end. It differs by what is
known of a job: small for a name that came often, large for one that never came.
"""

import math
from collections import deque
from statistics import median

from farside.scheduler.predict.rolling_estimate import LEVELS, RollingEstimate

# As many jobs of all kinds count beside those of one kind.
_PRIOR_JOBS = 20.0
# What counts fades: of a thousand jobs ago, 1/e.
_KEPT = 0.999
# At most this: a factor of 20. Beyond it the tail is longer than that of a log-normal anyway.
MOST_VARIANCE = 6.0
_RECENT = 100  # jobs, by whose errors people are told how good estimates are
_BY_NAME = LEVELS.index("bucket") + 1
_OFTEN = (2, 5, 20)


def kind_of(rolling: RollingEstimate) -> int:
    """What is known of a job, as a number: its nearest group, and how often the name has come if it is by name."""
    often = sum(rolling.jobs >= edge for edge in _OFTEN) if rolling.nearest >= _BY_NAME else 0
    return rolling.nearest * (len(_OFTEN) + 1) + often


class Spread:
    """Variances of one estimator's errors, in logarithms, by kind of job."""

    def __init__(self) -> None:
        self._kinds: dict[int, tuple[float, float]] = {}  # sum of squares, weight
        self._all = (0.0, 0.0)

    def add(self, kind: int, log_error: float) -> None:
        """A job of a kind has ended, and its estimate was off by this."""
        square = log_error * log_error
        # -1 is the record of all kinds together.
        for at, (total, weight) in ((kind, self._kinds.get(kind, (0.0, 0.0))), (-1, self._all)):
            now = total * _KEPT + square, weight * _KEPT + 1.0
            if at < 0:
                self._all = now
            else:
                self._kinds[kind] = now

    def copy(self) -> "Spread":
        """Another with the same record."""
        made = Spread()
        made._kinds, made._all = dict(self._kinds), self._all
        return made

    def state(self) -> list[object]:
        """The record, as numbers in lists."""
        return [[[kind, *sums] for kind, sums in self._kinds.items()], list(self._all)]

    def restore(self, kinds: list[list[float]], every: list[float]) -> None:
        """Takes what `state` gave."""
        self._kinds = {int(kind): (float(total), float(weight)) for kind, total, weight in kinds}
        self._all = float(every[0]), float(every[1])

    def factor(self, kind: int) -> float:
        """The mean by the median, at least 1, for a job of a kind; 1 before any has ended."""
        every, of_all = self._all
        if not of_all:
            return 1.0
        total, weight = self._kinds.get(kind, (0.0, 0.0))
        variance = (total + _PRIOR_JOBS * every / of_all) / (weight + _PRIOR_JOBS)
        return math.exp(min(variance, MOST_VARIANCE) / 2)


class RecentErrors:
    """How far the last estimates were off, by the level of the jobs that they came from."""

    def __init__(self) -> None:
        self._by_level: dict[int, deque[float]] = {}

    def add(self, nearest: int, log_error: float) -> None:
        """A job has ended, and the estimate of it was off by this, in logarithms."""
        self._by_level.setdefault(nearest, deque(maxlen=_RECENT)).append(abs(log_error))

    def factor(self, nearest: int) -> float:
        """Half of the last estimates of a level were off by no more than this factor; NaN: there was none."""
        errors = self._by_level.get(nearest)
        return math.exp(median(errors)) if errors else math.nan
