"""QSSF order policy: the job with the smallest expected GPU time goes first. PURE. [helios §4.2, Algorithm 1]

A guard against starvation (ours)
  By expectation alone, a job of which much is expected waits as long as others keep coming, on a cluster with too much
  to do for ever. Three tiers bound that, the first goes first:

  1. short jobs, by expectation: those of which least is expected, as far as all of them together are
     ``overtaking_share`` of all work. However long others have waited, these may overtake: they take little from them;
  2. jobs that have waited ``patience_s``, in order of arrival;
  3. the others, by expectation.

  A cluster that keeps up has few in the second tier, and goes by expectation. One that doesn't keep up serves its short
  jobs at once and the others in turn, as FIFO would with what is left of the cluster.

  Up to which expectation jobs are short follows from jobs that have ended: from what they really took, in the order of
  what had been expected. So the share holds for a poor estimator as well; it only has fewer short jobs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from farside.scheduler.order.defaults import PlainOrder
from farside.scheduler.order.format_pair import apart
from farside.scheduler.order.policy import NEAR_S, OrderTraits
from farside.scheduler.table import Floats, JobColumns
from farside.units import format_seconds

Flags = NDArray[np.bool_]

FORTNIGHT_S = 14 * 86400.0
# The cut is found once so many jobs have ended, then whenever they are a tenth more, from the newest of them.
_FIRST_JOBS, _GROWTH, _NEWEST = 50, 1.1, 10_000
# A promotion is this near to the end of patience: its time is a difference of seconds since 1970.
_APART_S = 1e-3


@dataclass(frozen=True, slots=True)
class Cut:
    """Largest expectation of a short job, learned from this number of ended jobs."""

    short_gpu_s: float = 0.0
    jobs: int = 0


UNKNOWN = Cut()


@dataclass(frozen=True, slots=True, kw_only=True)
class Qssf(PlainOrder):
    """QSSF: by expected GPU time, with tiers for short and aged jobs; never preempts.

    Jobs of which the estimator expects nothing go behind all others, in order of arrival: no guess stands for them.

    Attributes:
        is_strict: The first job that has no room blocks all behind it, as in Helios's simulator.
        patience_s: A job that has waited so long goes before all but short jobs; infinite: no guard, as in the paper.
        overtaking_share: The share of all work that short jobs may be.
        cut: What has been learned of that so far.
    """

    name = "qssf"
    is_strict: bool = True
    patience_s: float = FORTNIGHT_S
    overtaking_share: float = 0.2
    cut: Cut = UNKNOWN

    def __post_init__(self) -> None:
        """Refuses shares that are none."""
        if self.overtaking_share > 1:
            raise ValueError(f"overtaking_share: must be at most 1, is {self.overtaking_share:g}")

    @property
    def traits(self) -> OrderTraits:
        """Never preempts."""
        is_guarded = self.patience_s < math.inf
        return OrderTraits(is_strict=self.is_strict, has_thresholds=is_guarded, is_ageing=is_guarded)

    def _is_aged(self, jobs: JobColumns) -> Flags:
        """Jobs whose patience has ended: a promotion has set ``since_s`` then, and no earlier.

        That of a job that was held until a release, or that lost lent nodes to their owner, is less far from its
        submission: it waits in the order of expectations.
        """
        found: Flags = jobs.since_s - jobs.submit_s >= self.patience_s - _APART_S
        return found

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Tier, then expected GPU seconds (infinite where there is no expectation), in the second tier nothing."""
        expected = np.where(np.isnan(jobs.predicted_gpu_s), np.inf, jobs.predicted_gpu_s)
        if self.patience_s == math.inf:
            return (expected,)
        tier = self.tier(jobs)
        return tier, np.where(tier == 2, 0.0, expected)

    def tier(self, jobs: JobColumns) -> Floats:
        """1, 2 or 3; see above."""
        behind = np.where(self._is_aged(jobs), 2.0, 3.0)
        found: Floats = np.where(jobs.predicted_gpu_s <= self.cut.short_gpu_s, 1.0, behind)
        return found

    def next_change_s(self, jobs: JobColumns) -> Floats:
        """Seconds until the patience of a waiting job ends."""
        is_young = (jobs.is_running == 0) & ~self._is_aged(jobs)
        return np.where(is_young, self.patience_s - jobs.waited_s, np.inf)

    def promotes(self, jobs: JobColumns) -> Floats:
        """Jobs whose patience has ended. Their wait starts again then, which marks them later."""
        return np.where(~self._is_aged(jobs) & (jobs.waited_s >= self.patience_s - NEAR_S), 1.0, 0.0)

    def learn(self, ended_gpu_s: Sequence[float], expected_gpu_s: Sequence[float] = (), *, seen: int = 0) -> "Qssf":
        """With the cut that these jobs give, if they are enough more than at the last time."""
        enough, jobs = max(_FIRST_JOBS, self.cut.jobs * _GROWTH), seen or len(expected_gpu_s)
        if self.patience_s == math.inf or not len(expected_gpu_s) or jobs < enough:
            return self
        expected, true = (np.array(values[-_NEWEST:]) for values in (expected_gpu_s, ended_gpu_s))
        return replace(self, cut=Cut(short_up_to_gpu_s(expected, true, self.overtaking_share), jobs))

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """Their tiers, or what is expected of each."""
        if self.patience_s < math.inf and self.tier(first) == 2 and self.tier(second) == 3:
            return f"has waited for {format_seconds(self.patience_s)} and more"
        if np.isnan(second.predicted_gpu_s[0]):
            expected = format_seconds(first.predicted_gpu_s.item())
            return f"is expected to take {expected} of GPU time in the mean; nothing is known of the other"
        expected, other = apart(first.predicted_gpu_s.item(), second.predicted_gpu_s.item(), format_seconds)
        return f"is expected to take {expected} of GPU time in the mean, the other {other}"


def short_up_to_gpu_s(expected_gpu_s: Floats, true_gpu_s: Floats, share: float) -> float:
    """The greatest expectation up to which all jobs together were at most a share of the work; 0: not even the least.

    Jobs of one expectation count together: nobody could tell them apart. Jobs without any, or with an infinite one,
    count to the work.
    """
    is_known = np.isfinite(expected_gpu_s)
    values, at = np.unique(expected_gpu_s[is_known], return_inverse=True)
    work = np.cumsum(np.bincount(at.reshape(-1), weights=true_gpu_s[is_known], minlength=len(values)))
    fits = np.flatnonzero(work <= share * float(np.sum(true_gpu_s)))
    return float(values[fits[-1]]) if len(fits) else 0.0
