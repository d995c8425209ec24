"""Running jobs of one domain by rank: the last ones are found without a look at the others. PURE.

How it works
  Nearly every cycle asks which running jobs may have to stop, and mostly the last few are the answer. So ranks are
  kept in a sorted list for as long as they are good. How long that is the policy says, a job at a time:

  * STILL: as good as new until the time that ``next_change_s`` told;
  * FALLING: until then no more than an upper bound. As the list is read from its end, bounds there are replaced by
    ranks as of now, some at a time, and sink to where they belong; a rank as of now that is at the end is the greatest;
  * INNER: of no use a moment later, but for the first key. These jobs stand on a shelf for each first key, and a shelf
    is ranked when a reading comes that far: jobs with a greater first key are read without it;
  * FREE: of no use a moment later. These jobs, and those of which nothing is known yet, are ranked at each reading, and
    merged in.

  A sorted list moves 8 bytes for each entry behind the one that comes or goes: for 50,000 jobs some microseconds.
"""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from farside.scheduler.order.policy import FALLING, FREE, INNER, OrderPolicy
from farside.scheduler.table import Floats, JobColumns
from farside.scheduler.waiting import Rank

# So long before a threshold a job is ranked at each reading: policies see one a little early (`NEAR_S`).
EARLY_S = 1e-3
# Bounds that are replaced at once to begin with: that many cost hardly more than one.
BATCH = 8
# From so many on, the whole list is made anew.
MANY = 64

Figures = Callable[[list[int]], JobColumns]
_Entry = tuple[Rank, int]
SHELF = -1  # in a reading, the row of an entry that says: here a shelf may begin


