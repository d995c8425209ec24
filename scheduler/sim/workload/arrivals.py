"""Arrival times of generated jobs: named rhythms of day and week, single jobs or bursts. PURE.

Given how many jobs come within a span, the times of a Poisson process are spread over it independently, as densely as
its rate has it. So times are drawn by the rate's integral, and number and span both come out as asked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from farside.scheduler.table import Floats

HOUR_S = 3600.0
_HOURS_A_WEEK = 7 * 24
_THURSDAY_MIDNIGHT = 3 * 24  # the first of January 1970, in hours since Monday

_FLAT_DAY = (1.0,) * 24
# Lowest at night, with a slight drop at noon and at six: as the text describes the four clusters [helios §3.1.1]. The
# figures are ours.
_WORKING_DAY = (
    0.5, 0.4, 0.35, 0.3, 0.3, 0.3, 0.35, 0.45, 0.7, 1.1, 1.5, 1.6,
    1.3, 1.4, 1.6, 1.7, 1.7, 1.6, 1.3, 1.4, 1.4, 1.3, 1.0, 0.7,
)  # fmt: skip
_FLAT_WEEK = (1.0,) * 7
_WORKING_WEEK = (1.1, 1.2, 1.2, 1.2, 1.1, 0.6, 0.6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """A rhythm of submissions.

    Attributes:
        by_hour: How many in each hour of day, relative to each other.
        by_day: How many on each day from Monday on, relative to each other.
        burst_share: Of submissions that are sweeps: one user hands in several jobs of one name and size at once.
        burst_jobs: Jobs of a sweep on average; their number is geometric, from 2.
        burst_gap_s: Between the jobs of a sweep on average.
    """

    by_hour: tuple[float, ...] = _FLAT_DAY
    by_day: tuple[float, ...] = _FLAT_WEEK
    burst_share: float = 0.0
    burst_jobs: float = 10.0
    burst_gap_s: float = 0.5

    def __post_init__(self) -> None:
        if len(self.by_hour) != 24 or len(self.by_day) != 7:
            raise ValueError("by_hour must have 24 numbers, by_day 7")
        if min(*self.by_hour, *self.by_day) < 0 or not sum(self.by_hour) * sum(self.by_day):
            raise ValueError("by_hour and by_day must be at least 0, and not all 0")
        if not 0 <= self.burst_share <= 1 or self.burst_jobs < 2 or self.burst_gap_s < 0:
            raise ValueError("burst_share must be from 0 to 1, burst_jobs at least 2, burst_gap_s at least 0")


ARRIVALS: Mapping[str, Arrivals] = MappingProxyType(
    {
        "poisson": Arrivals(),
        "daily": Arrivals(by_hour=_WORKING_DAY),
        "weekly": Arrivals(by_hour=_WORKING_DAY, by_day=_WORKING_WEEK),
        "bursts": Arrivals(by_hour=_WORKING_DAY, by_day=_WORKING_WEEK, burst_share=0.1),
    }
)


def submissions(arrivals: Arrivals, jobs: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """The submission that each job belongs to, numbered from 0: all different, but for sweeps."""
    if not arrivals.burst_share:
        return np.arange(jobs)
    is_sweep = rng.random(jobs) < arrivals.burst_share
    # Geometric from 2 on, with the mean asked for. For a mean of 2 the chance would be 1, whose logarithm is infinite.
    more = np.floor(np.log1p(-rng.random(jobs)) / np.log1p(-1 / max(arrivals.burst_jobs - 1, 1 + 1e-9)))
    sizes = np.where(is_sweep, 2 + more, 1).astype(int)
    return np.repeat(np.arange(jobs), np.minimum(sizes, jobs))[:jobs]


def submit_times_s(
    arrivals: Arrivals, of: NDArray[np.intp], *, start_s: float, span_s: float, rng: np.random.Generator
) -> Floats:
    """Times of jobs, ascending: the first at ``start_s``, the last about ``span_s`` later.

    Args:
        arrivals: The rhythm.
        of: The submission of each job, as `submissions` gives them.
        start_s: On a time line whose second 0 is a Thursday's midnight, as that of the epoch.
        span_s: From the first to the last.
        rng: Chance.
    """
    count = int(of[-1]) + 1
    drawn = np.sort(rng.random(count))
    if count > 1:
        drawn = (drawn - drawn[0]) / (drawn[-1] - drawn[0])
    hour = np.floor(start_s / HOUR_S)
    edges = (hour + np.arange(int(span_s // HOUR_S) + 3)) * HOUR_S
    week = np.outer(arrivals.by_day, arrivals.by_hour).ravel()
    rate = week[((edges[:-1] / HOUR_S).astype(int) + _THURSDAY_MIDNIGHT) % _HOURS_A_WEEK]
    # A rate of nothing would leave times undefined where it alone is asked for.
    summed = np.concatenate(([0.0], np.cumsum(np.maximum(rate, 1e-9 * week.max()))))
    first, last = np.interp((start_s, start_s + span_s), edges, summed)
    times = np.interp(first + drawn * (last - first), summed, edges)
    return _with_gaps(arrivals, of, times, start_s, start_s + span_s, rng)


def _with_gaps(
    arrivals: Arrivals, of: NDArray[np.intp], times: Floats, start_s: float, end_s: float, rng: np.random.Generator
) -> Floats:
    """The time of each job, of the times of submissions: those of a sweep follow each other within seconds."""
    if len(times) == len(of):
        return np.clip(times, start_s, end_s)
    gaps = -arrivals.burst_gap_s * np.log1p(-rng.random(len(of)))
    is_first = np.concatenate(([True], np.diff(of) > 0))
    gaps[is_first] = 0.0
    summed = np.cumsum(gaps)
    return np.clip(times[of] + summed - summed[is_first][of], start_s, end_s)
