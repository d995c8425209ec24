"""The command `farside serve plan`: what would go where and why, or which model does not fit."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from farside.cli.figure_table import figure_table, print_plain
from farside.cli.serve import GPUS_MAX, PlanRequest
from farside.cli.serving.cuts import check_cuts
from farside.cli.terminal import standard_output
from farside.errors import ConfigError
from farside.scheduler.sharing.glet.catalog import SCHEDULERS, Scheduler
from farside.scheduler.sharing.glet.check import check
from farside.scheduler.sharing.glet.plan import Glet, Plan, Refusal
from farside.scheduler.sharing.glet.portfolio import impossible
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.scaling import enough
from farside.scheduler.sharing.glet.size import Sizes
from farside.scheduler.sim.output_files import check_apart, check_writable, written
from farside.serve.scenario import parse_rates, read_scenarios
from farside.serve.table import Tables, read_tables, table_files


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario in the file of --json.

    ``rates`` are as given and ``planned`` what is planned for them, requests a second. ``plan`` is empty where
    ``scheduled`` is false, and ``why`` says the reason then. ``sound_alone`` and ``sound``: whether the checker finds
    nothing without and with interference.
    """

    rates: Mapping[str, float]
    planned: Mapping[str, float]
    scheduled: bool
    gpus_used: int
    plan: tuple[Glet, ...]
    sound_alone: bool
    sound: bool
    why: str


class Judge:
    """One scheduler on one table."""

    def __init__(self, tables: Tables, scheduler: Scheduler, gpus: int) -> None:
        self.tables, self.scheduler, self.gpus = tables, scheduler, gpus
        self.sizes = scheduler.sizes(tables.models, tables.device)

    def judge(self, rates: Mapping[str, float]) -> tuple[Judged, Plan | Refusal]:
        """The verdict on measured rates."""
        wanted = {name: planned_rate(rate) for name, rate in rates.items()}
        found = self.scheduler.plan(self.sizes, wanted, self.gpus)
        if isinstance(found, Refusal):
            why = f"{found.model}: {found.why}"
            return Judged(
                rates=rates, planned=wanted, scheduled=False, gpus_used=0, plan=(), sound_alone=False, sound=False,
                why=why,
            ), found  # fmt: skip
        models, device = self.tables.models, self.tables.device
        alone, beside = (
            not check(found, wanted, models, device, self.gpus, with_interference=slowed) for slowed in (False, True)
        )
        assert beside if self.scheduler.with_interference else alone, "a plan is not what its scheduler claims"
        return Judged(
            rates=rates, planned=wanted, scheduled=True, gpus_used=found.gpus, plan=found.glets, sound_alone=alone,
            sound=beside, why="",
        ), found  # fmt: skip


def run(request: PlanRequest, json_out: Path | None) -> int:
    """Reads, plans, writes and prints; the exit code.

    Raises:
        FarsideError: An option or a file is wrong, or the result can't be written.
    """
    if bool(request.rates) == (request.scenarios is not None):
        raise ConfigError("serve plan wants --rates or --scenarios, and one of them", hint="for example --rates a=100")
    check_apart({"--json": json_out}, {**table_files(request.table), "--scenarios": request.scenarios})
    check_writable((json_out,))
    judge = Judge(read_tables(request.table, request.device), SCHEDULERS[request.scheduler], request.gpus)
    check_cuts(request.table, judge.tables, (request.scheduler,), request.gpus)
    if request.scenarios is not None:
        return _many(judge, request, request.scenarios, json_out)
    rates = parse_rates(request.rates, judge.tables.models)
    judged, found = judge.judge(rates)
    _write(json_out, [judged])
    with standard_output():
        if isinstance(found, Refusal):
            _print_refusal(judge, judged, found)
            return 1
        _print_plan(judge, judged, found)
    return 0


def _write(json_out: Path | None, judged: list[Judged]) -> None:
    if json_out is not None:
        with written(json_out) as place:
            place.write_bytes(msgspec.json.encode(judged) + b"\n")


# ---- one