class RunningOrder:
    """Running jobs (rows) by rank, without those that may never be preempted."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._ranks: dict[int, Rank] = {}  # of who stands in the list
        self._as_of_s: dict[int, float] = {}  # of those with a falling rank
        self._shelves: dict[float, set[int]] = {}  # rows by their first key
        self._shelf_of: dict[int, float] = {}  # its first key
        self._loose: set[int] = set()  # who stands neither in the list nor on a shelf
        self._left: list[_Entry] = []  # entries whose job has left the list
        self._expiries: list[tuple[float, int]] = []  # until when ranks are good

    def renew(self, row: int) -> None:
        """A job came, or its rank changed in a way that the policy did not announce."""
        self.discard(row)
        self._loose.add(row)

    def discard(self, row: int) -> None:
        """Remove a job that has stopped."""
        self._loose.discard(row)
        rank = self._ranks.pop(row, None)
        if rank is not None:
            self._left.append((rank, row))
        first_key = self._shelf_of.pop(row, None)
        if first_key is not None:
            self._shelves[first_key].remove(row)

    def foresee(self, order: OrderPolicy, rows: list[int], jobs: JobColumns, change_s: Floats, now_s: float) -> None:
        """Rank those of these rows that are due for it, while their figures are at hand.

        ``change_s``: when the policy says that each comes to another rank. Not while a reading goes on.
        """
        if self._loose.isdisjoint(rows):
            return
        self._drop_left()
        keys = (*order.keys(jobs), jobs.submit_s, jobs.sequence)
        self._put_away(rows, keys, order.motion(jobs).tolist(), change_s, now_s)

    def renew_all(self) -> None:
        """Rank all jobs again."""
        self._loose.update(self._ranks, self._shelf_of)
        self._ranks.clear()
        self._shelves.clear()
        self._shelf_of.clear()
        self._entries.clear()
        self._left.clear()
        self._expiries.clear()

    def last_first(self, order: OrderPolicy, figures: Figures, now_s: float) -> Iterator[_Entry]:
        """Current ranks, the greatest first. Changes during the iteration are not seen.

        Args:
            order: By what; the same at each reading, but for `renew_all`.
            figures: Of some rows, now.
            now_s: Never before that of the last reading.
        """
        self._expire(now_s)
        self._drop_left()
        loose = self._rank_loose(order, figures, now_s) if self._loose else iter(())
        ranked = self._read_list(order, figures, now_s)
        shelved = self._read_shelves(order, figures, now_s)
        return (entry for entry in _merged(loose, _merged(shelved, ranked)) if entry[1] != SHELF)

    def _drop_left(self) -> None:
        left, self._left = self._left, []
        if len(left) > MANY:
            # By identity: each ranking makes a tuple of its own, so an old entry of a job never counts as its present
            # one.
            self._entries = [entry for entry in self._entries if self._ranks.get(entry[1]) is entry[0]]
            return
        for entry in left:
            at = bisect_left(self._entries, entry)
            if at < len(self._entries) and self._entries[at] == entry:
                del self._entries[at]

    def _expire(self, now_s: float) -> None:
        # An old entry, of a job that has left or was ranked again since, costs one more ranking and changes nothing.
        while self._expiries and self._expiries[0][0] <= now_s:
            _, row = heapq.heappop(self._expiries)
            if row in self._ranks or row in self._shelf_of:
                self.renew(row)

    def _rank_loose(self, order: OrderPolicy, figures: Figures, now_s: float) -> Iterator[_Entry]:
        """Store the rows whose rank or shelf stays valid for a while; returns the others, the greatest first."""
        rows = list(self._loose)
        jobs = figures(rows)
        keys = (*order.keys(jobs), jobs.submit_s, jobs.sequence)
        motions = order.motion(jobs).tolist()
        if min(motions) == FREE == max(motions):
            return _descending(rows, keys)
        free = self._put_away(rows, keys, motions, now_s + order.next_change_s(jobs), now_s)
        if not free:
            return iter(())
        return _descending([rows[at] for at in free], [key[free] for key in keys])

    def _put_away(
        self, rows: list[int], keys: Sequence[Floats], motions: list[int], change_s: Floats, now_s: float
    ) -> list[int]:
        """Store those of these rows whose rank stays valid for a while; returns the indices of the others."""
        until_s: list[float] = (change_s - EARLY_S).tolist()
        ranks = zip(*(key.tolist() for key in keys), strict=True)
        entered: list[_Entry] = []
        free: list[int] = []
        for at, (row, rank, motion) in enumerate(zip(rows, ranks, motions, strict=True)):
            if row not in self._loose:
                continue
            if motion == FREE or until_s[at] <= now_s:
                free.append(at)
                continue
            self._loose.remove(row)
            if until_s[at] < math.inf:
                heapq.heappush(self._expiries, (until_s[at], row))
            if motion == INNER:
                self._shelve(row, rank[0])
            else:
                entered.append((rank, row))
                self._note(entered[-1], motion, now_s)
        self._insert(entered, len(self._entries))
        return free

    def _note(self, entry: _Entry, motion: int, now_s: float) -> None:
        rank, row = entry
        self._ranks[row] = rank
        if motion == FALLING:
            self._as_of_s[row] = now_s
        else:
            self._as_of_s.pop(row, None)

    def _shelve(self, row: int, first_key: float) -> None:
        self._shelf_of[row] = first_key
        self._shelves.setdefault(first_key, set()).add(row)

    def _read_shelves(self, order: OrderPolicy, figures: Figures, now_s: float) -> Iterator[_Entry]:
        """Insert before each shelf's jobs an entry behind them all: a reading that stops there ranks none of them."""
        for first_key in sorted(self._shelves, reverse=True):
            if not self._shelves[first_key]:
                continue
            yield (first_key, math.inf), SHELF
            rows = list(self._shelves[first_key])
            jobs = figures(rows)
            yield from _descending(rows, (*order.keys(jobs), jobs.submit_s, jobs.sequence))

    def _insert(self, entries: list[_Entry], before: int) -> None:
        """Insert entries, all of which belong before this index of the list."""
        if len(entries) > MANY:
            self._entries[:before] = sorted([*self._entries[:before], *entries])
            return
        for added, entry in enumerate(entries):
            insort(self._entries, entry, 0, before + added)

    def _read_list(self, order: OrderPolicy, figures: Figures, now_s: float) -> Iterator[_Entry]:
        at, batch = len(self._entries), BATCH
        while at:
            rank, row = entry = self._entries[at - 1]
            if self._as_of_s.get(row, now_s) < now_s:
                at = self._bring_up_to_date(max(0, at - batch), at, order, figures, now_s)
                # Twice as many each time: a reading that goes far makes few calls, one that stops soon ranks few.
                batch *= 2
                continue
            at -= 1
            if self._ranks.get(row) is rank:
                yield entry

    def _bring_up_to_date(self, low: int, high: int, order: OrderPolicy, figures: Figures, now_s: float) -> int:
        """Replaces the bounds in a stretch of the list; returns where the list's part up to there ends now."""
        good: list[_Entry] = []
        old: list[int] = []
        for rank, row in self._entries[low:high]:
            if self._ranks.get(row) is rank:
                if self._as_of_s.get(row, now_s) < now_s:
                    old.append(row)
                else:
                    good.append((rank, row))
        jobs = figures(old)
        keys = (*order.keys(jobs), jobs.submit_s, jobs.sequence)
        fresh = list(zip(zip(*(key.tolist() for key in keys), strict=True), old, strict=True))
        for rank, row in fresh:
            self._ranks[row], self._as_of_s[row] = rank, now_s
        self._entries[low:high] = good
        self._insert(fresh, low + len(good))
        return low + len(good) + len(fresh)


def _merged(first: Iterator[_Entry], second: Iterator[_Entry]) -> Iterator[_Entry]:
    """Both, the greatest first; an entry of the first that compares with nothing goes before."""
    one, other = next(first, None), next(second, None)
    while one is not None or other is not None:
        if other is None or (one is not None and not one[0] < other[0]):
            assert one is not None
            yield one
            one = next(first, None)
        else:
            yield other
            other = next(second, None)


def _descending(rows: Sequence[int], keys: Sequence[Floats]) -> Iterator[_Entry]:
    # lexsort takes its last key as the first to sort by.
    for at in np.lexsort(keys[::-1])[::-1].tolist():
        yield tuple(key.item(at) for key in keys), rows[at]
