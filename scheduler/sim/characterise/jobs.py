"""Figures of jobs: length, size and final status. PURE. [helios §3.2; Figures 1, 5, 6, 7]"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from farside.scheduler.sim.trace.log import JobLog, Status
from farside.scheduler.table import Floats

ENDS = (Status.COMPLETED, Status.CANCELED, Status.FAILED)
# The demands that Figure 7 (b) tells apart, each up to the next.
DEMANDS = (1, 2, 4, 8, 16, 32, 64)
CURVE_POINTS = 400  # a curve needs no more than its picture is wide


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A distribution: ``share`` of all is at most ``value``, both ascending."""

    value: Floats
    share: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Demand of GPU jobs: each size that occurs, with cumulative shares."""

    gpus: Floats
    share_of_jobs: Floats
    share_of_gpu_time: Floats

    def single(self) -> tuple[float, float]:
        """The shares of single-GPU jobs: of jobs, of GPU time."""
        if not len(self.gpus) or self.gpus[0] > 1:
            return 0.0, 0.0
        return float(self.share_of_jobs[0]), float(self.share_of_gpu_time[0])


# Shares of COMPLETED, CANCELED, FAILED, in that order; they add up to 1.
Ends = tuple[float, float, float]


def durations(log: JobLog) -> Curve:
    """Run times of jobs, seconds."""
    shares = np.linspace(0.0, 1.0, CURVE_POINTS)
    return Curve(value=np.quantile(log.duration_s, shares), share=shares)


def gpu_s(log: JobLog) -> Floats:
    """GPU seconds of each job."""
    return log.gpus * log.duration_s


def demand(log: JobLog) -> Demand:
    """Demand of GPU jobs by size. [Figure 6]"""
    sizes, place = np.unique(log.gpus, return_inverse=True)
    jobs = np.bincount(place)
    time = np.bincount(place, weights=gpu_s(log))
    total = max(float(time.sum()), 1e-9)
    return Demand(
        gpus=sizes.astype(float), share_of_jobs=np.cumsum(jobs) / len(log), share_of_gpu_time=np.cumsum(time) / total
    )


def ends(log: JobLog, weight: Floats | None = None) -> Ends | None:
    """Final statuses by number or by a weight; None if no status is known. [Figures 1 (b), 7 (a)]"""
    weights = np.ones(len(log)) if weight is None else weight
    totals = [float(weights[log.status == status].sum()) for status in ENDS]
    whole = sum(totals)
    if not whole:
        return None
    return totals[0] / whole, totals[1] / whole, totals[2] / whole


def known_share(log: JobLog, weight: Floats) -> float:
    """Share of jobs, by a weight, with a known final status; 0 if all weights are 0."""
    whole = float(weight.sum())
    return float(weight[log.status != Status.UNKNOWN].sum()) / whole if whole else 0.0


def ends_by_demand(log: JobLog) -> Mapping[str, Ends]:
    """Final statuses of jobs of each size, those that occur. [Figure 7 (b)]"""
    found: dict[str, Ends] = {}
    bounds = (*DEMANDS, np.inf)
    for low, high in pairwise(bounds):
        rows = (log.gpus >= low) & (log.gpus < high)
        shares = ends(log.of(rows)) if rows.any() else None
        if shares is not None:
            found[_named(low, high)] = shares
    return found


def _named(low: float, high: float) -> str:
    if high == low + 1:
        return f"{low:.0f}"
    return f"{low:.0f}+" if high == np.inf else f"{low:.0f}-{high - 1:.0f}"
