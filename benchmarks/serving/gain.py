"""The gain of parts: the highest rate that glet's plans pass beside those of squishy bin packing on whole devices.

One device of two cores. What its second thread is worth to a small batch of a recurrent net is little, and a long batch
stands before a short SLO; both are what parts are for [glet §2.4]. Which SLOs and rates show it depends on what the
machine has measured, so mixes are tried in the simulator, and one of those that gain there is served.

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
from farside.scheduler.sharing.glet.catalog import SCHEDULERS
from farside.scheduler.sharing.glet.plan import Plan
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.size import Sizes
from farside.serve.table import Tables

OURS, THEIRS = "glet+int", "sbp"
SIMULATED_MIN, SERVED_MIN = 1.3, 1.2
# Tens of milliseconds a request, so that client and front take little beside.
MODELS: Mapping[str, float] = {"conv": 2.0, "mlp": 1.0, "long": 1.0}
PARTS = "20,40,50,60,80,100"
MINUTES, QUICK_MINUTES = 8.0, 1.5
# None is shorter: a process that others keep from its core waits for tens of milliseconds.
SLOS_MS = (100.0, 200.0, 400.0, 800.0)
# Of those that leave room for so many times a batch of two on half a device.
ROOM_TIMES, ROOM_BATCH = 2.2, 2
# Shares of the work. Little of it is the MLP's, whose requests are small and many: client and front are to take little.
WORKS: Sequence[Mapping[str, float]] = tuple(
    {"conv": conv, "mlp": 0.1, "long": 0.9 - conv} for conv in (0.1, 0.2, 0.3, 0.45, 0.6, 0.7, 0.8)
)
# What is served is searched for from so many times less than what is simulated to so many times more.
RANGE = 2.0
# Shares are planned from the top down, each so much of the one before; and steps of a search in the simulator.
_PLAN_FROM, _PLAN_STEP, _PLAN_STEPS = 2.5, 0.98, 150
_SIMULATED_STEPS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long it takes: seconds of a run, steps of a search, repeats, and mixes and seconds that are simulated."""

    seconds: float = 40.0
    steps: int = 6
    repeats: int = 3
    mixes: int = 12
    simulated_s: float = 120.0


QUICK = Effort(seconds=8.0, steps=3, repeats=1, mixes=3, simulated_s=30.0)


