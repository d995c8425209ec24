"""The gain of parts: the highest rate that glet's plans pass beside those that only share whole devices in time.

One device of two cores. To models whose steps wait for each other, or are short, its second core is worth little, and a
long batch stands before a short SLO; both are what parts are for [glet §2.4]. Which SLOs and rates show it depends on
what the machine has measured, so mixes are tried in the simulator, and one of those that gain there is served.

Two schedulers keep devices whole: squishy bin packing, which takes the longest cycle of each model and so refuses many
mixes that would fit, and glet's own planner without cuts, which searches cycles and plans all that bin packing plans.
Served is the one of them that passes more in the simulator.

A rate passes if a scheduler plans it and the requests are answered in time, as in the paper's Figure 12. What its last
plan passes at rates that it refuses is printed beside: the rounds that serve make batches larger than planned where
nobody is late by that, and that is no scheduler's merit.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_least, bars
from benchmarks.serving.deployed import VIOLATED_MAX, kept_folder
from benchmarks.serving.fidelity import simulate, write_plan
from benchmarks.serving.highest import TRIAL_HEADER, Search, attempt
from farside.agent.serving.partition.cpu import CpuDriver
from farside.cli.demo.serving_load import poisson
from farside.cli.demo.serving_rig import Mix, Running, devices, measure
from farside.errors import Unavailable
from farside.scheduler.sharing.glet.catalog import SCHEDULERS, Scheduler
from farside.scheduler.sharing.glet.plan import Plan
from farside.scheduler.sharing.glet.profile import WHOLE_PCT
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.size import Sizes
from farside.serve.table import Tables

OURS, THEIRS, WHOLE = "glet+int", "sbp", "whole devices"
# The third is the first on devices that can't be cut.
PLANNERS: Mapping[str, Scheduler] = {**SCHEDULERS, WHOLE: SCHEDULERS[OURS]}
SIMULATED_MIN, SERVED_MIN = 1.3, 1.2
# Tens of milliseconds a request, so that batches are long beside the SLOs, and client and front take little. By made-up
# latencies, with a second core worth 1.3 to 1.5 to small batches of the last two and 1.8 to large ones and to the first
# one, plans of parts serve 1.5 times as much as those of whole devices.
MODELS: Mapping[str, float] = {"conv": 2.0, "encoder": 1.25, "long": 1.2}
MIXED = 3  # models of a mix
PARTS = "50,100"
MINUTES, QUICK_MINUTES = 4.0, 1.5
# None is shorter: a process that others keep from its core waits for tens of milliseconds.
SLOS_MS = (100.0, 200.0, 400.0, 800.0)
# Of those that leave room for so many times a batch of two on half a device.
ROOM_TIMES, ROOM_BATCH = 2.2, 2
# Shares of the work, in each order.
WORKS = ((1 / 3, 1 / 3, 1 / 3), (0.6, 0.2, 0.2), (0.4, 0.4, 0.2))
# Requests a second whose work is all that a device has. With more of them client and front take cores that models need.
REQUESTS_MAX = 400.0
# What is served is searched for from so many times less than what is simulated to so many times more.
RANGE = 2.0
# Shares are planned from the top down, each so much of the one before; and steps of a search in the simulator.
_PLAN_FROM, _PLAN_STEP, _PLAN_STEPS = 2.5, 0.98, 150
_SIMULATED_STEPS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long it takes: seconds of a run, steps of a search, repeats, and mixes and seconds that are simulated.

    A search goes on past what is planned in the first repeat alone.
    """

    seconds: float = 40.0
    steps: int = 5
    repeats: int = 3
    mixes: int = 12
    simulated_s: float = 120.0


QUICK = Effort(seconds=8.0, steps=3, repeats=1, mixes=3, simulated_s=30.0)


