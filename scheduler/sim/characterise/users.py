"""Comparison of users: GPU time, waiting, and completed jobs. PURE. [helios §3.3; Figures 8, 9]"""

import math
from dataclasses import dataclass

import numpy as np

from farside.scheduler.sim.trace.log import JobLog, Status
from farside.scheduler.table import Floats

TOP_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Concentration:
    """What users have of something, the largest first. ``share``: the cumulative share of it, a place a user."""

    share: Floats
    users: tuple[int, ...]

    def of_top(self, part: float = TOP_SHARE) -> float:
        """What the first ``part`` of all users have, at least one of them."""
        return float(self.share[self.count(part) - 1]) if len(self.share) else math.nan

    def top(self, part: float = TOP_SHARE) -> frozenset[int]:
        """Those users."""
        return frozenset(self.users[: self.count(part)])

    def count(self, part: float = TOP_SHARE) -> int:
        """How many users that is."""
        return max(1, round(part * len(self.users)))


def concentration(log: JobLog, amount: Floats, *, users: int) -> Concentration | None:
    """How an amount a job is spread over all users of the log; None where there is nothing of it, or no user."""
    named = (log.user >= 0) & ~np.isnan(amount)
    by_user = np.bincount(log.user[named], weights=amount[named], minlength=users)
    if not users or by_user.sum() <= 0:
        return None
    order = np.argsort(-by_user, kind="stable")
    return Concentration(share=np.cumsum(by_user[order]) / by_user.sum(), users=tuple(order.tolist()))


def completion_rates(log: JobLog) -> Floats:
    """Completed share of each user's GPU jobs, among jobs with a known end; ascending. [Figure 9 (b)]"""
    known = (log.user >= 0) & (log.status != Status.UNKNOWN)
    jobs = np.bincount(log.user[known], minlength=len(log.users))
    done = np.bincount(log.user[known & (log.status == Status.COMPLETED)], minlength=len(log.users))
    return np.sort(done[jobs > 0] / jobs[jobs > 0])
