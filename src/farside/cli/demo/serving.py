"""The demo's serving scene: three models within their SLOs, a step in the load, and a killed executor.

The models are made in place and measured on this machine. Poisson requests come at a share of what a plan serves at
most; then twice as many, for which the deployment plans anew while it serves; then the largest executor is killed.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from farside.cli.demo.serving_load import OpenLoop, Outcome, Result, poisson
from farside.cli.demo.serving_rig import Mix, Running, devices, measure, mix_of
from farside.cli.demo.show import Show
from farside.errors import Unavailable
from farside.serve.status import ServeStatus

MINUTES = 2.0
SHARE, STEP_TIMES = 0.2, 2.0
# Seconds: the calm part, which begins to count after the first ones; the step; the kill; the end.
SETTLE_S, STEP_S, KILL_S, END_S = 3.0, 25.0, 45.0, 62.0
BACK_AFTER_STEP_S, BACK_AFTER_KILL_S = 10.0, 5.0
VIOLATED_MAX = 0.01
_PACKAGES = ("onnxruntime", "onnx", "grpc", "tritonclient")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the run: its name, its seconds, and the rates that came, requests a second by model."""

    name: str
    since_s: float
    until_s: float
    rates: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingScene:
    """What happened: the promise, what came of each request, and what the deployment says of itself at the end."""

    mix: Mix
    phases: tuple[Phase, ...]
    result: Result
    status: ServeStatus
    killed: int


def need_packages() -> None:
    """Raises Unavailable: a package is not there; one line."""
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise Unavailable(f"this scene needs {package}, which is not installed", hint="make demo SCENE=serving")


def play(show: Show, folder: Path) -> ServingScene:
    """Plays it.

    Raises:
        FarsideError: The models could not be measured, or the deployment did not start.
    """
    need_packages()
    show.begin(f"three models are measured on a core, {MINUTES:g} minutes at most")
    tables = measure(folder, minutes=MINUTES)
    mix = mix_of(tables)
    rates = mix.rates(SHARE)
    show.end(", ".join(f"{name} {ms:g} ms" for name, ms in sorted(mix.slo_ms.items())) + " are their SLOs")
    show.begin("the deployment starts")
    with Running(folder, mix, rates) as running:
        glets = len(running.status().glets)
        show.end(f"{glets} parts of {len(devices())} devices serve {sum(rates.values()):.0f} requests/s")
        show.begin(f"Poisson requests for {STEP_S:g} s, then {STEP_TIMES:g} times as many; an executor is killed")
        result, killed = asyncio.run(_load(running, rates))
        status = running.status()
    plans = sum(one.is_reorganised for one in status.changes)
    show.end(f"{len(result.ended):,} requests, {plans} new plans, {status.deaths} executor died")
    stepped = {name: STEP_TIMES * rate for name, rate in rates.items()}
    after_step, after_kill = STEP_S + BACK_AFTER_STEP_S, KILL_S + BACK_AFTER_KILL_S
    step, kill = f"{BACK_AFTER_STEP_S:g} s after the step", f"{BACK_AFTER_KILL_S:g} s after the kill"
    phases = (
        Phase(name="at first", since_s=SETTLE_S, until_s=STEP_S, rates=rates),
        # Without those that may be under way when the executor is killed.
        Phase(name=step, since_s=after_step, until_s=KILL_S - max(mix.slo_ms.values()) / 1000, rates=stepped),
        Phase(name=kill, since_s=after_kill, until_s=END_S, rates=stepped),
    )
    return ServingScene(mix=mix, phases=phases, result=result, status=status, killed=killed)


async def _load(running: Running, rates: Mapping[str, float]) -> tuple[Result, int]:
    times = poisson(rates, STEP_S, 1)
    times += poisson({name: STEP_TIMES * rate for name, rate in rates.items()}, END_S - STEP_S, 2, STEP_S)
    client = OpenLoop("127.0.0.1", running.http, await asyncio.to_thread(running.targets))
    load = asyncio.ensure_future(client.run(times))
    await asyncio.sleep(KILL_S)
    status = await asyncio.to_thread(running.status)
    largest = max((one for one in status.glets if one.pid), key=lambda one: one.glet.part_pct)
    os.kill(largest.pid, signal.SIGKILL)
    return await load, largest.pid


def scene_faults(scene: ServingScene) -> tuple[str, ...]:
    """What was out of bounds, a line each."""
    found: list[str] = []
    for phase in scene.phases:
        share = scene.result.violated_share("", phase.since_s, phase.until_s)
        if share > VIOLATED_MAX:
            found.append(f"{phase.name}: {100 * share:.1f} % of requests violated their SLO; 1 % may")
    counts = scene.result.counts()
    never: tuple[Outcome, ...] = ("failed", "lost", "doubled", "wrong", "refused")
    found += [f"{counts[one]} requests were {one}" for one in never if counts[one]]
    if not any(one.is_reorganised for one in scene.status.changes):
        found.append("no new plan was made for the step")
    if scene.status.deaths != 1:
        found.append(f"{scene.status.deaths} executors died, one was killed")
    ended = sum(one.met + one.late + one.dropped + one.rejected + one.failed for one in scene.status.models)
    if ended != len(scene.result.ended):
        found.append(f"{len(scene.result.ended)} requests were sent, and {ended} counted")
    return tuple(found)
