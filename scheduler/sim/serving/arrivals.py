"""When requests come: Poisson arrivals of rates that may change, and what became of each. PURE."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farside.scheduler.sharing.glet.gate import Gate

WAITING, MET, LATE, DROPPED = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Rates over time: from ``from_s[i]`` on each model has ``rates[i]`` requests a second, until ``until_s``."""

    from_s: tuple[float, ...]
    rates: tuple[Mapping[str, float], ...]
    until_s: float

    @property
    def models(self) -> tuple[str, ...]:
        """Models that have requests at any time, by name."""
        return tuple(sorted({name for rates in self.rates for name, rate in rates.items() if rate > 0}))


def drawn(course: Course, rng: np.random.Generator) -> Mapping[str, list[float]]:
    """Times of each model's requests, ascending."""
    ends_s = (*course.from_s[1:], course.until_s)
    found: dict[str, list[float]] = {}
    for name in course.models:
        times: list[float] = []
        for start_s, end_s, rates in zip(course.from_s, ends_s, course.rates, strict=True):
            count = int(rng.poisson(rates.get(name, 0.0) * (end_s - start_s)))
            times += np.sort(rng.uniform(start_s, end_s, count)).tolist()
        found[name] = times
    return found


class ArrivedQueue:
    """One model's requests over the whole simulation; a queue of those that have come by a time."""

    def __init__(self, times_s: list[float], slo_s: float) -> None:
        self.times_s, self.slo_s = times_s, slo_s
        self.became = bytearray(len(times_s))
        self.head = self._tail = 0

    def waiting(self, now_s: float) -> int:
        """How many have come and wait."""
        times, tail = self.times_s, self._tail
        if tail < len(times) and times[tail] <= now_s:
            self._tail = tail = bisect_right(times, now_s, tail)
        return tail - self.head

    def oldest(self) -> int:
        """One: simulated requests have one row each."""
        return 1

    def deadline_s(self) -> float:
        """When the oldest must be answered."""
        return self.times_s[self.head] + self.slo_s

    def full_s(self, count: int) -> float:
        """When ``count`` wait; infinity if never."""
        at = self.head + count - 1
        return self.times_s[at] if at < len(self.times_s) else math.inf

    def drop(self, now_s: float) -> None:
        """Gives the oldest up."""
        self.became[self.head] = DROPPED
        self.head += 1

    def take(self, count: int, answered_s: float) -> None:
        """Answers the oldest at a time."""
        head = self.head
        # Oldest first: those before this one are late.
        in_time = bisect_right(self.times_s, answered_s - self.slo_s - 1e-9, head, head + count)
        self.became[head:in_time] = bytes([LATE]) * (in_time - head)
        self.became[in_time : head + count] = bytes([MET]) * (head + count - in_time)
        self.head = head + count

    def end(self) -> None:
        """What still waits is never answered."""
        for at in range(self.head, len(self.became)):
            self.became[at] = DROPPED
        self.head = self._tail = len(self.became)

    def between(self, start_s: float, end_s: float) -> tuple[int, int]:
        """Requests that came in a time, and those of them that were dropped by now."""
        low, high = bisect_right(self.times_s, start_s), bisect_right(self.times_s, end_s)
        return high - low, self.became.count(DROPPED, low, high)


class GatedQueue(ArrivedQueue):
    """A queue with a gate, as the front has it: what that refuses is dropped as it comes."""

    def __init__(self, times_s: list[float], slo_s: float) -> None:
        super().__init__(times_s, slo_s)
        self.gate = Gate(slo_s=slo_s)
        self._inside: deque[int] = deque()
        self.refused = 0

    def waiting(self, now_s: float) -> int:
        """How many have come, were let in, and wait."""
        times, tail = self.times_s, self._tail
        while tail < len(times) and times[tail] <= now_s:
            if self.gate.is_open(times[tail]):
                self.gate.enter(1)
                self._inside.append(tail)
            else:
                self.became[tail] = DROPPED
                self.refused += 1
            tail += 1
        self._tail = tail
        return len(self._inside)

    def deadline_s(self) -> float:
        """When the oldest must be answered."""
        return self.times_s[self._inside[0]] + self.slo_s - self.gate.way_s(self.slo_s)

    def full_s(self, count: int) -> float:
        """When ``count`` wait if all are let in; infinity if never."""
        at = self._tail + count - len(self._inside) - 1
        return self.times_s[at] if at < len(self.times_s) else math.inf

    def drop(self, now_s: float) -> None:
        """Gives the oldest up."""
        self.became[self._inside.popleft()] = DROPPED
        self.gate.gave_up(now_s)

    def take(self, count: int, answered_s: float) -> None:
        """Answers the oldest at a time."""
        self.gate.took(count)
        for _ in range(count):
            at = self._inside.popleft()
            self.became[at] = MET if self.times_s[at] > answered_s - self.slo_s - 1e-9 else LATE

    def end(self) -> None:
        """What still waits, or has not come, is never answered."""
        for at in (*self._inside, *range(self._tail, len(self.became))):
            self.became[at] = DROPPED
        self._inside.clear()
        self._tail = len(self.became)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a model's requests; late and dropped ones violate its SLO."""

    requests: int
    met: int
    late: int
    dropped: int

    @property
    def violated_share(self) -> float:
        """Share of requests that were late or dropped."""
        return (self.late + self.dropped) / self.requests if self.requests else 0.0


def outcome(became: Sequence[int] | bytearray) -> Outcome:
    """Counts."""
    states = bytes(became)
    return Outcome(requests=len(states), met=states.count(MET), late=states.count(LATE), dropped=states.count(DROPPED))
