"""Waiting jobs of one domain, in classes of equal demand. PURE.

How it works
  When the first job of a class has no room, none of the class has; so a cycle looks at one job a class, whatever the
  length of the queue. A class is a number here; the domain knows its demand. Each is a heap by rank. What left a heap's
  middle stays there until it comes to the top, or until such entries are more than the others.
"""

import heapq
from collections.abc import Iterable

# Entries of jobs that have left, up to this number, stay in the heaps, however few jobs wait.
SPARE = 1000

# The policy's keys, then submit time, then sequence.
Rank = tuple[float, ...]


class Waiting:
    """Rows in order, by class."""

    def __init__(self) -> None:
        self._heaps: dict[int, list[tuple[Rank, int]]] = {}
        self._ranks: dict[int, Rank] = {}
        self._entries = 0  # in all heaps

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, row: int) -> bool:
        return row in self._ranks

    def add(self, row: int, group: int, rank: Rank) -> None:
        """Add a row, or change its rank."""
        self._ranks[row] = rank
        heapq.heappush(self._heaps.setdefault(group, []), (rank, row))
        self._entries += 1
        if self._entries > 2 * len(self._ranks) + SPARE:
            self._drop_gone()

    def add_all(self, rows: Iterable[tuple[int, int, Rank]]) -> None:
        """Add rows with class and rank, or change their ranks."""
        ranked = list(rows)
        self._ranks.update((row, rank) for row, _, rank in ranked)
        if len(ranked) < len(self._ranks):
            for row, group, rank in ranked:
                self.add(row, group, rank)
            return
        # All that wait are ranked: to build heaps at once takes linear time, and leaves no old entries.
        self._heaps = {}  # nobody else waits
        for row, group, rank in ranked:
            self._heaps.setdefault(group, []).append((rank, row))
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._entries = len(ranked)

    def _drop_gone(self) -> None:
        kept = {
            group: [(rank, row) for rank, row in heap if self._ranks.get(row) is rank]
            for group, heap in self._heaps.items()
        }
        self._heaps = {group: heap for group, heap in kept.items() if heap}
        for heap in self._heaps.values():
            heapq.heapify(heap)
        self._entries = sum(map(len, self._heaps.values()))

    def discard(self, row: int) -> None:
        """Remove a row that waits no longer."""
        self._ranks.pop(row, None)

    def rows(self) -> list[int]:
        """All rows, in no order."""
        return list(self._ranks)

    def ranks(self) -> Iterable[Rank]:
        """Their ranks, in no order."""
        return self._ranks.values()

    def ranked(self) -> Iterable[tuple[int, Rank]]:
        """All rows with their ranks, in no order."""
        return self._ranks.items()

    def first(self, group: int) -> tuple[Rank, int] | None:
        """First row of a class and its rank."""
        heap = self._heaps.get(group)
        while heap:
            rank, row = heap[0]
            # By identity, as a job that was ranked again has a new tuple and its old entry is void.
            if self._ranks.get(row) is rank:
                return rank, row
            heapq.heappop(heap)
            self._entries -= 1
        return None

    def heads(self, groups: Iterable[int] | None = None) -> list[tuple[Rank, int, int]]:
        """First row of each class (of these classes) with its rank and class, in no order."""
        found: list[tuple[Rank, int, int]] = []
        for group in list(self._heaps if groups is None else groups):
            first = self.first(group)
            if first is not None:
                found.append((*first, group))
            elif group in self._heaps:
                del self._heaps[group]
        return found
