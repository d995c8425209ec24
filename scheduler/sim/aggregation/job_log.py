"""A job log played with shared aggregation: the servers that its jobs would reserve, and those they need. PURE.

Jobs of more than one GPU aggregate. Each begins when it was submitted and takes as long as in the log: what GPUs are
scheduled how is another question. Its model and its servers are drawn, since no log has them.
"""

import heapq
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Profile, Refused
from farside.scheduler.sharing.aggregation.pool import Pool, PoolSettings, Waits
from farside.scheduler.sim.aggregation.models import drawn_profile
from farside.scheduler.sim.trace.job import TraceJob

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult:
    """What came of a log.

    Attributes:
        jobs: Jobs that aggregate.
        refused: Those that had no place, with the first reason.
        why_refused: That reason; empty: none was.
        waited: Jobs that waited for Aggregators.
        asked_core_s: Core seconds of the servers that jobs in a place would have reserved.
        held_core_s: Core seconds of the Aggregators that the pool held.
        asked: Servers reserved in each minute with any, at its end.
        held: Aggregators held then.
        most_loss: The most that a job lost at any time, by the model of cycles.
    """

    jobs: int
    refused: int
    why_refused: str
    waited: int
    asked_core_s: float
    held_core_s: float
    asked: Sequence[int]
    held: Sequence[int]
    most_loss: float

    @property
    def saved_share(self) -> float:
        """Share of the reserved core time that is saved; negative: more was held."""
        return 1 - self.held_core_s / self.asked_core_s if self.asked_core_s else 0.0

    @property
    def ratios(self) -> list[float]:
        """Aggregators held by servers reserved, of each minute with any, least first [autops Figure 4.12]."""
        return sorted(held / asked for held, asked in zip(self.held, self.asked, strict=True))


def aggregating(jobs: Iterable[TraceJob], rng: random.Random) -> list[tuple[float, float, Profile]]:
    """Begin, end and profile of each job that aggregates, in the order in which they begin."""
    return [
        (one.job.submit_s, one.job.submit_s + one.duration_s, drawn_profile(f"{number}", one.job.gpus, rng))
        for number, one in enumerate(jobs)
        if one.job.gpus > 1
    ]


def play(
    jobs: Sequence[tuple[float, float, Profile]], limits: Limits, settings: PoolSettings, period_s: float
) -> LogResult:
    """Plays jobs as `aggregating` gives them."""
    return _Run(Pool(limits, settings), jobs, period_s).result()


class _Run:
    """Time goes from event to event: an exit, an arrival, the end of a period, the end of a minute."""

    def __init__(self, pool: Pool, jobs: Sequence[tuple[float, float, Profile]], period_s: float) -> None:
        self._pool, self._jobs, self._period_s = pool, jobs, period_s
        self._profiles = {profile.job: profile for _, _, profile in jobs}
        self._waited: set[str] = set()
        self._refused: list[str] = []
        self._asked_now, self._at_s = 0, jobs[0][0] if jobs else 0.0
        self._asked_core_s = self._held_core_s = self._most_loss = 0.0
        self._asked, self._held = array("l"), array("l")

    def result(self) -> LogResult:
        for at_s, kind, job in self._events():
            self._pass(at_s)
            if kind == "arrive":
                answer = self._pool.arrive(at_s, self._profiles[job])
                if answer is None:
                    self._placed([job])
                elif isinstance(answer, Refused):
                    self._refused.append(answer.reason)
                elif isinstance(answer, Waits):
                    self._waited.add(job)
            elif kind == "leave":
                if job in self._pool.placed():
                    self._asked_now -= self._profiles[job].servers
                self._placed(self._pool.leave(at_s, job))
            elif kind == "period":
                self._placed(self._pool.end_period(at_s))
            elif self._asked_now:
                self._asked.append(self._asked_now)
                self._held.append(self._pool.held)
        return LogResult(
            jobs=len(self._jobs), refused=len(self._refused), why_refused=next(iter(self._refused), ""),
            waited=len(self._waited), asked_core_s=self._asked_core_s, held_core_s=self._held_core_s,
            asked=self._asked, held=self._held, most_loss=self._most_loss,
        )  # fmt: skip

    def _events(self) -> Iterator[tuple[float, str, str]]:
        """All in the order of time. What ends at a moment ends before anything begins at it."""
        if not self._jobs:
            return
        begin_s, end_s = self._jobs[0][0], max(end_s for _, end_s, _ in self._jobs)
        yield from (
            (at_s, kind, job)
            for at_s, _, kind, job in heapq.merge(
                sorted((end_s, 0, "leave", profile.job) for _, end_s, profile in self._jobs),
                _ticks(begin_s, end_s, self._period_s, (1, "period")),
                ((begin_s, 2, "arrive", profile.job) for begin_s, _, profile in self._jobs),
                _ticks(begin_s, end_s, MINUTE_S, (3, "minute")),
            )
        )

    def _pass(self, at_s: float) -> None:
        self._asked_core_s += self._asked_now * (at_s - self._at_s)
        self._held_core_s += self._pool.held * (at_s - self._at_s)
        self._at_s = at_s

    def _placed(self, jobs: Sequence[str]) -> None:
        for job in jobs:
            self._asked_now += self._profiles[job].servers
            self._most_loss = max(self._most_loss, *self._pool.placed()[job].losses().values())


def _ticks(begin_s: float, end_s: float, step_s: float, what: tuple[int, str]) -> Iterator[tuple[float, int, str, str]]:
    count = 1
    while begin_s + count * step_s <= end_s:
        yield begin_s + count * step_s, *what, ""
        count += 1
