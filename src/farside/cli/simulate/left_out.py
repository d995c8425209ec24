"""Jobs of a trace that a simulation has no use for: refused with a line about each, or left out. PURE."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from farside.errors import ConfigError
from farside.scheduler.sim.experiment import Scene
from farside.scheduler.sim.trace.job import TraceJob

# Lines about such jobs which are shown.
TOLD = 10


def line_of(path: str, entry: TraceJob, reason: str) -> str:
    """Where a job is in its file, and why it is left out."""
    return f"{path}, line {entry.line}: job {entry.job.job_id}: {reason}"


def without(
    scene: Scene, found: Mapping[int, str], path: str, on_bad: Literal["refuse", "skip"], *, what: str, hint: str
) -> tuple[Scene, list[str]]:
    """The scene without the jobs that are found to be no use, by sequence, and a line about each."""
    told = list(found.values())
    if not told:
        return scene, []
    if on_bad == "refuse":
        more = [f"{path}: and {len(told) - TOLD} more"] if len(told) > TOLD else []
        rows = f"{path}: {len(told)} of {len(scene.jobs)} jobs can never {what}"
        lines = [*told[:TOLD], *more, rows] if len(told) > 1 else told
        raise ConfigError("\n".join(lines), hint=f"{hint} with --on-bad skip")
    kept = [at for at, entry in enumerate(scene.jobs) if entry.job.sequence not in found]
    if not kept:
        raise ConfigError(f"{path}: none of {len(scene.jobs)} jobs can {what}", hint=told[0])
    jobs = tuple(scene.jobs[at] for at in kept)
    return replace(scene, jobs=jobs, labels=tuple(scene.labels[at] for at in kept)), told
