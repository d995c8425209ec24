"""The demo's serving scene: three models within their SLOs, a step in the load, and a killed executor.

The models are made in place and measured on this machine. Poisson requests come at a share of what a plan serves at
most; then some times as many, for which the deployment plans anew while it serves; then the largest executor is killed.
The scene on a cluster (serving_cluster.py) does the same, by the same bounds.
"""

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from farside.agent.serving.partition.cpu import CAPACITY_PCT
from farside.cli.demo.serving_load import OpenLoop, Outcome, Result, poisson
from farside.cli.demo.serving_rig import Mix, Running, devices, measure, mix_of
from farside.cli.demo.show import Show
from farside.errors import Unavailable
from farside.serve.status import GletStatus, ServeStatus

MINUTES = 2.0
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
class Course:
    """How the load goes, in seconds from its beginning on.

    Attributes:
        share: Of the most that a plan serves, at first.
        times: So many times as much comes from the step on.
        settle_s: When the calm part begins to count.
        step_s: The step.
        kill_s: When the largest executor is killed.
        end_s: The end.
        back_after_step_s: So long after the step SLOs are to be met again.
        back_after_kill_s: So long after the kill.
    """

    share: float
    times: float
    settle_s: float = 3.0
    step_s: float
    kill_s: float
    end_s: float
    back_after_step_s: float
    back_after_kill_s: float = 5.0

    def rates(self, mix: Mix) -> dict[str, float]:
        """Requests a second by model, at first."""
        return mix.rates(self.share)

    def stepped(self, mix: Mix) -> dict[str, float]:
        """Requests a second by model, from the step on."""
        return mix.rates(self.times * self.share)

    def phases(self, mix: Mix) -> tuple[Phase, ...]:
        """The parts in which SLOs are to be met."""
        stepped = self.stepped(mix)
        after_step, after_kill = self.step_s + self.back_after_step_s, self.kill_s + self.back_after_kill_s
        step, kill = f"{self.back_after_step_s:g} s after the step", f"{self.back_after_kill_s:g} s after the kill"
        # Without those that may be under way when the executor is killed.
        before_kill = self.kill_s - max(mix.slo_ms.values()) / 1000
        return (
            Phase(name="at first", since_s=self.settle_s, until_s=self.step_s, rates=self.rates(mix)),
            Phase(name=step, since_s=after_step, until_s=before_kill, rates=stepped),
            Phase(name=kill, since_s=after_kill, until_s=self.end_s, rates=stepped),
        )


COURSE = Course(share=0.2, times=2.0, step_s=25.0, kill_s=45.0, end_s=62.0, back_after_step_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingScene:
    """What happened.

    Attributes:
        mix: What was promised.
        phases: Parts of the run that are judged.
        result: What came of each request.
        status: What the deployment says of itself at the end.
        stepped_at_s: When the load stepped up, Unix time.
        killed: The part whose executor was killed.
    """

    mix: Mix
    phases: tuple[Phase, ...]
    result: Result
    status: ServeStatus
    stepped_at_s: float
    killed: GletStatus


def need_packages() -> None:
    """Raises Unavailable: a package is not there; one line."""
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise Unavailable(f"this scene needs {package}, which is not installed", hint="make demo SCENE=serving")


def measured(show: Show, folder: Path, *, capacity_pct: int = CAPACITY_PCT, count: int = 0) -> Mix:
    """Makes three models and measures them; what can be promised of them on ``count`` devices, 0: as many as there are.

    Raises:
        Unavailable: They could not be measured, or a package is missing.
    """
    need_packages()
    show.begin(f"three models are measured on a core, {MINUTES:g} minutes at most")
    mix = mix_of(measure(folder, minutes=MINUTES, capacity_pct=capacity_pct), count=count)
    show.end(", ".join(f"{name} {ms:g} ms" for name, ms in sorted(mix.slo_ms.items())) + " are their SLOs")
    return mix


def play(show: Show, folder: Path) -> ServingScene:
    """Plays it.

    Raises:
        FarsideError: The models could not be measured, or the deployment did not start.
    """
    mix = measured(show, folder)
    rates = COURSE.rates(mix)
    show.begin("the deployment starts")
    with Running(folder, mix, rates) as running:
        glets = len(running.status().glets)
        show.end(f"{glets} parts of {len(devices())} devices serve {sum(rates.values()):.0f} requests/s")
        show.begin(
            f"Poisson requests for {COURSE.step_s:g} s, then {COURSE.times:g} times as many; an executor is killed"
        )
        scene = asyncio.run(serve_load(running, COURSE))
    plans = sum(one.is_reorganised for one in scene.status.changes)
    show.end(f"{len(scene.result.ended):,} requests, {plans} new plans, {scene.status.deaths} executor died")
    return scene


async def serve_load(running: Running, course: Course) -> ServingScene:
    """Sends all requests of a course to a deployment, kills an executor when it is time, and says what came of it.

    Executors, be they of a lease, have to be processes of this machine.

    Raises:
        Unavailable: There was no executor to kill.
    """
    mix = running.mix
    times = poisson(course.rates(mix), course.step_s, 1)
    times += poisson(course.stepped(mix), course.end_s - course.step_s, 2, course.step_s)
    client = OpenLoop("127.0.0.1", running.http, await asyncio.to_thread(running.targets))
    stepped_at_s = time.time() + course.step_s
    load = asyncio.ensure_future(client.run(times))
    await asyncio.sleep(course.kill_s)
    killed = largest_part(await asyncio.to_thread(running.status))
    with suppress(ProcessLookupError):  # it has died by itself, which counts too
        os.kill(killed.pid, signal.SIGKILL)
    result = await load
    status = await asyncio.to_thread(running.status)
    return ServingScene(
        mix=mix, phases=course.phases(mix), result=result, status=status, stepped_at_s=stepped_at_s, killed=killed
    )


def largest_part(status: ServeStatus) -> GletStatus:
    """The largest part that has an executor.

    Raises:
        Unavailable: None has.
    """
    alive = [one for one in status.glets if one.pid]
    if not alive:
        raise Unavailable(f"no executor runs that could be killed: {status.problem or 'all start again'}")
    return max(alive, key=lambda one: one.glet.part_pct)


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
    if not any(one.is_reorganised and one.at_s >= scene.stepped_at_s for one in scene.status.changes):
        found.append("no new plan was made for the step")
    if scene.status.deaths != 1:
        found.append(f"{scene.status.deaths} executors died, one was killed")
    ended = sum(one.met + one.late + one.dropped + one.rejected + one.failed for one in scene.status.models)
    if ended != len(scene.result.ended):
        found.append(f"{len(scene.result.ended)} requests were sent, and {ended} counted")
    return tuple(found)
