"""Which GPUs each running job of a domain holds, and until when it may not be preempted. PURE."""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass

from farside.scheduler.admission.roster import Roster
from farside.scheduler.ledger import NOTHING_BUT_GPUS as NOTHING_BUT_GPUS
from farside.scheduler.maintenance_window import MaintenanceWindow, closed_gpus
from farside.scheduler.placement.backed import backed
from farside.scheduler.placement.recall import least_recall
from farside.scheduler.quota_use import QuotaUse
from farside.scheduler.running import EARLY_S, RunningOrder
from farside.scheduler.state import Allocation, Demand, Node
from farside.scheduler.table import Floats, JobColumns
from farside.scheduler.waiting import Rank


@dataclass(slots=True)
class Held:
    """GPUs that a running job holds. Before ``until_s`` the job may not be preempted."""

    demand: Demand
    allocation: Allocation
    since_s: float
    until_s: float


class Book:
    """GPUs held by the running jobs of a domain."""

    def __init__(self, roster: Roster, nodes: tuple[Node, ...], quota_use: QuotaUse) -> None:
        self.ledger = roster.rules.placement.ledger(nodes)
        self.running: dict[int, Held] = {}
        self.quota_use = quota_use
        self.maintenance_windows: tuple[MaintenanceWindow, ...] = ()
        self._roster = roster
        self._by_rank = RunningOrder()  # of those who run, who may be preempted
        self._changes_s: dict[int, float] = {}  # when a running job crosses its next threshold
        self._next_changes: list[tuple[float, int]] = []  # the same, the first first, and old ones

    # ------------------------------------------------------------------ places

    def place(self, row: int, now_s: float) -> Allocation | None:
        """Free GPUs for a job on nodes that are open to it; None: not enough."""
        return self.place_demand(self._roster.demand(row), self._roster.jobs[row].limit_s, now_s)

    def place_demand(self, demand: Demand, limit_s: float, now_s: float) -> Allocation | None:
        """Free GPUs for a job that runs for ``limit_s`` at most, of this domain or a guest; None: not enough."""
        placement = self._roster.rules.placement
        closed: Allocation = ()
        if self.maintenance_windows:
            closed = closed_gpus(self.maintenance_windows, self.ledger.free, now_s, limit_s)
        self.ledger.take(NOTHING_BUT_GPUS, closed)
        allocation = placement.place(self.ledger, demand)
        if allocation is not None:
            allocation = backed(placement, self.ledger, demand, allocation)
        if allocation is not None:
            allocation = least_recall(placement, self.ledger, demand, allocation)
        self.ledger.give(NOTHING_BUT_GPUS, closed)
        return allocation

    def why_capped(self, row: int) -> str:
        """Cap of the account or user that keeps a waiting job from starting, in words; empty: none."""
        if self._roster.rules.tenancy is None:
            return ""
        return self.quota_use.why_not(self._roster.priority_class(row), self._roster.jobs[row].gpus)

    # ------------------------------------------------------------------ who holds

    def take(self, row: int, allocation: Allocation, now_s: float) -> None:
        """Book a job's GPUs."""
        roster = self._roster
        demand = roster.demand(row)
        self.ledger.take(demand, allocation)
        self.running[row] = Held(demand, allocation, now_s, now_s + roster.rules.min_run_s)
        self.charge(row)

    def charge(self, row: int) -> None:
        """Count what a job holds from now on against its quotas, here or as a guest elsewhere."""
        roster = self._roster
        if row in roster.priority_classes:
            self.quota_use.take(roster.priority_classes[row], roster.jobs[row].gpus)

    def discharge(self, row: int) -> None:
        """Count it no longer."""
        roster = self._roster
        if row in roster.priority_classes:
            self.quota_use.give(roster.priority_classes[row], roster.jobs[row].gpus)

    def drop(self, row: int) -> Held:
        """Forget what a job holds, but leave its GPUs booked in the ledger."""
        self._by_rank.discard(row)
        self.discharge(row)
        return self.running.pop(row)

    def give(self, row: int) -> Held:
        """Free a job's GPUs."""
        held = self.drop(row)
        self.ledger.give(held.demand, held.allocation)
        return held

    def keep(self, row: int, since_s: float) -> None:
        """Set since when a job holds its GPUs, after it got the same ones back or has only now started."""
        self.running[row].since_s = since_s
        self.rank_anew(row)

    def leave_alone(self, row: int, until_s: float) -> bool:
        """Protect a job from preemption until this time; False: an existing protection lasts longer."""
        held = self.running[row]
        if until_s <= held.until_s:
            return False
        held.until_s = until_s
        return True

    def hold_up(self, row: int, now_s: float, delay_s: float) -> None:
        """Delay a job's progress; its protection from preemption counts from then.

        Otherwise it would be taken away again before it got anywhere, and again, for ever.
        """
        held = self.running[row]
        if held.until_s > now_s:
            held.until_s += delay_s

    # ------------------------------------------------------------------ by rank

    def last_running(self, now_s: float) -> Iterator[tuple[Rank, int]]:
        """Running jobs that may be preempted, with their ranks, the last first; evaluated as far as needed."""
        roster = self._roster
        for rank, row in self._by_rank.last_first(roster.rules.order, lambda rows: roster.figures(rows, now_s), now_s):
            if now_s >= self.running[row].until_s:
                yield rank, row

    def may_displace(self, row: int, other: int) -> bool:
        """Whether a job that goes before all may preempt a running one, apart from temporary protection."""
        roster = self._roster
        if not (
            roster.traits.is_preemptive and roster.jobs[other].preemptible and roster.priority_class(row).may_preempt
        ):
            return False
        return (
            not roster.traits.is_sparing_equals
            or roster.priority_class(other).priority < roster.priority_class(row).priority
        )

    def rank_anew(self, row: int) -> None:
        """Rank a running job again: it is new here, or its rank changed unexpectedly."""
        if self._roster.jobs[row].preemptible:
            self._by_rank.renew(row)

    def rank_all_anew(self) -> None:
        """Rank all running jobs again, after a change of policy."""
        self._by_rank.renew_all()

    # ------------------------------------------------------------------ thresholds

    def foresee_ranks(self, rows: list[int], jobs: JobColumns, change_s: Floats, now_s: float) -> None:
        """Rank those of these rows that are due for it, as their figures are at hand."""
        self._by_rank.foresee(self._roster.rules.order, rows, jobs, change_s, now_s)

    def foresee(self, row: int, at_s: float) -> None:
        """Note when a running job crosses its next threshold."""
        self._changes_s[row] = at_s
        if at_s < math.inf:
            heapq.heappush(self._next_changes, (at_s, row))

    def forget_change(self, row: int) -> None:
        """Forget the expected threshold of a job."""
        self._changes_s.pop(row, None)

    def reached_s(self, row: int, now_s: float) -> float:
        """When a running job reached its expected threshold; now where none is known, infinite where it has not."""
        at_s = self._changes_s.get(row, now_s)
        return min(at_s, now_s) if at_s <= now_s + EARLY_S else math.inf

    def take_crossing(self, now_s: float) -> list[tuple[float, int]]:
        """Running jobs that have reached their thresholds by now, with the times."""
        found: list[tuple[float, int]] = []
        while self._next_changes and self._next_changes[0][0] <= now_s + EARLY_S:
            at_s, row = heapq.heappop(self._next_changes)
            if row in self.running and self._changes_s.get(row) == at_s:
                found.append((at_s, row))
        return found
