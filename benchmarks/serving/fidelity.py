"""Simulator and life: one plan, the same requests at the same times, simulated and served on this machine."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_most, bars
from benchmarks.serving.deployed import WHO_GOES_FIRST, outcomes, play, prepared
from benchmarks.serving.machine_noise import TRIED_HEADER, TURNS, Tried, noisy_note, spread
from farside.cli.demo.serving_load import OUTCOMES, Result, poisson
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
# Three turns of these are two minutes of each share.
SECONDS, QUICK_SECONDS = 40.0, 10.0
GOODPUT_OFF_PCT, VIOLATED_OFF_POINTS = 5.0, 2.0


class Turn(NamedTuple):
    """A share of the planned maximum for some seconds: all requests, those met when simulated, and what was served."""

    share: float
    requests: int
    met: int
    served: Tried[Result]

    @property
    def goodput_off_pct(self) -> float:
        """By how much the requests that were answered in time differ, of those simulated."""
        return 100 * abs(self.served.result.counts()["met"] - self.met) / max(1, self.met)

    @property
    def violated_pct(self) -> tuple[float, float]:
        """Simulated and served."""
        return 100 * (1 - self.met / max(1, self.requests)), 100 * self.served.result.violated_share()

    @property
    def violated_off_points(self) -> float:
        """By how much these differ."""
        simulated, served = self.violated_pct
        return abs(simulated - served)


def measure_fidelity(*, quick: bool) -> Figure:
    """Each share of the planned maximum, simulated, then served; all shares in turns.

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
    found: list[Turn] = []
    with Running(folder, mix, mix.most, options=("--plan", str(write_plan(folder, plan)))) as running:
        for turn in range(TURNS):
            for share in SHARES:
                times = poisson(mix.rates(share), seconds, 1000 * turn + int(100 * share))
                simulated = simulate(plan, sizes, times, seconds).values()
                requests, met = (sum(getattr(one, what) for one in simulated) for what in ("requests", "met"))
                found.append(Turn(share, requests, met, play(running, times)))
    return fidelity_figure(found, seconds)


def fidelity_figure(found: Sequence[Turn], seconds: float) -> Figure:
    """The figure, of turns of so many seconds."""
    by_share = {share: [turn for turn in found if turn.share == share] for share in SHARES}
    judged: list[Row] = []
    for share, turns in by_share.items():
        off_pct = statistics.median(turn.goodput_off_pct for turn in turns)
        judged.append(at_most(f"goodput at {share:g} of the maximum off by, %", off_pct, GOODPUT_OFF_PCT))
        if share == SURE_SHARE:
            off_points = statistics.median(turn.violated_off_points for turn in turns)
            judged.append(at_most(f"violations at {share:g} off by, points", off_points, VIOLATED_OFF_POINTS))
    return Figure(
        key="serving-fidelity",
        title="The simulator beside life",
        source="glet 5.1",
        tables=(
            Table(
                caption=f"One plan, the same requests: medians of {TURNS} turns of {seconds:g} s at shares of the "
                "planned maximum",
                header=("share", "requests/s", "in time/s simulated", "served", "off by %", "least", "most",
                        "violated % simulated", "violated % served", "off by points", "points least", "points most"),
                rows=tuple(_row(share, turns, seconds) for share, turns in by_share.items()),
            ),
            Table(
                caption="Turns",
                header=("share", "in time/s simulated", "served", "violated % simulated", "violated % served",
                        *OUTCOMES, *TRIED_HEADER),
                rows=tuple(
                    (f"{turn.share:g}", f"{turn.met / seconds:.1f}",
                     f"{turn.served.result.goodput(seconds):.1f}", *(f"{one:.2f}" for one in turn.violated_pct),
                     *outcomes(turn.served.result), *turn.served.cells())
                    for turn in found
                ),
            ),
            bars(*judged),
        ),
        notes=(noisy_note([turn.served for turn in found]), WHO_GOES_FIRST),
    )  # fmt: skip


def _row(share: float, turns: Sequence[Turn], seconds: float) -> Row:
    middle = statistics.median
    simulated_pct, served_pct = zip(*(turn.violated_pct for turn in turns), strict=True)
    return (
        f"{share:g}",
        f"{middle(turn.requests for turn in turns) / seconds:.1f}",
        f"{middle(turn.met for turn in turns) / seconds:.1f}",
        f"{middle(turn.served.result.goodput(seconds) for turn in turns):.1f}",
        *spread([turn.goodput_off_pct for turn in turns], ".2f"),
        f"{middle(simulated_pct):.2f}",
        f"{middle(served_pct):.2f}",
        *spread([turn.violated_off_points for turn in turns], ".2f"),
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
