"""Jobs cut into groups of like iteration times, and exchanged until computing and communicating balance. PURE."""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PARTNERS = 8
_ROUNDING = 1e-9


def cut(iteration_s: Floats, groups: int) -> list[list[int]]:
    """Runs of the jobs in falling order of their iterations, as equal in number as can be [harmony §IV-B3].

    Args:
        iteration_s: The iteration of each job alone, on as many machines as each group would have.
        groups: Their number, from 1 to that of the jobs.
    """
    order = np.argsort(-iteration_s, kind="stable").tolist()
    size, larger = divmod(len(order), groups)
    found, at = list[list[int]](), 0
    for number in range(groups):
        end = at + size + (number < larger)
        found.append(order[at:end])
        at = end
    return found


def swap(groups: Sequence[Sequence[int]], lean_s: Floats, *, exchanges: int) -> list[list[int]]:
    """Groups after exchanges of single jobs, each of which brings two groups nearer to their balance.

    The group that is farthest from its balance looks at the groups that lean most to the other side, the farthest
    first, and exchanges the pair of jobs that leaves both least unbalanced. One that finds none is left alone until an
    exchange changes it. The sum of all groups' distances falls with each exchange, so this ends [harmony §IV-B3].

    Args:
        groups: Jobs by number.
        lean_s: By job, how much longer it computes than it communicates.
        exchanges: The most that are made.
    """
    if len(groups) == 1:
        return [list(groups[0])]
    return _Exchange(groups, lean_s).run(exchanges)


class _Exchange:
    """Each group's jobs in the order of their lean, and the groups in the order of theirs."""

    def __init__(self, groups: Sequence[Sequence[int]], lean_s: Floats) -> None:
        leans = lean_s.tolist()
        self._jobs = [sorted(group, key=leans.__getitem__) for group in groups]
        self._leans = [[leans[job] for job in group] for group in self._jobs]
        self._sums = [math.fsum(group) for group in self._leans]
        self._order = sorted((total, number) for number, total in enumerate(self._sums))
        self._farthest = [(-abs(total), number) for total, number in self._order]
        heapq.heapify(self._farthest)

    def run(self, exchanges: int) -> list[list[int]]:
        left = exchanges
        while left and self._farthest:
            distance, number = heapq.heappop(self._farthest)
            # An entry that an exchange has made out of date; the newer one is in the heap, too.
            if -distance == abs(self._sums[number]) and self._improve(number):
                left -= 1
        return self._jobs

    def _improve(self, group: int) -> bool:
        own = self._sums[group]
        partners = self._order[:PARTNERS] if own > 0 else self._order[: -PARTNERS - 1 : -1]
        for total, other in partners:
            if total * own >= 0:
                return False  # the rest leans the same way, and no exchange brings that nearer
            if self._exchange(group, other):
                return True
        return False

    def _exchange(self, group: int, other: int) -> bool:
        own, theirs = self._sums[group], self._sums[other]
        # Both distances together are least where the two sums become equal, and grow to both sides of that alike.
        mine, yours = _nearest(self._leans[group], self._leans[other], (theirs - own) / 2)
        change = self._leans[other][yours] - self._leans[group][mine]
        if abs(own + change) + abs(theirs - change) >= (abs(own) + abs(theirs)) * (1 - _ROUNDING):
            return False
        gives, takes = self._taken(group, mine), self._taken(other, yours)
        self._insert(group, *takes)
        self._insert(other, *gives)
        return True

    def _taken(self, group: int, at: int) -> tuple[float, int]:
        return self._leans[group].pop(at), self._jobs[group].pop(at)

    def _insert(self, group: int, lean: float, job: int) -> None:
        at = bisect_left(self._leans[group], lean)
        self._leans[group].insert(at, lean)
        self._jobs[group].insert(at, job)
        del self._order[bisect_left(self._order, (self._sums[group], group))]
        self._sums[group] = total = math.fsum(self._leans[group])
        insort(self._order, (total, group))
        heapq.heappush(self._farthest, (-abs(total), group))


def _nearest(own: Sequence[float], theirs: Sequence[float], wanted: float) -> tuple[int, int]:
    """Places of the pair whose difference is nearest to the one wanted; both lists are sorted."""
    found, least, count = (0, 0), math.inf, len(theirs)
    for place, value in enumerate(own):
        target = value + wanted
        at = bisect_left(theirs, target)
        if at < count and theirs[at] - target < least:
            found, least = (place, at), theirs[at] - target
        if at and target - theirs[at - 1] < least:
            found, least = (place, at - 1), target - theirs[at - 1]
    return found
