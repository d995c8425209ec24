"""A plan against arrivals, and epochs that plan anew as rates change. PURE."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.rate import RateSettings, kept, planned, planned_rate, tick, tracked
from farside.scheduler.sharing.glet.scaling import Scale, decide, deciding
from farside.scheduler.sharing.glet.size import Sizes
from farside.scheduler.sim.serving.arrivals import ArrivedQueue, Course, GatedQueue, Outcome, drawn, outcome
from farside.scheduler.sim.serving.executors import Executors

Planner = Callable[[Mapping[str, float], int], Plan | Refusal]


def queues_of(course: Course, sizes: Sizes, rng: np.random.Generator, *, gated: bool) -> dict[str, ArrivedQueue]:
    """Drawn arrivals as queues with the models' SLOs; ``gated``: with the gate that the paper does not have."""
    kind = GatedQueue if gated else ArrivedQueue
    return {name: kind(times_s, sizes.models[name].slo_ms / 1000) for name, times_s in drawn(course, rng).items()}


def play_plan(
    plan: Plan, course: Course, planned_sizes: Sizes, real: Sizes, rng: np.random.Generator, *, early: bool = True,
    learns: bool = True,
) -> Mapping[str, Outcome]:  # fmt: skip
    """What becomes of requests under one plan, by model. ``early`` and ``learns`` are those of `Executors`."""
    queues = queues_of(course, real, rng, gated=learns)
    executors = Executors(planned_sizes, real, queues, early=early, learns=learns)
    executors.switch(plan, 0.0)
    executors.run(course.until_s)
    for queue in queues.values():
        queue.end()
    return {name: outcome(queue.became) for name, queue in queues.items()}


def violated_share(outcomes: Mapping[str, Outcome]) -> float:
    """Share of all models' requests that were late or dropped."""
    requests = sum(one.requests for one in outcomes.values())
    return sum(one.late + one.dropped for one in outcomes.values()) / requests if requests else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochSettings:
    """GPUs that can be had, seconds from a decision to its switch [glet §4.6], and seconds of a window of results."""

    gpus_max: int
    reorganise_s: float = 12.0
    window_s: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A window of results: requests that came in it, those of them that violated, and GPUs and parts at its end."""

    at_s: float
    requests: Mapping[str, int]
    violated: Mapping[str, int]
    gpus: int
    part_pct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What came of a course: windows, outcomes by model, and when plans were switched, each with its cause.

    ``gpus`` and ``part_pct`` are the most of each that a plan had.
    """

    windows: tuple[Window, ...]
    gpus: int
    part_pct: int
    outcomes: Mapping[str, Outcome]
    switches: tuple[tuple[float, str], ...]
    refused: int


class Epochs:
    """Observes, plans, prepares and switches [glet §4.1, §4.5, §4.6]."""

    def __init__(
        self, plan: Planner, course: Course, planned_sizes: Sizes, real: Sizes, settings: EpochSettings,
        rng: np.random.Generator, *, early: bool = True, learns: bool = True,
    ) -> None:  # fmt: skip
        self._plan, self._course, self._settings = plan, course, settings
        self._rates = RateSettings()
        self.queues = queues_of(course, real, rng, gated=learns)
        self.executors = Executors(planned_sizes, real, self.queues, early=early, learns=learns)
        self._current = Plan(glets=())
        self._gpus_most = self._part_pct_most = 0
        self._next: tuple[float, Plan, str] | None = None
        self._scale = Scale()
        self._switches: list[tuple[float, str]] = []
        self._refused = 0

    def run(self) -> Played:
        """Plays all of the course."""
        first = {name: self._course.rates[0].get(name, 0.0) for name in self.queues}
        state = tracked(first)
        self._decide(first, 0.0, "start")
        self._switch(0.0)
        now_s, tick_s, windows = 0.0, self._rates.tick_s, list[tuple[float, int, int]]()
        period_s = self._rates.period_s
        while now_s < self._course.until_s:
            before_s, now_s = now_s, now_s + tick_s
            self.executors.run(now_s)
            seen = {name: queue.between(before_s, now_s) for name, queue in self.queues.items()}
            counts = {name: count for name, (count, _) in seen.items()}
            drops = {name: dropped for name, (_, dropped) in seen.items()}
            state, cause = tick(state, counts, drops, now_s, self._rates)
            is_period = round(now_s / tick_s) % round(period_s / tick_s) == 0
            if self._next is None and (cause is not None or (is_period and self._scale.is_above)):
                state = planned(state, now_s, self._rates, cause or "period")
                if self._decide(state.targets, now_s, cause or "period", is_period=is_period):
                    state = kept(state, now_s, self._rates)
            if self._next is not None and now_s >= self._next[0]:
                self._switch(now_s)
            if round(now_s / tick_s) % round(self._settings.window_s / tick_s) == 0:
                windows.append((now_s, max(self._current.gpus, 0), self._current.part_pct))
        return self._played(windows)

    def _decide(self, rates: Mapping[str, float], now_s: float, cause: str, *, is_period: bool = True) -> bool:
        """Plans for measured rates; whether the plan that runs is enough for them."""
        wanted = {name: planned_rate(rate) for name, rate in rates.items()}
        asking = deciding(self._scale, self._current, wanted, is_period=is_period)
        decided = decide(asking, lambda rates: self._plan(rates, self._settings.gpus_max))
        self._scale = decided.scale
        self._refused += decided.refusal is not None
        if decided.plan is not None:
            self._next = (now_s + self._settings.reorganise_s, decided.plan, cause)
        return decided.plan is None and decided.refusal is None

    def _switch(self, now_s: float) -> None:
        if self._next is not None:
            _, plan, cause = self._next
            self._next, self._current = None, plan
            self._gpus_most = max(self._gpus_most, plan.gpus)
            self._part_pct_most = max(self._part_pct_most, plan.part_pct)
            self.executors.switch(plan, now_s)
            self._switches.append((now_s, cause))

    def _played(self, ends: list[tuple[float, int, int]]) -> Played:
        for queue in self.queues.values():
            queue.end()
        windows: list[Window] = []
        before_s = 0.0
        for at_s, gpus, part_pct in ends:
            requests, violated = dict[str, int](), dict[str, int]()
            for name, queue in self.queues.items():
                low, high = (bisect_left(queue.times_s, one) for one in (before_s, at_s))
                found = outcome(queue.became[low:high])
                requests[name], violated[name] = found.requests, found.late + found.dropped
            windows.append(Window(at_s=at_s, requests=requests, violated=violated, gpus=gpus, part_pct=part_pct))
            before_s = at_s
        return Played(
            windows=tuple(windows),
            gpus=self._gpus_most,
            part_pct=self._part_pct_most,
            outcomes={name: outcome(queue.became) for name, queue in self.queues.items()},
            switches=tuple(self._switches),
            refused=self._refused,
        )