@dataclass(slots=True, kw_only=True)
class Contender:
    """A scheduler of PLANNERS on a mix and some devices: its plans, by shares of the mix.

    ``planned``: the greatest share that it plans, with the plan for it; ``simulated``: the highest that passes in the
    simulator, with its last plan beyond what it plans.
    """

    name: str
    sizes: Sizes
    mix: Mix
    devices: int = 1
    planned: float = 0.0
    simulated: float = 0.0
    _last: Plan = field(default_factory=lambda: Plan(glets=()))

    def plan_most(self) -> None:
        """Finds the greatest share that has a plan, from the top down; `planned` stays 0 where none has.

        Squishy bin packing may plan a rate and not a lower one, whose cycles are longer.
        """
        for step in range(_PLAN_STEPS):
            share = _PLAN_FROM * _PLAN_STEP**step
            found = self._made(share)
            if found is not None:
                self._last, self.planned = found, share
                return

    def plan(self, share: float) -> Plan:
        """The plan with which a share is served."""
        return (self._made(share) if share <= self.planned else None) or self._last

    def simulate_most(self, seconds: float) -> None:
        """Finds the highest share that passes in the simulator."""
        search = Search(self.planned / RANGE, 2 * _PLAN_FROM, _SIMULATED_STEPS, first=self.planned)
        while (share := search.share) is not None:
            outcomes = simulate(self.plan(share), self.sizes, poisson(self.mix.rates(share), seconds, 7), seconds)
            requests, met = (sum(getattr(one, what) for one in outcomes.values()) for what in ("requests", "met"))
            search.tell(passes=requests - met <= VIOLATED_MAX * requests)
        self.simulated = search.passed

    def within(self, passed: float) -> float:
        """The highest share that passes and that it plans."""
        return min(passed, self.planned)

    def served(self, steps: int) -> Search:
        """The search for what it passes when it is served: what is planned first, then what is more or less."""
        most = max(self.planned, self.simulated)
        return Search(self.planned / RANGE, most * RANGE, steps, first=self.planned)

    def _made(self, share: float) -> Plan | None:
        wanted = {name: planned_rate(rate) for name, rate in self.mix.rates(share).items()}
        found = PLANNERS[self.name].plan(self.sizes, wanted, self.devices)
        return found if isinstance(found, Plan) and found.served().keys() == wanted.keys() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The schedulers on a mix: glet, the one of those with whole devices that passes more, and the other of them."""

    ours: Contender
    rival: Contender
    other: Contender

    @property
    def gain(self) -> float:
        """What the simulator says of the rates that are planned."""
        ours, rival = (one.within(one.simulated) for one in (self.ours, self.rival))
        return ours / rival

    @property
    def gain_beyond(self) -> float:
        """What it says past any plan."""
        return self.ours.simulated / self.rival.simulated


def measure_gain(*, quick: bool) -> Figure:
    """Measures the models, chooses a mix, and serves it by both schedulers' plans.

    Raises:
        Unavailable: There is one core, no CPU quota, or no mix that both schedulers plan.
    """
    if problem := CpuDriver().capabilities().problem:
        raise Unavailable(problem)
    if len(devices()) < 2:
        raise Unavailable("a device of two cores is needed, and this process may use one")
    folder, tables = _prepared(quick=quick)
    return gain_figure(folder, tables, QUICK if quick else Effort())


@functools.cache
def _prepared(*, quick: bool) -> tuple[Path, Tables]:
    folder = kept_folder()
    minutes = QUICK_MINUTES if quick else MINUTES
    return folder, measure(folder, minutes=minutes, models=MODELS, cores=devices(), parts=PARTS)


def gain_figure(folder: Path, tables: Tables, effort: Effort) -> Figure:
    """The figure, of models that are in a folder with their profile."""
    match = chosen(tables, effort)
    highest: dict[str, list[float]] = {match.ours.name: [], match.rival.name: []}
    trials: list[Row] = []
    for repeat in range(effort.repeats):
        searches = {one.name: one.served(effort.steps) for one in (match.ours, match.rival)}
        for step in range(effort.steps):
            # In turns, and each goes first as often as the other.
            for one in (match.ours, match.rival)[:: 1 if (repeat + step) % 2 else -1]:
                search = searches[one.name]
                if repeat and search.passed >= one.planned:
                    continue
                share = search.share
                assert share is not None, "both have as many steps"
                rates = one.mix.rates(share)
                options = ("--plan", str(write_plan(folder, one.plan(share))))
                with Running(folder, one.mix, rates, options=options, cores=(devices(),)) as running:
                    trial = attempt(running, rates, effort.seconds, 100 * repeat + step)
                search.tell(passes=trial.passes)
                trials.append(trial.row(one.name, share))
                print(" ".join(trials[-1]), flush=True)
        for name, search in searches.items():
            highest[name].append(search.passed)
    return _figure(match, highest, trials, effort)


def chosen(tables: Tables, effort: Effort) -> Match:
    """The mix that is served: of those whose simulated gain reaches the bar, the one that gains most past any plan.

    Those that bin packing plans, too, go before the others.

    Raises:
        Unavailable: No mix is planned on whole devices.
    """
    found: list[tuple[float, tuple[Contender, Contender, Contender]]] = []
    for mix in mixes(tables):
        ours, theirs, whole = (contender(name, tables, mix) for name in (OURS, THEIRS, WHOLE))
        for one in (ours, theirs, whole):
            one.plan_most()
        if ours.planned and whole.planned:
            found.append((ours.planned / whole.planned, (ours, theirs, whole)))
    found.sort(key=lambda one: -one[0])
    gaining = [three for gain, three in found if gain >= SIMULATED_MIN]
    gaining = [three for three in gaining if three[1].planned] or gaining or [three for _, three in found[:1]]
    tried = [_match(three, effort) for three in gaining[:: max(1, math.ceil(len(gaining) / effort.mixes))]]
    passing = [match for match in tried if match.ours.simulated and match.rival.simulated]
    if not passing:
        raise Unavailable("no mix of these models is planned on whole devices and passes in the simulator")
    return max(passing, key=lambda match: (match.gain >= SIMULATED_MIN, match.gain_beyond))


def _match(three: tuple[Contender, Contender, Contender], effort: Effort) -> Match:
    for one in three:
        if one.planned:
            one.simulate_most(effort.simulated_s)
    ours, *others = three
    rival, other = sorted(others, key=lambda one: -one.within(one.simulated))
    return Match(ours=ours, rival=rival, other=other)


def mixes(tables: Tables) -> Iterator[Mix]:
    """Three models, SLOs of SLOS_MS for each, and rates by shares of the work, a second of a device in all.

    No model is in one that takes longer on the whole device than on half of it: that would be the runtime's threads,
    which stand in each other's way, and not the device.
    """
    least, each_s = dict[str, float](), dict[str, float]()
    for name, model in sorted(tables.models.items()):
        half, whole = model.latency_ms[50], model.latency_ms[WHOLE_PCT]
        if all(one <= other for one, other in zip(whole, half, strict=True)):
            least[name] = ROOM_TIMES * half[ROOM_BATCH - 1]
            each_s[name] = whole[-1] / 1000 / model.max_batch
    works = sorted({shares for work in WORKS for shares in itertools.permutations(work)})
    for names in itertools.combinations(least, MIXED):
        choices = [[slo_ms for slo_ms in SLOS_MS if slo_ms >= least[name]] for name in names]
        for slos, work in itertools.product(itertools.product(*choices), works):
            most = {name: share / each_s[name] for name, share in zip(names, work, strict=True)}
            if sum(most.values()) <= REQUESTS_MAX:
                yield Mix(slo_ms=dict(zip(names, slos, strict=True)), most=most)


def contender(name: str, tables: Tables, mix: Mix, *, count: int = 1) -> Contender:
    """A scheduler of PLANNERS on models with the SLOs of a mix, on ``count`` devices."""
    models = {one: replace(tables.models[one], slo_ms=slo_ms) for one, slo_ms in mix.slo_ms.items()}
    device = replace(tables.device, cuts=((WHOLE_PCT,),)) if name == WHOLE else tables.device
    return Contender(name=name, sizes=PLANNERS[name].sizes(models, device), mix=mix, devices=count)


def _figure(match: Match, highest: Mapping[str, Sequence[float]], trials: Sequence[Row], effort: Effort) -> Figure:
    ours, rival = match.ours, match.rival
    mix = ours.mix
    total = sum(mix.most.values())
    served = _ratio(*([one.within(passed) for passed in highest[one.name]] for one in (ours, rival)))
    beyond = [highest[one.name][0] for one in (ours, rival)]
    versus = f"{ours.name} by {rival.name}"
    rows = [_rates_row(one, highest.get(one.name, ()), total) for one in (ours, rival, match.other)]
    rows.append(
        (versus, f"{ours.planned / rival.planned:.2f}", f"{match.gain:.2f}", f"{served:.2f}",
         f"{match.gain_beyond:.2f}", f"{beyond[0] / beyond[1]:.2f}" if beyond[1] else "-")
    )  # fmt: skip
    return Figure(
        key="serving-gain",
        title="What parts of a device gain",
        source="glet 5.2",
        tables=(
            Table(
                caption="The mix, and the parts at the greatest rates that are planned",
                header=("model", "SLO ms", "of all requests %", ours.name, rival.name),
                rows=tuple(
                    (name, f"{mix.slo_ms[name]:g}", f"{100 * rate / total:.0f}",
                     *(_parts(one.plan(one.planned), name) for one in (ours, rival)))
                    for name, rate in mix.most.items()
                ),
            ),
            Table(
                caption=f"Highest rates, requests a second of all models; served: {effort.seconds:g} s a run, in turns",
                header=("plans of", "planned", "simulated", "served", "past any plan, simulated", "served once"),
                rows=tuple(rows),
            ),
            Table(caption="All runs", header=TRIAL_HEADER, rows=tuple(trials)),
            bars(
                at_least(f"{versus}, simulated", match.gain, SIMULATED_MIN),
                at_least(f"{versus}, served", served, SERVED_MIN),
            ),
        ),
        notes=(
            f"A rate passes where a scheduler plans it, and at most {100 * VIOLATED_MAX:g} % of its requests are late, "
            "dropped or rejected. Past any plan: the same requests at rates that it refuses, with its last plan.",
            f"The device is two cores. {WHOLE.capitalize()}: glet's planner without cuts, which plans all that "
            f"{THEIRS} does. The one of both that passes more in the simulator is served; the other has no runs.",
            "Of each search the highest rate that passed, and at most the greatest that is planned; ratios are medians "
            "of searches'.",
        ),
    )  # fmt: skip


def _rates_row(one: Contender, passed: Sequence[float], total: float) -> Row:
    """What one plans and passes, in requests a second; nothing served where it was not."""
    return (
        one.name, f"{total * one.planned:.1f}", f"{total * one.within(one.simulated):.1f}",
        _each(total, [one.within(share) for share in passed]) if passed else "-", f"{total * one.simulated:.1f}",
        f"{total * passed[0]:.1f}" if passed else "-",
    )  # fmt: skip


def _each(total: float, shares: Sequence[float]) -> str:
    """The median of some rates, and all of them."""
    return f"{total * statistics.median(shares):.1f} ({', '.join(f'{total * one:.1f}' for one in shares)})"


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(a / b if b else 0.0 for a, b in zip(ours, theirs, strict=True))


def _parts(plan: Plan, model: str) -> str:
    """Such as 40 % x4: each part that has a model, with its batch there."""
    found = [
        f"{glet.part_pct} % x{one.batch}" for glet in plan.glets for one in glet.models if one.model == model
    ]  # fmt: skip
    return ", ".join(found)
