"""Quality of estimates: by rank and by size. PURE."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farside.scheduler.table import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Quality of estimates against the truth; NaN for fewer than two.

    Attributes:
        jobs: How many.
        saving: `queue_saving` of their order.
        spearman: Rank correlation with the truth.
        log_error: The median of the factor between expectation and truth, as a natural logarithm.
        within_2: The share of them between half and twice the truth.
    """

    jobs: int
    saving: float
    spearman: float
    log_error: float
    within_2: float


def quality(expected: Floats, true: Floats) -> Quality:
    """All figures of expectations above 0 against truths of at least 0."""
    if len(true) < 2:
        return Quality(jobs=len(true), saving=np.nan, spearman=np.nan, log_error=np.nan, within_2=np.nan)
    errors = np.abs(np.log(np.maximum(expected, 1.0)) - np.log(np.maximum(true, 1.0)))
    return Quality(
        jobs=len(true),
        saving=queue_saving(expected, true),
        spearman=spearman(expected, true),
        log_error=float(np.median(errors)),
        within_2=float(np.mean(errors <= np.log(2.0) + 1e-9)),
    )


def queue_saving(expected: Floats, true: Floats) -> float:
    """Saving of a job order in a queue: 1 for the true order, 0 for a random one, negative for worse than random.

    In one queue, each job makes all jobs behind it wait for its service. The sum of these waits is compared with those
    of the true order and of chance. So a long job that is put first counts as much as it costs, and the order of jobs
    of nearly the same length hardly matters; a rank correlation counts both alike. The figure is the normalised Gini
    coefficient. Jobs with equal expectations share their places.
    """
    best = _waits(true, true)
    # In a random order half of the other jobs are behind each job, on average.
    chance = float(np.sum(true)) * (len(true) - 1) / 2
    return 1.0 if chance <= best else (chance - _waits(expected, true)) / (chance - best)


def _waits(expected: Floats, true: Floats) -> float:
    behind = len(true) - ranks(expected)
    return float(np.sum(true * behind))


def spearman(first: Floats, second: Floats) -> float:
    """Rank correlation, from -1 to 1; 0 if one side has the same value for all jobs."""
    one, other = ranks(first), ranks(second)
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt(np.sum(one**2) * np.sum(other**2)))
    return float(np.sum(one * other)) / size if size else 0.0


def ranks(values: Floats) -> Floats:
    """The place of each in the order, from 1; equal ones share the mean of theirs."""
    distinct, at, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    found: Floats = (last - (count - 1) / 2)[at.reshape(-1)] if len(distinct) else np.zeros(0)
    return found


def quantiles(expected: Floats, true: Floats, shares: Sequence[float]) -> Floats:
    """Quantiles of estimate over truth: the factors that these shares of all jobs do not exceed."""
    found: Floats = np.quantile(np.maximum(expected, 1.0) / np.maximum(true, 1.0), shares)
    return found
