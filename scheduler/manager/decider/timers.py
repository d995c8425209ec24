"""Timers of the planner: when it looks again although nothing has happened. PURE."""

import heapq
import math
from collections.abc import Iterable, Iterator

from farside.scheduler.manager.model.draft import Timer
from farside.scheduler.order.policy import EDGE_S

NO_ROW = -1


class Timers:
    """Times to look at all jobs again, and times at which one job comes to a threshold of its policy."""

    def __init__(self) -> None:
        # Timers are never searched for in the heap: `end_turn` raises the row's number, and old ones are passed over
        # when they come up.
        self._heap: list[tuple[float, int, int, Timer]] = []  # (when, row or -1, the row's turn, why)
        self._turns: dict[int, int] = {}

    @property
    def next_s(self) -> float:
        """When the next is due; infinite: there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def set(self, timer: Timer, at_s: float) -> None:
        """All jobs are to be looked at then; infinite: never."""
        if at_s < math.inf:
            heapq.heappush(self._heap, (at_s, NO_ROW, 0, timer))

    def watch(self, row: int, at_s: float) -> None:
        """A job comes to a threshold then, unless its turn is over before."""
        heapq.heappush(self._heap, (at_s, row, self._turns.setdefault(row, 0), Timer.THRESHOLD))

    def end_turn(self, rows: Iterable[int]) -> None:
        """Drops the timers of these jobs."""
        for row in rows:
            self._turns[row] = self._turns.get(row, 0) + 1

    def take_due(self, now_s: float) -> Iterator[tuple[Timer, int]]:
        """Those that are due, each with the row of its job or `NO_ROW`."""
        while self._heap and self._heap[0][0] <= now_s + EDGE_S:
            _, row, turn, timer = heapq.heappop(self._heap)
            if row == NO_ROW or turn == self._turns.get(row):
                yield timer, row

    def clear(self) -> None:
        """Forgets all."""
        self._heap.clear()
        self._turns.clear()
