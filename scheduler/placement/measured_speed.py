"""Speeds of starts that were measured, from which PACKLIMIT is learned where no model of slowdown says them. PURE.

[tiresias §3.3.3.3] "a job's placement and corresponding performance". The simulator knows how fast a job would have
been elsewhere; a cluster knows how long an iteration took where the job was. So a start is compared with consolidated
starts of its kind: the same work, by the same user, on as many GPUs of the same model.

* A consolidated start has speed 1 by definition, and its iteration time is what others of its kind are compared with.
* The speed of a spread one is the median iteration time of its kind's consolidated starts over its own; at most 1, and
  at least `SLOWEST`.
* A spread one that ends before any consolidated one of its kind waits for that.

What is learned follows from the starts in the order of their ends: whoever adds the same ones has the same samples.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from statistics import median

from farside.scheduler.placement.slowdown_sample import Sample

CONSOLIDATED = 1e-9
"""Up to so far from consolidated is consolidated: sums of shares are not exact."""
ITERATIONS_MIN = 10
"""A start that told of fewer says more about its beginning than about its place."""
COMPARED = 100
"""The newest consolidated starts of a kind, and its spread ones that wait for the first."""
KINDS = 10_000
"""How many kinds are known at a time, those that ended last: names of jobs are without end."""
SLOWEST = 1e-3
"""A start that was slower still counts as so fast: times are told by programs, and no sum of theirs may overflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStart:
    """A start of a job that has ended and reported how long its iterations took.

    Attributes:
        kind: Equal for starts that would take as long in the same place.
        at_s: When it ended.
        skew: S_J as it was known then; 0: it was not.
        spread: How far from consolidated it was, from 0 to 1 (slowdown.py).
        iterations: How many it told of.
        iteration_s: Median time of one, above 0.
        user: Whose job it was, who told all that.
    """

    kind: Hashable
    at_s: float
    skew: float
    spread: float
    iterations: int
    iteration_s: float
    user: str = ""

    @property
    def is_spread(self) -> bool:
        """Whether it was on more machines than it needed."""
        return self.spread > CONSOLIDATED


@dataclass(slots=True)
class _Kind:
    consolidated_s: deque[float] = field(default_factory=lambda: deque(maxlen=COMPARED))
    waiting: deque[MeasuredStart] = field(default_factory=lambda: deque(maxlen=COMPARED))


class MeasuredSpeeds:
    """Starts of one domain, by kind."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, _Kind] = {}

    def add(self, start: MeasuredStart) -> tuple[Sample, ...]:
        """Add a start that has ended; the samples that are known by it, its own and of those that waited for it."""
        if start.iterations < ITERATIONS_MIN:
            return ()
        kind = self._kinds.pop(start.kind, None) or _Kind()
        self._kinds[start.kind] = kind
        if len(self._kinds) > KINDS:
            del self._kinds[next(iter(self._kinds))]
        if not start.is_spread:
            kind.consolidated_s.append(start.iteration_s)
            known = [*kind.waiting, start]
            kind.waiting.clear()
        elif kind.consolidated_s:
            known = [start]
        else:
            kind.waiting.append(start)
            known = []
        best_s = median(kind.consolidated_s) if kind.consolidated_s else 0.0
        return tuple(_sample(one, best_s) for one in known if one.skew > 0)


def _sample(start: MeasuredStart, best_s: float) -> Sample:
    speed = max(SLOWEST, min(1.0, best_s / start.iteration_s)) if start.is_spread else 1.0
    spread = start.spread if start.is_spread else 0.0
    return Sample(skew=start.skew, spread=spread, speed=speed, user=start.user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """How many times as long an iteration of spread starts took as consolidated.

    ``factor``: the median; ``spread``: the median of how far from consolidated they were; ``starts``: how many.
    """

    factor: float
    spread: float
    starts: int


def slowed(samples: Iterable[Sample], packlimit: float, *, is_over: bool) -> Slowed | None:
    """What spread starts with a skew over the limit, or not over it, lost; None: there were none."""
    found = [one for one in samples if one.spread > 0 and (one.skew > packlimit) is is_over]
    if not found:
        return None
    factor, spread = median(1 / one.speed for one in found), median(one.spread for one in found)
    return Slowed(factor=factor, spread=spread, starts=len(found))
