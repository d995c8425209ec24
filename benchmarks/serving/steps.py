"""Steps: rates doubled and halved while the deployment plans anew, and an executor that is killed now and then."""

import asyncio
import math
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.figure import Figure, Row, Table
from benchmarks.serving.bars import at_least, at_most, bars
from benchmarks.serving.deployed import VIOLATED_MAX, machine_note, outcomes, prepared
from benchmarks.serving.machine_noise import Watch
from farside.cli.demo.serving_load import OUTCOMES, OpenLoop, Outcome, Result, poisson
from farside.cli.demo.serving_rig import Running
from farside.errors import PeerError
from farside.serve.status import ChangeRecord

LOW, TIMES = 0.25, 2.0
STEP_S, STEPS = 75.0, 8
QUICK_STEP_S, QUICK_STEPS = 30.0, 3
KILLS, KILL_EVERY_S, QUICK_KILLS = 20, 25.0, 3
BACK_STEP_S, BACK_KILL_S = 10.0, 5.0
PLANS_MIN = 4
_NEVER: tuple[Outcome, ...] = ("failed", "lost", "doubled", "wrong")


class _Kill(NamedTuple):
    """When an executor was killed, whose it was, and when the next one was; infinity after the last."""

    at_s: float
    models: str
    next_s: float


def measure_steps(*, quick: bool) -> Figure:
    """Two runs: steps, then kills at a steady rate."""
    folder, mix = prepared(quick=quick)
    step_s, steps = (QUICK_STEP_S, QUICK_STEPS) if quick else (STEP_S, STEPS)
    shares = [LOW * (TIMES if at % 2 else 1.0) for at in range(steps)]
    times = [one for at, share in enumerate(shares) for one in poisson(mix.rates(share), step_s, at, at * step_s)]
    watch = Watch()
    with Running(folder, mix, mix.rates(LOW)) as running:
        result = asyncio.run(OpenLoop("127.0.0.1", running.http, running.targets()).run(times))
        status = running.status()
    rows = tuple(
        (f"{at * step_s:g}", f"{share:g}", _violated(result, at * step_s, at * step_s + BACK_STEP_S),
         _violated(result, at * step_s + BACK_STEP_S, (at + 1) * step_s))
        for at, share in enumerate(shares)
    )  # fmt: skip
    kills = QUICK_KILLS if quick else KILLS
    with Running(folder, mix, mix.rates(LOW)) as running:
        began_s = time.time()
        killed, moments = asyncio.run(_killed(running, mix.rates(LOW), kills))
        kill_changes = running.status().changes
    after = [killed.violated_share("", one.at_s + BACK_KILL_S, one.next_s) for one in moments]
    counts = Table(
        caption="What became of all requests",
        header=("run", *OUTCOMES),
        rows=tuple((name, *outcomes(one)) for name, one in (("steps", result), ("kills", killed))),
    )  # fmt: skip
    return Figure(
        key="serving-steps",
        title="Reorganisation and faults",
        source="glet 4.6",
        tables=(
            Table(
                caption="Steps: violated requests, %",
                header=("from s", "of the planned maximum", f"first {BACK_STEP_S:g} s", "after"),
                rows=rows,
            ),
            _plans_table(status.changes),
            _kills_table(killed, moments, {one.at_s - began_s: one for one in kill_changes}),
            counts,
            bars(
                at_least("new plans", float(sum(one.is_reorganised for one in status.changes)), PLANS_MIN),
                *_unanswered("steps", result),
                at_most(
                    f"violated from {BACK_STEP_S:g} s after a step, %",
                    100 * max(result.violated_share("", *one) for one in _settled(step_s, steps)),
                    100 * VIOLATED_MAX,
                ),
                at_least("kills", float(len(moments)), kills),
                *_unanswered("kills", killed),
                at_most(
                    f"violated from {BACK_KILL_S:g} s after a kill, %", 100 * max(after, default=0), 100 * VIOLATED_MAX
                ),
            ),
        ),
        notes=(
            f"kill -9 of an executor at {len(moments)} moments: from {BACK_KILL_S:g} s after each to the next "
            f"{100 * max(after, default=0):.2f} % violated at worst; {100 * VIOLATED_MAX:g} % is the most.",
            machine_note(watch.noise()),
        ),
    )


def _plans_table(changes: Sequence[ChangeRecord]) -> Table:
    return Table(
        caption="New plans",
        header=("cause", "devices", "sum of parts %", "started", "resized", "closed", "took s", "problem"),
        rows=tuple(
            (one.cause, f"{one.gpus}", f"{one.part_pct}", f"{one.prepared}", f"{one.resized}", f"{one.closed}",
             f"{one.plan_s + one.prepare_s + one.drain_s:.1f}", one.problem)
            for one in changes
        ),
    )  # fmt: skip


def _kills_table(killed: Result, moments: Sequence[_Kill], changes: Mapping[float, ChangeRecord]) -> Table:
    rows: list[Row] = []
    for one in moments:
        plans = [f"{told.cause} {told.part_pct} %" for at_s, told in changes.items() if one.at_s <= at_s < one.next_s]
        back_s = one.at_s + BACK_KILL_S
        rows.append(
            (f"{one.at_s:.0f}", one.models, _violated(killed, one.at_s, back_s), _violated(killed, back_s, one.next_s),
             ", ".join(plans))
        )  # fmt: skip
    return Table(
        caption="Kills: violated requests, %, and plans meanwhile with the sum of their parts",
        header=("at s", "whose executor", f"first {BACK_KILL_S:g} s", "until the next", "plans"),
        rows=tuple(rows),
    )


def _unanswered(run: str, result: Result) -> list[Row]:
    """No request may end so."""
    counts = result.counts()
    return [at_most(f"{run}: {one}", float(counts[one]), 0) for one in _NEVER]


def _settled(step_s: float, steps: int) -> list[tuple[float, float]]:
    return [(at * step_s + BACK_STEP_S, (at + 1) * step_s) for at in range(steps)]


def _violated(result: Result, since_s: float, until_s: float) -> str:
    return f"{100 * result.violated_share('', since_s, until_s):.2f}"


async def _killed(running: Running, rates: dict[str, float], kills: int) -> tuple[Result, Sequence[_Kill]]:
    """What became of requests, and when which models' executor was killed."""
    seconds = KILL_EVERY_S * (kills + 1)
    client = OpenLoop("127.0.0.1", running.http, await asyncio.to_thread(running.targets))
    load = asyncio.ensure_future(client.run(poisson(rates, seconds, 9)))
    rng, loop = random.Random(9), asyncio.get_running_loop()
    began_s, moments = loop.time(), list[tuple[float, str]]()
    for at in range(1, kills + 1):
        await asyncio.sleep(began_s + at * KILL_EVERY_S - loop.time() - rng.random())
        try:
            status = await asyncio.to_thread(running.status)
        except PeerError:  # the front has no processor time to answer: a moment less, and the table says how many
            continue
        if glets := [one for one in status.glets if one.pid]:
            one = rng.choice(glets)
            os.kill(one.pid, signal.SIGKILL)
            moments.append((loop.time() - began_s, ", ".join(portion.model for portion in one.glet.models)))
    nexts_s = [*(at_s for at_s, _ in moments[1:]), math.inf]
    return await load, [_Kill(*moment, next_s) for moment, next_s in zip(moments, nexts_s, strict=True)]
