"""Estimated start of a waiting job, if no other job comes and all jobs run to their time limits. PURE.

How it works
  The plan is played forward on the domain's own ledger, which is put back afterwards: running jobs leave when their
  limits end, the jobs that stand before it start in their order as soon as there is room, each runs for all of its
  limit, and then it is the job's turn. No job passes another, so it is the latest time rather than the earliest: jobs
  that end before their limits, and small ones that find room meanwhile, only make it earlier. Jobs that come later and
  go before it make it later; these are not known yet.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from farside.scheduler.domain import Domain
from farside.scheduler.quota_use import QuotaUse
from farside.scheduler.state import Allocation

# At most this many jobs before the one in question are played through, some microseconds each.
AHEAD_MAX = 2000
# A job without a time limit is played as if it ended then, so that the job it blocks can name it.
_NEVER_S = 1e15
_Leaving = tuple[float, int, int, Allocation]  # when, a number that breaks ties, row, what it holds


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEstimate:
    """Expected start of a job; infinite: unknown.

    ``unlimited``: rows of jobs without a time limit that would have to end first. ``is_short``: it, or a job before it,
    would not start even if all running jobs had ended. Neither: more than `AHEAD_MAX` jobs stand before it.
    """

    at_s: float = math.inf
    unlimited: tuple[int, ...] = ()
    is_short: bool = False


def estimate_start(domain: Domain, row: int, now_s: float) -> StartEstimate:
    """Estimate when a waiting job of this domain starts, or say why that is unknown."""
    (rank,) = domain.roster.ranks([row], now_s)
    ahead = [(one, other) for other, one in domain.waiting.ranked() if one < rank]
    if len(ahead) > AHEAD_MAX:
        return StartEstimate()
    ahead.sort()
    play = _Play(domain, row, now_s)
    try:
        if not all(play.start(other) for _, other in ahead) or not play.start(row):
            return StartEstimate(is_short=True)
        if play.unlimited:
            return StartEstimate(unlimited=tuple(play.unlimited))
        return StartEstimate(at_s=play.now_s)
    finally:
        play.undo()


class _Play:
    """The plan, played forward from now."""

    def __init__(self, domain: Domain, row: int, now_s: float) -> None:
        self.now_s = now_s
        self.unlimited: list[int] = []  # who left because it was played so
        self._domain = domain
        self._quota_use = QuotaUse()
        # Guests leave when they are asked to.
        self._guests = [held for _, held in domain.guests.values()]
        for held in self._guests:
            domain.ledger.give(held.demand, held.allocation)
        self._undo: list[tuple[int, Allocation, int]] = []  # row, what it holds, 1: was given, -1: was taken
        self._leaving: list[_Leaving] = [*self._runs(row), *self._ends_of_closures()]
        heapq.heapify(self._leaving)

    def _runs(self, row: int) -> Iterator[_Leaving]:
        """Running jobs with their ends; jobs that the waiting job may preempt end at once."""
        domain = self._domain
        (rank,) = domain.roster.ranks([row], self.now_s)
        rows = list(domain.running)
        for other, other_rank in zip(rows, domain.roster.ranks(rows, self.now_s), strict=True):
            held = domain.running[other]
            self._quota_use.take(domain.roster.priority_class(other), held.demand.gpus)
            end_s = held.since_s + domain.jobs[other].limit_s
            is_behind = (
                domain.traits.is_preemptive and domain.roster.priority_class(row).may_preempt and other_rank > rank
            )
            if is_behind and domain.jobs[other].preemptible:
                end_s = min(end_s, held.until_s)
            yield max(self.now_s, min(end_s, _NEVER_S)), other, other, held.allocation

    def _ends_of_closures(self) -> Iterator[_Leaving]:
        for number, window in enumerate(self._domain.book.maintenance_windows, 1):
            # Negative numbers are before rows: at one instant windows end before jobs leave.
            if window.end_s > self.now_s:
                yield window.end_s, -number, -1, ()

    def start(self, row: int) -> bool:
        """Advance until a job has room, and start it there; False: it never has."""
        domain, priority_class = self._domain, self._domain.roster.priority_class(row)
        demand = domain.demands[domain.groups[row]]
        while True:
            allocation = None
            if not self._quota_use.why_not(priority_class, demand.gpus):
                allocation = domain.book.place(row, self.now_s)
            if allocation is not None:
                break
            if not self._leaving:
                return False
            self._leave(heapq.heappop(self._leaving))
        domain.ledger.take(demand, allocation)
        self._quota_use.take(priority_class, demand.gpus)
        self._undo.append((row, allocation, -1))
        end_s = min(self.now_s + domain.jobs[row].limit_s, _NEVER_S)
        heapq.heappush(self._leaving, (end_s, row, row, allocation))
        return True

    def _leave(self, leaving: _Leaving) -> None:
        self.now_s, _, row, allocation = leaving
        if row < 0:
            return
        if self.now_s >= _NEVER_S:
            self.unlimited.append(row)
        demand = self._domain.demands[self._domain.groups[row]]
        self._domain.ledger.give(demand, allocation)
        self._quota_use.give(self._domain.roster.priority_class(row), demand.gpus)
        self._undo.append((row, allocation, 1))

    def undo(self) -> None:
        """Restore the ledger, the last step first."""
        ledger = self._domain.ledger
        for row, allocation, step in reversed(self._undo):
            demand = self._domain.demands[self._domain.groups[row]]
            if step > 0:
                ledger.take_back(demand, allocation)
            else:
                ledger.give(demand, allocation)
        for held in self._guests:
            ledger.take_back(held.demand, held.allocation)