@dataclass(slots=True, kw_only=True)
class Contender:
    """A scheduler on a mix and some devices: its plans, by shares of the mix.

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
        search = Search(self.planned / RANGE, 2 * _PLAN_FROM, _SIMULATED_STEPS)
        while (share := search.share) is not None:
            outcomes = simulate(self.plan(share), self.sizes, poisson(self.mix.rates(share), seconds, 7), seconds)
            requests, met = (sum(getattr(one, what) for one in outcomes.values()) for what in ("requests", "met"))
            search.tell(passes=requests - met <= VIOLATED_MAX * requests)
        self.simulated = search.passed

    def within(self, passed: float) -> float:
        """The highest share that passes and that it plans."""
        return min(passed, self.planned)

    def _made(self, share: float) -> Plan | None:
        wanted = {name: planned_rate(rate) for name, rate in self.mix.rates(share).items()}
        found = SCHEDULERS[self.name].plan(self.sizes, wanted, self.devices)
        return found if isinstance(found, Plan) and found.served().keys() == wanted.keys() else None


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
    contenders = chosen(tables, effort)
    highest: dict[str, list[float]] = {one.name: [] for one in contenders}
    trials: list[Row] = []
    for repeat in range(effort.repeats):
        searches = {one.name: Search(one.simulated / RANGE, one.simulated * RANGE, effort.steps) for one in contenders}
        for step in range(effort.steps):
            # In turns, and each goes first as often as the other.
            for one in contenders if (repeat + step) % 2 else contenders[::-1]:
                share = searches[one.name].share
                assert share is not None
                rates = one.mix.rates(share)
                options = ("--plan", str(write_plan(folder, one.plan(share))))
                with Running(folder, one.mix, rates, options=options, cores=(devices(),)) as running:
                    trial = attempt(running, rates, effort.seconds, 100 * repeat + step)
                searches[one.name].tell(passes=trial.passes)
                trials.append(trial.row(one.name, share))
                print(" ".join(trials[-1]), flush=True)
        for name, search in searches.items():
            highest[name].append(search.passed)
    return _figure(contenders, highest, trials, effort)


def chosen(tables: Tables, effort: Effort) -> tuple[Contender, Contender]:
    """Both schedulers on a mix: of those whose simulated gain reaches the bar, the one that gains most past any plan.

    Raises:
        Unavailable: No mix is planned by both.
    """
    found: list[tuple[float, tuple[Contender, Contender]]] = []
    for mix in mixes(tables):
        ours, theirs = (contender(name, tables, mix) for name in (OURS, THEIRS))
        for one in (ours, theirs):
            one.plan_most()
        if ours.planned and theirs.planned:
            found.append((ours.planned / theirs.planned, (ours, theirs)))
    found.sort(key=lambda one: -one[0])
    gaining = [pair for gain, pair in found if gain >= SIMULATED_MIN] or [pair for _, pair in found[:1]]
    tried = gaining[:: math.ceil(len(gaining) / effort.mixes)] if gaining else []
    for one in itertools.chain.from_iterable(tried):
        one.simulate_most(effort.simulated_s)
    tried = [pair for pair in tried if all(one.simulated for one in pair)]
    if not tried:
        raise Unavailable("no mix of these models is planned by both schedulers and passes in the simulator")
    return max(tried, key=lambda pair: (_gain(pair) >= SIMULATED_MIN, pair[0].simulated / pair[1].simulated))


def _gain(pair: tuple[Contender, Contender]) -> float:
    """What the simulator says of the rates that are planned."""
    ours, theirs = (one.within(one.simulated) for one in pair)
    return ours / theirs


def mixes(tables: Tables) -> Iterator[Mix]:
    """SLOs of SLOS_MS for each model, and rates by shares of the work, a second of a device in all."""
    names = sorted(tables.models)
    least = {name: ROOM_TIMES * tables.models[name].latency_ms[50][ROOM_BATCH - 1] for name in names}
    choices = [[slo_ms for slo_ms in SLOS_MS if slo_ms >= least[name]] for name in names]
    each_s = {name: tables.models[name].latency_ms[100][-1] / 1000 / tables.models[name].max_batch for name in names}
    for slos, work in itertools.product(itertools.product(*choices), WORKS):
        yield Mix(slo_ms=dict(zip(names, slos, strict=True)), most={name: work[name] / each_s[name] for name in names})


def contender(name: str, tables: Tables, mix: Mix, *, count: int = 1) -> Contender:
    """A scheduler on models with the SLOs of a mix, on ``count`` devices."""
    models = {one: replace(tables.models[one], slo_ms=slo_ms) for one, slo_ms in mix.slo_ms.items()}
    return Contender(name=name, sizes=SCHEDULERS[name].sizes(models, tables.device), mix=mix, devices=count)


def _figure(
    contenders: tuple[Contender, Contender], highest: Mapping[str, Sequence[float]], trials: Sequence[Row],
    effort: Effort,
) -> Figure:  # fmt: skip
    mix = contenders[0].mix
    total = sum(mix.most.values())
    within = [[one.within(passed) for passed in highest[one.name]] for one in contenders]
    beyond = [highest[one.name] for one in contenders]
    rows = [
        (one.name, *(f"{total * share:.1f}" for share in (one.planned, one.within(one.simulated))),
         _each(total, planned), f"{total * one.simulated:.1f}", _each(total, passed))
        for one, planned, passed in zip(contenders, within, beyond, strict=True)
    ]  # fmt: skip
    ours, theirs = contenders
    rows.append(
        (f"{OURS} by {THEIRS}", f"{ours.planned / theirs.planned:.2f}", f"{_gain(contenders):.2f}",
         f"{_ratio(*within):.2f}", f"{ours.simulated / theirs.simulated:.2f}", f"{_ratio(*beyond):.2f}")
    )  # fmt: skip
    return Figure(
        key="serving-gain",
        title="What parts of a device gain",
        source="glet 5.2",
        tables=(
            Table(
                caption="The mix, and the parts of both at the greatest rates that they plan",
                header=("model", "SLO ms", "of all requests %", *(one.name for one in contenders)),
                rows=tuple(
                    (name, f"{mix.slo_ms[name]:g}", f"{100 * rate / total:.0f}",
                     *(_parts(one.plan(one.planned), name) for one in contenders))
                    for name, rate in mix.most.items()
                ),
            ),
            Table(
                caption=f"Highest rates, requests a second of all models; served: {effort.seconds:g} s a run, in turns",
                header=("plans of", "planned", "simulated", "served", "past any plan, simulated", "served"),
                rows=tuple(rows),
            ),
            Table(caption="All runs", header=TRIAL_HEADER, rows=tuple(trials)),
            bars(
                at_least(f"{OURS} by {THEIRS}, simulated", _gain(contenders), SIMULATED_MIN),
                at_least(f"{OURS} by {THEIRS}, served", _ratio(*within), SERVED_MIN),
            ),
        ),
        notes=(
            f"A rate passes where a scheduler plans it, and at most {100 * VIOLATED_MAX:g} % of its requests are late, "
            "dropped or rejected. Past any plan: the same requests at rates that it refuses, with its last plan.",
            "The device is two cores. Of each search the highest rate that passed, and at most the greatest that is "
            "planned; ratios are medians of searches'.",
        ),
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
