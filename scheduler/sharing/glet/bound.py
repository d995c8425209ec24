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

# What is so near is equal, as in the checker: no sound plan may be ruled out.
_TOLERANCE = 1e-6
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


def least(model: Times, others: Sequence[Times], percents: Sequence[float]) -> Least:
    """What a model takes at the least, beside the best of the others.

    Args:
        model: The model.
        others: Models that it may share a part with.
        percents: What each way to have a part costs.
    """
    able = sorted(_alone(model, percents))
    percent = min((cost / rate for rate, cost in able), default=math.inf)
    batches = sorted(_shared(model, others, percents))
    return Least(
        percent=percent,
        served=[rate for rate, _ in able],
        whole=_least_after([cost for _, cost in able]),
        partly=_least_before([cost - rate * percent for rate, cost in able]),
        full_from=[rate for rate, _, _ in batches],
        full=_least_before([full for _, full, _ in batches]),
        waiting=_least_after([waiting for _, _, waiting in batches]),
    )


def percent_min(models: Mapping[str, Least], rates: Mapping[str, float]) -> float:
    """Percent of a GPU that any sound plan of these rates takes at the least; without end where none can."""
    asked = [(models[name], rate) for name, rate in rates.items() if rate > 0]
    if len(asked) == 1:
        ((only, rate),) = asked
        return only.alone(rate) * (1 - _TOLERANCE)
    return sum([min(one.alone(rate), one.sharing(rate)) for one, rate in asked]) * (1 - _TOLERANCE)


def _alone(model: Times, percents: Sequence[float]) -> Iterator[tuple[float, float]]:
    """Requests a second of each way to have a part that serves any, and its cost: a cycle is as long as its work."""
    for times, cost in zip(model.ways, percents, strict=True):
        within = [batch / ms for batch, ms in enumerate(times, 1) if 2 * ms <= model.slo_ms * (1 + _TOLERANCE)]
        if within:
            yield _MS_PER_S * max(within), cost


def _shared(model: Times, others: Sequence[Times], percents: Sequence[float]) -> Iterator[tuple[float, float, float]]:
    """Batches of a model that a cycle has room for beside some other one's.

    Each with the rate from which on it fills, the percent for each request a second if it does, and the percent if not.
    The cycle and all of its work are within the shorter SLO, and the work is within the cycle.
    """
    for way, (times, cost) in enumerate(zip(model.ways, percents, strict=True)):
        beside = [(min(model.slo_ms, other.slo_ms), other.shortest_ms[way]) for other in others]
        room_ms = max((slo_ms / 2 - busy_ms for slo_ms, busy_ms in beside), default=0.0) * (1 + _TOLERANCE)
        most_ms = max((slo_ms - busy_ms for slo_ms, busy_ms in beside), default=0.0) * (1 + _TOLERANCE)
        for batch, ms in enumerate(times, 1):
            if ms <= room_ms and ms < most_ms:
                cycle_ms = most_ms - ms
                yield _MS_PER_S * batch / cycle_ms, cost * ms / batch / _MS_PER_S, cost * ms / cycle_ms


def _least_before(values: Sequence[float]) -> list[float]:
    """The least of the first 0, 1, 2, ... values; of none without end."""
    return list(itertools.accumulate(values, min, initial=math.inf))


def _least_after(values: Sequence[float]) -> list[float]:
    """The least of all values from the first, the second, ... on; of none without end."""
    return _least_before(values[::-1])[::-1]
