"""Figures 4 and 15: how many scenarios each scheduler can serve, judged by one checker; and what a decision costs."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.figure import Figure, Table
from benchmarks.glet_tables import GPUS, RATES, RESTS_ON, all_scenarios, missing, tables
from benchmarks.glet_throughput import case
from farside.scheduler.sharing.glet.baseline import HALF_PCT, greedy, squishy
from farside.scheduler.sharing.glet.check import check
from farside.scheduler.sharing.glet.elastic import place
from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.portfolio import PRINTED, ideal, plan
from farside.scheduler.sharing.glet.profile import WHOLE_PCT, NoInterference, slowed
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.scaling import fewest
from farside.scheduler.sharing.glet.size import Sizes
from farside.serve.table import Tables

KEY, TITLE, SOURCE = "glet-schedulable", "Scenarios that can be scheduled on 4 GPUs", "glet Figures 4, 15, §3.2, §5.2"
PAPER_GAP = 520
LARGE_MODELS, LARGE_GPUS, LARGE_DRAWS = 50, 64, 20
# What a decision finds kept from earlier ones makes it cheaper where rates come again, as they do in the scenarios: of
# every so many of them, each rate times a number of its own.
NEW_EVERY, NEW_TIMES = 20, (0.5, 1.5)
# Of what a model of the table takes, and of what all GPUs serve at the very best.
_LARGE_TIMES, _LARGE_SHARES = (0.7, 1.3), (0.1, 0.95)
Planner = Callable[[Sizes, Mapping[str, float], int], Plan | Refusal]
GLET, IDEAL, SBP, FEWEST = "glet+int", "ideal", "SBP", "glet+int, fewest GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A scheduler, and whether it plans with interference."""

    plan: Planner
    with_interference: bool = True


def _halves(sizes: Sizes, rates: Mapping[str, float], gpus: int) -> Plan | Refusal:
    return squishy(sizes, rates, gpus, HALF_PCT)


WAYS: Mapping[str, Way] = {
    SBP: Way(plan=squishy),
    "SBP on even halves": Way(plan=_halves, with_interference=False),
    "greedy best fit": Way(plan=greedy, with_interference=False),
    **{
        f"Algorithm 1: {one.knee}, merge {'first' if one.merge_first else 'last'}": Way(
            plan=partial(place, variant=one)
        )
        for one in PRINTED
    },
    "glet": Way(plan=plan, with_interference=False),
    GLET: Way(plan=plan),
    FEWEST: Way(plan=fewest),
    IDEAL: Way(plan=ideal),
}


@dataclass(slots=True)
class Tally:
    """Verdicts by scenario, plans that fail the checker without and with interference, and seconds of CPU."""

    yes: list[bool] = field(default_factory=list[bool])
    unsound: int = 0
    unsound_beside: int = 0
    gpus: int = 0
    cpu_s: list[float] = field(default_factory=list[float])


def tally(found: Tables, way: Way, scenarios: Sequence[Mapping[str, float]]) -> Tally:
    """Judges all scenarios by one scheduler."""
    device = found.device if way.with_interference else replace(found.device, interference=NoInterference())
    sizes, result = Sizes(found.models, device), Tally()
    for rates in scenarios:
        wanted = {name: planned_rate(rate) for name, rate in rates.items()}
        started_s = time.process_time()
        made = way.plan(sizes, wanted, GPUS)
        result.cpu_s.append(time.process_time() - started_s)
        result.yes.append(isinstance(made, Plan))
        if isinstance(made, Plan):
            result.gpus += made.gpus
            alone, beside = (
                check(made, wanted, found.models, found.device, GPUS, with_interference=slowed)
                for slowed in (False, True)
            )
            result.unsound += alone != ()
            result.unsound_beside += beside != ()
    return result


def _tallied(data: Path, name: str, every: int) -> Tally:
    """In a process of its own."""
    found = tables(data)
    assert found is not None, "the table was there a moment ago"
    return tally(found, WAYS[name], list(all_scenarios(tuple(sorted(found.models))))[::every])


def large(found: Tables, count: int) -> tuple[Sizes, list[dict[str, float]]]:
    """Models like those of the table, each somewhat quicker or slower, and ``count`` draws of rates for LARGE_GPUS."""
    rng, names = random.Random(1), sorted(found.models)
    models = {}
    for at in range(LARGE_MODELS):
        name = names[at % len(names)]
        copy = f"{name}-{at}"
        models[copy] = replace(slowed(found.models[name], rng.uniform(*_LARGE_TIMES)), name=copy)
    one = case(found, models, LARGE_GPUS)
    sizes, draws = Sizes(one.models, one.device), []
    for _ in range(count):
        rates = {name: 1000 * rng.random() for name in models}
        times = rng.uniform(*_LARGE_SHARES) * LARGE_GPUS / gpus_at_best(sizes, rates)
        draws.append({name: times * rate for name, rate in rates.items()})
    return sizes, draws


def gpus_at_best(sizes: Sizes, rates: Mapping[str, float]) -> float:
    """GPUs for rates where each request is served on the part that serves most for its size, without a pause."""
    cost = {name: min(part / rate for part, rate in sizes.best_rate[name].items() if rate) for name in rates}
    return sum(rate * cost[name] for name, rate in rates.items()) / WHOLE_PCT


def _large_tally(data: Path, count: int) -> Tally:
    """What decisions of many models and GPUs cost; in a process of its own."""
    found = tables(data)
    assert found is not None, "the table was there a moment ago"
    result = Tally()
    sizes, draws = large(found, count)
    for rates in draws:
        started_s = time.process_time()
        made = fewest(sizes, rates, LARGE_GPUS)
        result.cpu_s.append(time.process_time() - started_s)
        result.yes.append(isinstance(made, Plan))
    return result