def _print_plan(judge: Judge, judged: Judged, plan: Plan) -> None:
    table = figure_table("GPU", "part", "model", "batch", "requests/s", "cycle", "work", "latest", "SLO", texts=3)
    for glet in plan.glets:
        work_ms = busy_ms(judge.sizes, plan, glet)
        for at, portion in enumerate(glet.models):
            first = at == 0
            table.add_row(
                f"{glet.gpu}" if first else "",
                f"{glet.part_pct} %" if first else "",
                portion.model,
                f"{portion.batch}",
                f"{portion.rate:.1f}",
                f"{glet.cycle_ms:.1f} ms" if first else "",
                f"{work_ms:.1f} ms" if first else "",
                f"{glet.cycle_ms + work_ms:.1f} ms",
                f"{judge.tables.models[portion.model].slo_ms:g} ms",
            )
    print_plain(table)
    print_plain(f"{plan.gpus} of {judge.gpus} GPUs are used, {plan.part_pct} % of a GPU in all.")
    print_plain(*_why(judge.sizes, judged))
    if not judged.sound:
        print_plain("This scheduler ignores interference: beside their neighbours some models miss their SLO.")
    print_plain(f"Table: {judge.tables.rests_on}.")


def busy_ms(sizes: Sizes, plan: Plan, glet: Glet) -> float:
    """Work of a cycle, beside the neighbour where the scheduler plans with that."""
    others = [other for other in plan.glets if other.gpu == glet.gpu and other is not glet]
    pressure = None
    if others:
        pressure = sizes.pressure(others[0].part_pct, [(one.model, one.batch) for one in others[0].models])
    return sum(sizes.latencies(one.model, glet.part_pct, pressure)[one.batch - 1] for one in glet.models)


def _why(sizes: Sizes, judged: Judged) -> Iterator[str]:
    """What each model wanted, in the order in which they are placed."""
    named = [name for name, rate in judged.planned.items() if rate > 0]
    for name in sorted(named, key=lambda one: judged.planned[one] * sizes.models[one].slo_ms):
        rate, knee = judged.planned[name], sizes.knee(name, "chord")
        required = sizes.required(name, rate)
        needs = f"needs {required} %" if required is not None else "is more than a whole GPU serves"
        yield (
            f"{name}: {judged.rates[name]:g} requests/s, planned as {rate:g}, {needs}; its best part is {knee} %, "
            f"which serves {sizes.best_rate[name][knee]:.0f}."
        )


def _print_refusal(judge: Judge, judged: Judged, refusal: Refusal) -> None:
    planned = judged.planned[refusal.model]
    plural = "s" if judge.gpus > 1 else ""
    print_plain(
        f"{refusal.model} does not fit on {judge.gpus} GPU{plural}: {refusal.left:.1f} of {planned:g} requests/s are "
        f"left; {refusal.why}."
    )
    if impossible(judge.sizes, judged.planned, GPUS_MAX) is None:
        count = enough(judge.sizes, judged.planned, judge.gpus, GPUS_MAX, plan=judge.scheduler.at_any_size)
        print_plain(f"{count} GPUs would do." if count else f"{GPUS_MAX} GPUs would not do, either.")


# ---- many


def _many(judge: Judge, request: PlanRequest, path: Path, json_out: Path | None) -> int:
    judged = [judge.judge(rates)[0] for rates in read_scenarios(path, judge.tables.models)]
    _write(json_out, judged)
    yes = [one for one in judged if one.scheduled]
    used = Counter(one.gpus_used for one in yes)
    table = figure_table("figure", request.scheduler)
    table.add_row("scenarios", f"{len(judged):,}")
    table.add_row(f"scheduled on {judge.gpus} GPUs", f"{len(yes):,}")
    for count, scenarios in sorted(used.items()):
        table.add_row(f"of these with {count} GPUs used", f"{scenarios:,}")
    failing = sum(not one.sound for one in yes)
    table.add_row("plans that fail with interference", f"{failing:,}")
    with standard_output():
        print_plain(table)
        print_plain(f"Table: {judge.tables.rests_on}.")
    return 0
