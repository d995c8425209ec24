"""Simulator and life: one plan, the same requests at the same times, simulated and served on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_most, bars
from benchmarks.serving.deployed import machine_note, outcomes, play, prepared
from farside.cli.demo.serving_load import OUTCOMES, poisson
from farside.cli.demo.serving_rig import Mix, Running, devices
from farside.errors import Unavailable
from farside.scheduler.sharing.glet.catalog import SCHEDULERS
from farside.scheduler.sharing.glet.plan import Plan
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.size import Sizes
from farside.scheduler.sim.serving.arrivals import GatedQueue, Outcome, outcome
from farside.scheduler.sim.serving.executors import Executors
from farside.serve.table import read_tables

SHARES, SURE_SHARE = (0.8, 1.0, 1.2), 0.8
SECONDS, QUICK_SECONDS = 60.0, 10.0
GOODPUT_OFF_PCT, VIOLATED_OFF_POINTS = 5.0, 2.0


def measure_fidelity(*, quick: bool) -> Figure:
    """Each share of the planned maximum, simulated, then served.

    Raises:
        Unavailable: The largest rates have no plan.
    """
    folder, mix = prepared(quick=quick)
    seconds = QUICK_SECONDS if quick else SECONDS
    sizes = sizes_of(folder, mix)
    plan = SCHEDULERS["glet+int"].plan(
        sizes, {name: planned_rate(rate) for name, rate in mix.most.items()}, len(devices())
    )
    if not isinstance(plan, Plan):
        raise Unavailable(f"the largest rates have no plan: {plan.why}")
    rows: list[Row] = []
    judged: list[Row] = []
    notes: list[str] = []
    with Running(folder, mix, mix.most, options=("--plan", str(write_plan(folder, plan)))) as running:
        for share in SHARES:
            times = poisson(mix.rates(share), seconds, int(100 * share))
            simulated = simulate(plan, sizes, times, seconds)
            result, machine = play(running, times)
            requests = sum(one.requests for one in simulated.values())
            met = sum(one.met for one in simulated.values())
            violated = 1 - met / max(1, requests)
            lived, lived_violated = result.goodput(seconds), result.violated_share()
            rows.append(
                (f"{share:g}", f"{requests}", f"{met / seconds:.1f}", f"{lived:.1f}", f"{100 * violated:.2f}",
                 f"{100 * lived_violated:.2f}", *outcomes(result))
            )  # fmt: skip
            off_pct = 100 * abs(lived - met / seconds) * seconds / max(1, met)
            judged.append(at_most(f"goodput at {share:g} of the maximum off by, %", off_pct, GOODPUT_OFF_PCT))
            if share == SURE_SHARE:
                off_points = 100 * abs(violated - lived_violated)
                judged.append(at_most(f"violations at {share:g} off by, points", off_points, VIOLATED_OFF_POINTS))
            notes.append(f"At {share:g}: {machine_note(machine)}")
    return Figure(
        key="serving-fidelity",
        title="The simulator beside life",
        source="glet 5.1",
        tables=(
            Table(
                caption=f"One plan, the same requests, {seconds:g} s each at shares of the planned maximum",
                header=(
                    "share",
                    "requests",
                    "in time/s simulated",
                    "served",
                    "violated % simulated",
                    "served",
                    *OUTCOMES,
                ),
                rows=tuple(rows),
            ),
            bars(*judged),
        ),
        notes=tuple(notes),
    )


def sizes_of(folder: Path, mix: Mix) -> Sizes:
    """Models as measured, with the SLOs of a mix."""
    tables = read_tables(folder / "profile")
    models = {name: replace(tables.models[name], slo_ms=slo_ms) for name, slo_ms in mix.slo_ms.items()}
    return Sizes(models, tables.device)


def write_plan(folder: Path, plan: Plan) -> Path:
    """A plan as ``farside serve run --plan`` takes it."""
    path = folder / "plan.json"
    path.write_bytes(msgspec.json.encode(plan.glets))
    return path


def simulate(plan: Plan, sizes: Sizes, times: Sequence[tuple[float, str]], seconds: float) -> Mapping[str, Outcome]:
    """What becomes of requests at these times under a plan, by model."""
    queues = {
        name: GatedQueue([at_s for at_s, model in times if model == name], one.slo_ms / 1000)
        for name, one in sizes.models.items()
    }
    executors = Executors(sizes, sizes, queues)
    executors.switch(plan, 0.0)
    executors.run(seconds + max(one.slo_ms for one in sizes.models.values()) / 1000)
    for queue in queues.values():
        queue.end()
    return {name: outcome(queue.became) for name, queue in queues.items()}