def _new_rates_tally(data: Path, every: int) -> Tally:
    """What decisions cost where no rate was asked for before; in a process of its own."""
    found = tables(data)
    assert found is not None, "the table was there a moment ago"
    rng, result, sizes = random.Random(1), Tally(), Sizes(found.models, found.device)
    for rates in list(all_scenarios(tuple(sorted(found.models))))[:: NEW_EVERY * every]:
        wanted = {name: planned_rate(rate) * rng.uniform(*NEW_TIMES) for name, rate in rates.items()}
        started_s = time.process_time()
        made = fewest(sizes, wanted, GPUS)
        result.cpu_s.append(time.process_time() - started_s)
        result.yes.append(isinstance(made, Plan))
    return result


def turned(scenarios: Sequence[Mapping[str, float]], yes: Sequence[bool]) -> tuple[int, int]:
    """Neighbours of scheduled scenarios with one rate a step lower: how many are not scheduled, of how many."""
    verdict = {tuple(rates.values()): one for rates, one in zip(scenarios, yes, strict=True)}
    lower = {rate: RATES[at - 1] for at, rate in enumerate(RATES) if at}
    lost = pairs = 0
    for rates, one in verdict.items():
        if not one:
            continue
        for at, rate in enumerate(rates):
            below = (*rates[:at], float(lower.get(int(rate), 0)), *rates[at + 1 :])
            if rate and below in verdict:
                pairs += 1
                lost += not verdict[below]
    return lost, pairs


def figure(data: Path, *, every: int = 1) -> Figure:
    """Counts by scheduler; ``every``: of so many scenarios only one."""
    found = tables(data)
    if found is None:
        return missing(KEY, TITLE, SOURCE, data)
    scenarios = list(all_scenarios(tuple(sorted(found.models))))[::every]
    if every == 1:
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            parts = {name: pool.submit(_tallied, data, name, every) for name in WAYS}
            tallies = {name: part.result() for name, part in parts.items()}
            others = pool.submit(_new_rates_tally, data, every), pool.submit(_large_tally, data, LARGE_DRAWS)
            new, many = (one.result() for one in others)
    else:
        tallies = {name: _tallied(data, name, every) for name in WAYS}
        new, many = _new_rates_tally(data, every), _large_tally(data, 1)
    return Figure(
        key=KEY,
        title=TITLE,
        source=SOURCE,
        tables=(
            Table(
                caption=f"Of {len(scenarios):,} scenarios",
                header=("scheduler", "scheduled", "unsound by its own claim", "fail with interference", "GPUs"),
                rows=tuple(_row(name, WAYS[name], one) for name, one in tallies.items()),
            ),
            _bars(tallies, scenarios, is_whole=every == 1),
            Table(
                caption="CPU time of a decision, in ms",
                header=("scheduler", "median", "99th percentile", "longest"),
                rows=(
                    *(_times(name, tallies[name]) for name in (SBP, GLET, FEWEST, IDEAL)),
                    _times(f"{FEWEST}: rates that come for the first time", new),
                    _times(f"{FEWEST}: {LARGE_MODELS} models, {LARGE_GPUS} GPUs", many),
                ),
            ),
        ),
        notes=(
            RESTS_ON,
            "Each of 9 models at 0, 100 or 200 requests a second, planned as 125 and 235; 4 GPUs. The checker demands "
            "all of each rate, the exact SLO, cycle, cuts and memory; the authors' leaves up to 15 requests a second "
            "of each model unserved.",
            "The paper's text gives no counts but the gap to ideal: 520 scenarios.",
            f"Rates that come for the first time: those of one in {NEW_EVERY} scenarios, each {NEW_TIMES[0]:g} to "
            f"{NEW_TIMES[1]:g} times as high, so that nothing is known of them from decisions before.",
            f"{LARGE_MODELS} models: those of the table, each with {_LARGE_TIMES[0]:g} to {_LARGE_TIMES[1]:g} times "
            f"its latency; of {len(many.yes)} draws of their rates {sum(many.yes)} have a plan.",
        ),
    )


def _row(name: str, way: Way, one: Tally) -> tuple[str, ...]:
    count = sum(one.yes)
    own = one.unsound_beside if way.with_interference else one.unsound
    failing = f"{100 * one.unsound_beside / count:.1f} %" if count else "-"
    return (name, f"{count:,}", f"{own}", failing, f"{one.gpus / count:.2f}" if count else "-")


def _bars(tallies: Mapping[str, Tally], scenarios: Sequence[Mapping[str, float]], *, is_whole: bool) -> Table:
    glet, best, sbp = (tallies[name] for name in (GLET, IDEAL, SBP))
    implied = sum(a and not b for a, b in zip(sbp.yes, glet.yes, strict=True))
    contained = sum(a and not b for a, b in zip(glet.yes, best.yes, strict=True))
    rows = [
        ("glet+int below ideal", f"{sum(best.yes) - sum(glet.yes):,}", f"{PAPER_GAP}"),
        ("SBP yes, glet+int no", f"{implied}", "-"),
        ("glet+int yes, ideal no", f"{contained}", "-"),
    ]
    if is_whole:
        for name, one in ((GLET, glet), (IDEAL, best)):
            lost, pairs = turned(scenarios, one.yes)
            rows.append((f"{name}: no after one rate fell", f"{lost} of {pairs:,} ({100 * lost / pairs:.3f} %)", "-"))
    return Table(caption="What must hold", header=("", "ours", "paper"), rows=tuple(rows))


def _times(name: str, one: Tally) -> tuple[str, ...]:
    ordered = sorted(one.cpu_s)
    picked = (ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1])
    return (name, *(f"{1000 * each:.2f}" for each in picked))
