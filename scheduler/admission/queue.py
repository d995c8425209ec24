"""The queue of one domain: its waiting jobs, their order, and which of them a cycle must look at. PURE."""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping

from farside.scheduler.admission.roster import Roster
from farside.scheduler.fair_share import FairShare
from farside.scheduler.tenancy import Cap
from farside.scheduler.waiting import Rank, Waiting


class Queue:
    """Queue of waiting jobs.

    Args:
        roster: The domain's jobs.
        fair_share: What accounts have used so far; None: accounts are not compared.
    """

    def __init__(self, roster: Roster, fair_share: FairShare | None) -> None:
        self.waiting = Waiting()
        self.fair_share = fair_share
        self._roster = roster
        self._unranked: set[int] = set()  # their ranks are found when the next cycle asks
        self._is_changed = True  # something else than new jobs, so that jobs may start which could not
        self._lines: dict[tuple[Cap, ...], int] = {(): 0}  # under a strict policy
        self._due: list[int] = []
        self._waiting_since: dict[int, float] = {}
        self._waits: list[tuple[float, int, int]] = []  # (since when, sequence, row) of who waits, and old ones

    # ------------------------------------------------------------------ what happened

    def enter(self, row: int, since_s: float) -> None:
        """Add a job that waits without a break since this time."""
        self._unranked.add(row)
        if self.fair_share is not None:
            level = self.fair_share.level(self._roster.priority_classes[row].account)
            self._roster.table.share_level[row] = level
        if self._roster.rules.reserve_after_s < math.inf:
            self._waiting_since[row] = since_s
            heapq.heappush(self._waits, (since_s, self._roster.jobs[row].sequence, row))

    def withdraw(self, row: int) -> None:
        """Remove a job without a start."""
        self.waiting.discard(row)
        self.leave(row)
        self._is_changed = True

    def leave(self, row: int) -> None:
        """Note that a job runs; `waiting` does not have it any longer."""
        self._unranked.discard(row)
        self._waiting_since.pop(row, None)

    def put_back(self, row: int, rank: Rank) -> None:
        """Return a job that ran to the queue, at this rank until its figures are known."""
        self.waiting.add(row, self._line_of(row), rank)

    def touch(self) -> None:
        """Note that something happened that may let blocked jobs start."""
        self._is_changed = True

    def rank_anew(self, row: int) -> None:
        """Rank a job again, whose figures changed since the last ranking."""
        self._unranked.add(row)

    def rank_all_anew(self) -> None:
        """Rank all jobs again, after a change of policy."""
        self._unranked.update(self.waiting.rows())
        self._is_changed = True

    def note_due(self, row: int) -> None:
        """Note that a job may have starved, if it waits."""
        self._due.append(row)

    def compare_accounts(self, now_s: float) -> None:
        """Rank waiting jobs again if their account's level has changed, when a comparison is due."""
        share, priority_classes = self.fair_share, self._roster.priority_classes
        if share is None:
            return
        share.advance(now_s)
        if now_s < share.due_s:
            return
        changed = share.compare(dict.fromkeys(one.account for one in priority_classes.values()), now_s)
        rows = {*self.waiting.rows(), *self._unranked} if changed else ()
        for row in rows:
            account = priority_classes[row].account
            if account in changed:
                self._roster.table.share_level[row] = share.level(account)
                self._unranked.add(row)
                self._is_changed = True

    def charge_accounts(self, gpus_of: Mapping[str, int]) -> None:
        """Charge accounts for their GPUs from this cycle to the next."""
        if self.fair_share is not None:
            self.fair_share.hold(gpus_of)

    # ------------------------------------------------------------------ what the cycle asks

    def has(self, row: int) -> bool:
        """Whether a job waits here, ranked by a cycle or not yet."""
        return row in self.waiting or row in self._unranked

    def take_heads(self, now_s: float) -> list[tuple[Rank, int, int]]:
        """First job of each class that may have room now, with its rank and class, in no order.

        Ranks what came or changed since the last cycle. When jobs have only come since, the other classes are as they
        were, and had no room: where a policy says that running jobs never fall back by themselves, they are left out.
        """
        roster = self._roster
        rows = list(self._unranked)
        self._unranked.clear()
        groups = [self._line_of(row) for row in rows]
        self.waiting.add_all(zip(rows, groups, roster.ranks(rows, now_s), strict=True))
        is_changed, self._is_changed = self._is_changed, False
        if is_changed or roster.traits.is_strict or not roster.traits.is_steady:
            return self.waiting.heads()
        came = set(rows)
        return [head for head in self.waiting.heads(set(groups)) if head[1] in came]

    def _line_of(self, row: int) -> int:
        """Where it waits: with its class. Where the first that has no room blocks all, there is but one line.

        And one for each set of caps: those who may not have more block nobody else.
        """
        if not self._roster.traits.is_strict:
            return self._roster.groups[row]
        return self._lines.setdefault(self._roster.priority_class(row).caps, len(self._lines))

    def head_before(self, row: int) -> int:
        """First job in the line of a waiting job."""
        first = self.waiting.first(self._line_of(row))
        assert first is not None
        return first[1]

    def take_due(self) -> list[int]:
        """Waiting jobs that may have starved since the last cycle."""
        due, self._due = dict.fromkeys(self._due), []
        return [row for row in due if self.has(row)]

    def longest_waiting(self, now_s: float, why_capped: Callable[[int], str]) -> int:
        """Job with the longest wait without a break, if the wait is too long; -1: none.

        One that its account or user may not have now does not count: what is held for it would stand idle.
        """
        capped: list[tuple[float, int, int]] = []
        found = -1
        while self._waits and found < 0:
            since_s, _, row = self._waits[0]
            if now_s - since_s < self._roster.rules.reserve_after_s:
                break
            if row not in self.waiting or self._waiting_since.get(row) != since_s:
                heapq.heappop(self._waits)
            elif why_capped(row):
                capped.append(heapq.heappop(self._waits))
            else:
                found = row
        self._put_waits(capped)
        return found

    def _put_waits(self, waits: Iterable[tuple[float, int, int]]) -> None:
        for wait in waits:
            heapq.heappush(self._waits, wait)
