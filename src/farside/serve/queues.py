"""Requests that wait, a queue a model, as glets' rounds see them. PURE."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from farside.scheduler.sharing.glet.gate import Gate
from farside.serve.inference import Array, InferenceError

# Makes what a client is sent of the outputs' rows, which are views that it may not keep.
Encode = Callable[[Sequence[Array]], Any]
# A client that has the SLO as its own limit asks for a little less of it by the time that its request is here.
_SHORTER = 0.9


@dataclass(slots=True, eq=False, kw_only=True)
class Waiting:
    """A request until it is answered: exactly one of ``answer`` and ``fail`` is called, once, unless it is cancelled.

    ``inputs``: in the model's order, ``rows`` each. ``due_s``: when it is to be answered, so that its client has the
    answer by its deadline; its queue sets it. ``is_again``: it was in a batch when an executor died or kept failing.
    ``group``: it may be in one batch with those of this number alone; 0: with any that has none.
    """

    model: str
    rows: int
    inputs: Sequence[Array]
    arrived_s: float
    deadline_s: float
    encode: Encode
    answer: Callable[[Any], None]
    fail: Callable[[InferenceError], None]
    is_again: bool = False
    group: int = 0
    is_cancelled: bool = False
    staged_s: float = 0.0
    due_s: float = 0.0


@dataclass(slots=True)
class RequestQueue:
    """One model's requests that wait, by deadline: those that ask for less than the SLO go before older ones.

    ``on_drop`` is called with each that is given up. ``gate`` decides what is let in; whoever adds a request asks it.
    """

    on_drop: Callable[[Waiting], None]
    gate: Gate
    rows: int = 0
    _requests: deque[Waiting] = field(default_factory=deque[Waiting])
    _grouped: int = 0  # requests that are of a group

    def __len__(self) -> int:
        return len(self._requests)

    def waiting(self, now_s: float) -> int:
        """Rows that wait, of those that may be in one batch with the first: by these its batch is judged."""
        if not self._grouped:
            return self.rows
        group = self._requests[0].group
        return sum(one.rows for one in takewhile(lambda one: one.group == group, self._requests))

    def oldest(self) -> int:
        """Rows of the first."""
        return self._requests[0].rows

    def deadline_s(self) -> float:
        """When the first must be answered."""
        first = self._requests[0]
        return first.due_s - self.gate.way_s(first.deadline_s - first.arrived_s)

    def full_s(self, count: int) -> float:
        """Not known."""
        return math.inf

    def drop(self, now_s: float) -> None:
        """Gives the first up."""
        self._give_up(self._popped(), now_s)

    def add(self, one: Waiting, lain_s: float = 0.0) -> None:
        """Puts one in its place, behind those of the same deadline. ``lain_s``: so long it may have lain unread."""
        self._count(one, 1)
        self.gate.enter(one.rows)
        requests = self._requests
        due_s = one.due_s = one.deadline_s - lain_s
        at = len(requests)
        while at and requests[at - 1].due_s > due_s and not requests[at - 1].group:
            at -= 1
        if at == len(requests):
            requests.append(one)
        else:
            requests.insert(at, one)

    def put_back(self, batch: Sequence[Waiting]) -> None:
        """Puts a batch at the head, in its order, as if it had never been taken."""
        self._requests.extendleft(reversed(batch))
        for one in batch:
            self._count(one, 1)
            self.gate.took(-one.rows)

    def take(self, rows: int) -> list[Waiting]:
        """The first requests with at most ``rows`` rows together, but one at least; of one group, or all of none."""
        waited = self.rows
        taken = [self._popped()]
        left = rows - taken[0].rows
        while self._requests:
            first = self._requests[0]
            if first.rows > left or first.group != taken[0].group:
                break
            left -= first.rows
            taken.append(self._popped())
        self.gate.took(waited - self.rows)
        return taken

    def remove(self, one: Waiting) -> bool:
        """Takes one out whose client has gone; whether it was there."""
        try:
            self._requests.remove(one)
        except ValueError:
            return False
        self._count(one, -1)
        self.gate.took(one.rows)
        return True

    def drop_late(self, now_s: float) -> None:
        """Gives those up whose deadline is past, wherever they are."""
        late = [one for one in self._requests if one.deadline_s < now_s]
        for one in late:
            self._requests.remove(one)
            self._count(one, -1)
            self._give_up(one, now_s)

    def _give_up(self, one: Waiting, now_s: float) -> None:
        # A client that wants its answer sooner than the SLO says nothing of what the glets can serve.
        if one.deadline_s - one.arrived_s < _SHORTER * self.gate.slo_s:
            self.on_drop(one)
            return
        self.gate.gave_up(now_s)
        self.on_drop(one)

    def _popped(self) -> Waiting:
        one = self._requests.popleft()
        self._count(one, -1)
        return one

    def _count(self, one: Waiting, times: int) -> None:
        self.rows += times * one.rows
        self._grouped += times * (one.group > 0)
