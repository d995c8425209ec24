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
# Of neighbours with one rate less, in percent; and of a decision's CPU time.
TURNED_MAX_PCT, MEDIAN_MAX_MS, P99_MAX_MS = 0.1, 2, 20
# A GPU more is tried from each of these on.
FEWER_GPUS = (3, 4)
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


def _verdicts(data: Path, gpus: int, every: int) -> list[bool]:
    """Which scenarios glet+int schedules on so many GPUs."""
    found = tables(data)
    assert found is not None, "the table was there a moment ago"
    sizes = Sizes(found.models, found.device)
    verdicts: list[bool] = []
    for rates in list(all_scenarios(tuple(sorted(found.models))))[::every]:
        made = WAYS[GLET].plan(sizes, {name: planned_rate(rate) for name, rate in rates.items()}, gpus)
        verdicts.append(isinstance(made, Plan))
    return verdicts


def turned_by_a_gpu(verdicts: Mapping[int, Sequence[bool]]) -> tuple[int, int]:
    """Of verdicts on scenarios by number of GPUs: how many that are yes become no with a GPU more, of how many."""
    pairs = [
        more for gpus in FEWER_GPUS for fewer, more in zip(verdicts[gpus], verdicts[gpus + 1], strict=True) if fewer
    ]
    return pairs.count(False), len(pairs)


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
    tallies, verdicts, new, many = _measured(data, every)
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
            _bars(tallies, scenarios, verdicts, new, is_whole=every == 1),
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
            "Fewest GPUs are decided by one process alone, the others' times are of several processes at once.",
            f"{LARGE_MODELS} models: those of the table, each with {_LARGE_TIMES[0]:g} to {_LARGE_TIMES[1]:g} times "
            f"its latency; of {len(many.yes)} draws of their rates {sum(many.yes)} have a plan.",
        ),
    )


def _measured(data: Path, every: int) -> tuple[dict[str, Tally], dict[int, Sequence[bool]], Tally, Tally]:
    """By scheduler, which scenarios glet+int schedules by GPUs, and decisions of new rates and of many models."""
    others, gpus = [name for name in WAYS if name != FEWEST], {at + more for at in FEWER_GPUS for more in (0, 1)}
    verdicts: dict[int, Sequence[bool]] = {}
    if every > 1:
        tallies = {name: _tallied(data, name, every) for name in WAYS}
        verdicts |= {count: _verdicts(data, count, every) for count in gpus - {GPUS}}
        new, many = _new_rates_tally(data, every), _large_tally(data, 1)
    else:
        with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
            parts = {name: pool.submit(_tallied, data, name, every) for name in others}
            on = {count: pool.submit(_verdicts, data, count, every) for count in gpus - {GPUS}}
            tallies = {name: part.result() for name, part in parts.items()}
            verdicts |= {count: part.result() for count, part in on.items()}
            # These are judged by their CPU time, which others on the same cores would make longer: one at a time.
            tallies[FEWEST] = pool.submit(_tallied, data, FEWEST, every).result()
            new = pool.submit(_new_rates_tally, data, every).result()
            many = pool.submit(_large_tally, data, LARGE_DRAWS).result()
    verdicts[GPUS] = tallies[GLET].yes
    return {name: tallies[name] for name in WAYS}, verdicts, new, many


def _row(name: str, way: Way, one: Tally) -> tuple[str, ...]:
    count = sum(one.yes)
    own = one.unsound_beside if way.with_interference else one.unsound
    failing = f"{100 * one.unsound_beside / count:.1f} %" if count else "-"
    return (name, f"{count:,}", f"{own}", failing, f"{one.gpus / count:.2f}" if count else "-")


def _bars(
    tallies: Mapping[str, Tally], scenarios: Sequence[Mapping[str, float]], verdicts: Mapping[int, Sequence[bool]],
    new: Tally, *, is_whole: bool,
) -> Table:  # fmt: skip
    glet, best, sbp = (tallies[name] for name in (GLET, IDEAL, SBP))
    implied = sum(a and not b for a, b in zip(sbp.yes, glet.yes, strict=True))
    contained = sum(a and not b for a, b in zip(glet.yes, best.yes, strict=True))
    by_gpu, schedules = turned_by_a_gpu(verdicts)
    rows = [
        ("glet+int below ideal", f"{sum(best.yes) - sum(glet.yes):,}", f"at most {PAPER_GAP}", f"{PAPER_GAP}"),
        ("SBP yes, glet+int no", f"{implied}", "0", "-"),
        ("glet+int yes, ideal no", f"{contained}", "0", "-"),
        (f"glet+int: a GPU more turns yes into no, {min(verdicts)} to {max(verdicts)} GPUs",
         f"{by_gpu} of {schedules:,}", "0", "-"),
    ]  # fmt: skip
    if is_whole:
        for name, one in ((GLET, glet), (IDEAL, best)):
            lost, pairs = turned(scenarios, one.yes)
            share = f"{lost} of {pairs:,} ({100 * lost / pairs:.3f} %)"
            rows.append((f"{name}: no after one rate fell", share, f"at most {TURNED_MAX_PCT:g} %", "-"))
    for kind, one in (("that repeat", tallies[FEWEST]), ("that come for the first time", new)):
        median, p99, _ = _times_ms(one)
        for what, value, most in (("median", median, MEDIAN_MAX_MS), ("99th percentile", p99, P99_MAX_MS)):
            rows.append((f"CPU ms of a decision, {what}: rates {kind}", value, f"at most {most}", "-"))
    return Table(caption="What must hold", header=("", "ours", "bar", "paper"), rows=tuple(rows))


def _times(name: str, one: Tally) -> tuple[str, ...]:
    return (name, *_times_ms(one))


def _times_ms(one: Tally) -> tuple[str, str, str]:
    """Median, 99th percentile and longest."""
    ordered = sorted(one.cpu_s)
    median, p99, longest = (ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1])
    return f"{1000 * median:.2f}", f"{1000 * p99:.2f}", f"{1000 * longest:.2f}"
