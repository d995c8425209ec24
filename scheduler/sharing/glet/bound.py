"""How much of a GPU a rate takes at the very least, whatever plan serves it: what no plan can do is not tried. PURE.

A model either has parts of its own, which cost all that they are, or takes turns with another one. Where it takes
turns, its batch and another model's come out of the same cycle, so that it has smaller batches than alone, and a low
rate fills none of them. A part is slowed by its neighbour, or it costs the whole GPU.
"""

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from farside.scheduler.sharing.glet.profile import WHOLE_PCT

# The checker allows each of up to three rules a millionth: no plan that it takes may be ruled out.
_TOLERANCE = 4e-6
_MS_PER_S = 1000
# How the cost of a GPU is divided between its two parts: by their size, and with more or less for the smaller one.
# Each is right, and which tells most depends on the rates: small parts serve many models best, but a GPU has but one.
_POWERS = (1.0, 0.6, 0.8, 1.25)


class Times(NamedTuple):
    """A model's SLO, and the least milliseconds of its batches of 1, 2, 3, ... in each way to have a part.

    ``shortest_ms``: of each way's quickest batch.
    """

    slo_ms: float
    ways: Sequence[Sequence[float]]
    shortest_ms: Sequence[float]


class Least(NamedTuple):
    """What percent of a GPU a model takes at the least.

    Attributes:
        percent: For each request a second, at any rate.
        served: Requests a second of each way to have a part, ascending.
        whole: For each number of ``served``: the least cost of those that serve more.
        partly: For each number of ``served``: the least percent of a rate above all of these, less ``percent`` of it.
        full_from: Rates from which on a batch fills within the longest cycle beside another model, ascending.
        full: For each number of these: percent for each request a second in the best of such batches.
        waiting: For each number of these: percent at any rate in the best of the batches that do not fill.
    """

    percent: float
    served: Sequence[float]
    whole: Sequence[float]
    partly: Sequence[float]
    full_from: Sequence[float]
    full: Sequence[float]
    waiting: Sequence[float]

    def alone(self, rate: float) -> float:
        """Percent of a GPU for a rate of which some is served on a part of the model's own."""
        at = bisect_left(self.served, rate * (1 - _TOLERANCE))
        return min(self.whole[at], self.partly[at] + rate * self.percent)

    def sharing(self, rate: float) -> float:
        """Percent of a GPU for a rate that is served on parts with other models alone."""
        at = bisect_right(self.full_from, rate)
        return min(rate * self.full[at], self.waiting[at])


def costs(parts: Sequence[int]) -> Iterator[list[float]]:
    """Percent of a GPU that each way to have a part costs: all of it without a neighbour, then shares beside one."""
    for power in _POWERS:
        beside = [WHOLE_PCT / (1 + (WHOLE_PCT / part - 1) ** power) for part in parts if part < WHOLE_PCT]
        yield [float(WHOLE_PCT)] * len(parts) + beside


def least(model: Times, others: Sequence[Times], costs: Sequence[Sequence[float]]) -> list[Least]:
    """What a model takes at the least, beside the best of the others.

    Args:
        model: The model.
        others: Models that it may share a part with.
        costs: What each way to have a part costs, once for each way to divide the cost of a GPU.
    """
    alone = list(_alone(model))
    turns = sorted(_turns(model, others))
    return [_least(alone, turns, percents) for percents in costs]


def percent_min(models: Mapping[str, Least], rates: Mapping[str, float]) -> float:
    """Percent of a GPU that any sound plan of these rates takes at the least; without end where none can."""
    asked = [(models[name], rate) for name, rate in rates.items() if rate > 0]
    return sum([min(one.alone(rate), one.sharing(rate)) for one, rate in asked]) * (1 - _TOLERANCE)


def _least(alone: Sequence[tuple[float, int]], turns: Sequence["_Turn"], percents: Sequence[float]) -> Least:
    able = sorted((rate, percents[way]) for rate, way in alone)
    percent = min((cost / rate for rate, cost in able), default=math.inf)
    return Least(
        percent=percent,
        served=[rate for rate, _ in able],
        whole=_least_after([cost for _, cost in able]),
        partly=_least_before([cost - rate * percent for rate, cost in able]),
        full_from=[one.full_from for one in turns],
        full=_least_before([percents[one.way] * one.full for one in turns]),
        waiting=_least_after([percents[one.way] * one.waiting for one in turns]),
    )


def _alone(model: Times) -> Iterator[tuple[float, int]]:
    """Requests a second of each way to have a part that serves any: a cycle is as long as its work."""
    for way, times in enumerate(model.ways):
        within = [batch / ms for batch, ms in enumerate(times, 1) if 2 * ms <= model.slo_ms * (1 + _TOLERANCE)]
        if within:
            yield _MS_PER_S * max(within), way


class _Turn(NamedTuple):
    """A batch of a model in a cycle with other models.

    Attributes:
        full_from: Requests a second from which on it fills within the longest cycle.
        full: Share of the part for each request a second if it does.
        waiting: Share of the part if not, at any rate.
        way: In which way the model has the part.
    """

    full_from: float
    full: float
    waiting: float
    way: int


def _turns(model: Times, others: Sequence[Times]) -> Iterator[_Turn]:
    """Batches of a model that a cycle has room for beside some other one's.

    The cycle and all of its work are within the shorter SLO, and the work is within the cycle.
    """
    slos_ms = [min(model.slo_ms, other.slo_ms) * (1 + _TOLERANCE) for other in others]
    for way, times in enumerate(model.ways):
        busy_ms = [other.shortest_ms[way] for other in others]
        room_ms = max([slo_ms / 2 - ms for slo_ms, ms in zip(slos_ms, busy_ms, strict=True)], default=0.0)
        most_ms = max([slo_ms - ms for slo_ms, ms in zip(slos_ms, busy_ms, strict=True)], default=0.0)
        for batch, ms in enumerate(times, 1):
            if ms <= room_ms and ms < most_ms:
                cycle_ms = most_ms - ms
                yield _Turn(_MS_PER_S * batch / cycle_ms, ms / batch / _MS_PER_S, ms / cycle_ms, way)


def _least_before(values: Sequence[float]) -> list[float]:
    """The least of the first 0, 1, 2, ... values; of none without end."""
    return list(itertools.accumulate(values, min, initial=math.inf))


def _least_after(values: Sequence[float]) -> list[float]:
    """The least of all values from the first, the second, ... on; of none without end."""
    return _least_before(values[::-1])[::-1]
