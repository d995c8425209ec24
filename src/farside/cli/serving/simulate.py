"""The command `farside serve simulate`: what would come of a scheduler's plans."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from farside.cli.figure_table import figure_table, print_plain
from farside.cli.serve import SimulateRequest
from farside.cli.serving.cuts import check_cuts
from farside.cli.terminal import standard_output
from farside.errors import ConfigError
from farside.scheduler.sharing.glet.catalog import SCHEDULERS
from farside.scheduler.sharing.glet.plan import Refusal
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.size import Sizes
from farside.scheduler.sim.output_files import check_apart, check_writable, written
from farside.scheduler.sim.serving.arrivals import Course, Outcome
from farside.scheduler.sim.serving.play import Epochs, EpochSettings, play_plan, violated_share
from farside.serve.scenario import parse_rates, read_course
from farside.serve.table import Tables, read_tables, table_files

_DURATION_S, _AFTER_S = 120.0, 60.0
_DURATION_MAX_S = 86_400.0
_REQUESTS_MAX = 50_000_000


# Rates of each model from a time on.
Steps = tuple[tuple[float, Mapping[str, float]], ...]


class ModelFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One model's requests, by what became of them."""

    requests: int
    met: int
    late: int
    dropped: int


class SchedulerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A scheduler's result in the file of --json; ``why`` is empty where it had a plan.

    ``gpus`` are those of the plan, or of the most that were used at any time; ``switches`` the seconds and causes of
    new plans.
    """

    scheduler: str
    gpus: int
    part_pct: int
    violated_pct: float
    goodput: float
    models: Mapping[str, ModelFigures]
    switches: tuple[tuple[float, str], ...] = ()
    why: str = ""


def run(request: SimulateRequest, json_out: Path | None) -> int:
    """Reads, plans, plays, writes and prints; 1 if no scheduler had a plan.

    Raises:
        FarsideError: An option or a file is wrong, or the result can't be written.
    """
    names = _check(request)
    check_apart({"--json": json_out}, {**table_files(request.table), "--recorded": request.recorded})
    check_writable((json_out,))
    tables = read_tables(request.table, request.device)
    check_cuts(request.table, tables, names, request.gpus)
    course = _course(request, tables)
    figures = [_simulated(request, tables, course, name) for name in names]
    if json_out is not None:
        with written(json_out) as place:
            place.write_bytes(msgspec.json.encode(figures) + b"\n")
    with standard_output():
        _print(figures, tables, course)
    return 0 if any(not one.why for one in figures) else 1


def _check(request: SimulateRequest) -> tuple[str, ...]:
    if bool(request.rates) == (request.recorded is not None):
        raise ConfigError(
            "serve simulate wants --rates or --recorded, and one of them", hint="for example --rates a=100"
        )
    names = tuple(dict.fromkeys(name.strip() for name in request.scheduler.split(",") if name.strip()))
    unknown = [name for name in names if name not in SCHEDULERS]
    if unknown or not names:
        what = f"{unknown[0]!r} is no scheduler" if unknown else "names no scheduler"
        raise ConfigError(f"--scheduler {request.scheduler!r}: {what}", hint=f"choose of {', '.join(SCHEDULERS)}")
    if request.duration_s is not None and not 1 <= request.duration_s <= _DURATION_MAX_S:
        raise ConfigError(
            f"--duration-s {request.duration_s:g}: is out of bounds", hint=f"give 1 to {_DURATION_MAX_S:g} seconds"
        )
    if request.recorded is not None and request.load != 1:
        raise ConfigError(
            "--load is of --rates, which are planned for as they are; recorded rates are planned for as they come",
            hint="leave --load out",
        )
    if not 0 < request.load <= 100:
        raise ConfigError(f"--load {request.load:g}: is out of bounds", hint="give a share above 0, 100 at most")
    if request.reorganise_s is not None and request.recorded is None:
        raise ConfigError("--reorganise-s is of --recorded: one plan serves --rates", hint="leave --reorganise-s out")
    if request.reorganise_s is not None and not 0 <= request.reorganise_s <= 3600:
        raise ConfigError(f"--reorganise-s {request.reorganise_s:g}: is out of bounds", hint="give 0 to 3600 seconds")
    return names


def _course(request: SimulateRequest, tables: Tables) -> Course:
    if request.recorded is None:
        steps: Steps = ((0.0, parse_rates(request.rates, tables.models)),)
        until_s = request.duration_s or _DURATION_S
    else:
        steps = read_course(request.recorded, tables.models)
        until_s = request.duration_s or steps[-1][0] + _AFTER_S
        steps = tuple(step for step in steps if step[0] < until_s)
    if until_s > _DURATION_MAX_S:
        raise ConfigError(
            f"{request.recorded}: goes on for {until_s:,.0f} s",
            hint=f"give --duration-s of {_DURATION_MAX_S:g} at most",
        )
    rates = tuple({name: rate * request.load for name, rate in step.items()} for _, step in steps)
    course = Course(from_s=tuple(at_s for at_s, _ in steps), rates=rates, until_s=until_s)
    ends_s = (*course.from_s[1:], until_s)
    expected = sum(
        sum(step.values()) * (end_s - start_s)
        for step, start_s, end_s in zip(rates, course.from_s, ends_s, strict=True)
    )
    if expected > _REQUESTS_MAX or not math.isfinite(expected):
        raise ConfigError(
            f"{expected:,.0f} requests would be drawn, over {_REQUESTS_MAX:,}", hint="give a shorter --duration-s"
        )
    return course


def _simulated(request: SimulateRequest, tables: Tables, course: Course, name: str) -> SchedulerFigures:
    scheduler, rng = SCHEDULERS[name], np.random.default_rng(request.seed)
    sizes, real = scheduler.sizes(tables.models, tables.device), Sizes(tables.models, tables.device)
    if request.recorded is not None:
        settings = EpochSettings(gpus_max=request.gpus)
        if request.reorganise_s is not None:
            settings = replace(settings, reorganise_s=request.reorganise_s)
        played = Epochs(
            partial(scheduler.plan, sizes), course, sizes, real, settings, rng, early=request.early,
            learns=request.learn,
        ).run()  # fmt: skip
        why = "" if played.switches else "it has no plan for any of the rates"
        size = (played.gpus, played.part_pct)
        return _figures(name, size, played.outcomes, course, switches=played.switches, why=why)
    wanted = {one: planned_rate(rate / request.load) for one, rate in course.rates[0].items()}
    found = scheduler.plan(sizes, wanted, request.gpus)
    if isinstance(found, Refusal):
        return _figures(name, (0, 0), {}, course, why=f"{found.model} does not fit: {found.why}")
    outcomes = play_plan(found, course, sizes, real, rng, early=request.early, learns=request.learn)
    return _figures(name, (found.gpus, found.part_pct), outcomes, course)


def _figures(
    name: str,
    size: tuple[int, int],
    outcomes: Mapping[str, Outcome],
    course: Course,
    *,
    switches: tuple[tuple[float, str], ...] = (),
    why: str = "",
) -> SchedulerFigures:
    models = {
        one: ModelFigures(requests=each.requests, met=each.met, late=each.late, dropped=each.dropped)
        for one, each in outcomes.items()
    }
    return SchedulerFigures(
        scheduler=name,
        gpus=size[0],
        part_pct=size[1],
        violated_pct=100 * violated_share(outcomes),
        goodput=sum(each.met for each in outcomes.values()) / course.until_s,
        models=models,
        switches=switches,
        why=why,
    )


def _print(figures: list[SchedulerFigures], tables: Tables, course: Course) -> None:
    table = figure_table("scheduler", "model", "GPUs", "requests", "met", "late", "dropped", "violated", texts=2)
    for one in figures:
        for name, each in one.models.items():
            table.add_row(one.scheduler, name, "", *_cells(each))
        if not one.why:
            totals = {
                column: sum(getattr(each, column) for each in one.models.values())
                for column in ModelFigures.__struct_fields__
            }
            table.add_row(one.scheduler, "all", f"{one.gpus}", *_cells(ModelFigures(**totals)))
    if table.row_count:
        print_plain(table)
    for one in figures:
        if one.why:
            print_plain(f"{one.scheduler}: {one.why}.")
        else:
            changes = f", {len(one.switches)} plans" if len(one.switches) > 1 else ""
            print_plain(f"{one.scheduler}: {one.goodput:.1f} requests/s within their SLO{changes}.")
    print_plain(f"Simulated: {course.until_s:g} s of Poisson arrivals. Table: {tables.rests_on}.")


def _cells(each: ModelFigures) -> tuple[str, ...]:
    violated = (each.late + each.dropped) / each.requests if each.requests else 0.0
    counts = (f"{count:,}" for count in (each.requests, each.met, each.late, each.dropped))
    return (*counts, f"{100 * violated:.2f} %")
