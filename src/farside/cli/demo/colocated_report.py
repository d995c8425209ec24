"""Result of the demo's co-location scene: its verdict and its tables."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from farside.cli.demo.colocated import ColocationScene
from farside.cli.demo.colocated_managed import ManagedScene
from farside.cli.figure_table import figure_table
from farside.group_time import BOUND_WORDS

GAIN_MAX = 0.85
"""Together may take this share of the time of one after the other; the equations say about two thirds."""
ERROR_MAX = 0.25
"""Between what was measured and what was predicted: the equation alone is too short by 15 % for one group in twenty."""
LET_THROUGH_MAX = 4
"""Subtasks without a turn, a start: whoever asks while jobs come or go is let through."""
STILL_MAX_S, TURNS_MAX_S = 1.0, 2.0
"""The other job's pause when a worker is killed, and the time without turns when the executor is."""
STARTS = (2, 1)
"""Starts of the job whose worker is killed, and of the other one."""
_BOUNDS = {"cpu": "processor", "network": "network", "job": "one job"}


def scene_faults(scene: ColocationScene) -> tuple[str, ...]:
    """What was not as it has to be; times count only where they say something."""
    found = [f"job {job.name}'s model differs from the one that it has alone" for job in scene.jobs if not job.is_equal]
    if not any(len(job.nodes) > 1 for job in scene.jobs) and not scene.unjudged:
        found.append("no job moved when another one ended")
    if scene.overlaps:
        found.append(f"two jobs of a node computed at once {scene.overlaps} times")
    if scene.unjudged:
        return tuple(found)  # a machine that is too busy keeps the executor from answering in time, too
    if scene.let_through > LET_THROUGH_MAX * scene.starts:
        found.append(f"{scene.let_through} subtasks began without a turn in {scene.starts} starts")
    if scene.together_s > GAIN_MAX * scene.apart_s:
        found.append(
            f"together they took {scene.together_s / scene.apart_s:.2f} of the time of one after the other; "
            f"{GAIN_MAX:g} is the most"
        )
    error = scene.together_s / scene.predicted_s - 1
    if abs(error) > ERROR_MAX:
        longer = "longer" if error > 0 else "less long"
        found.append(
            f"together they took {100 * abs(error):.0f} % {longer} than predicted; {100 * ERROR_MAX:.0f} % may be"
        )
    return tuple(found)


def print_scene(console: Console, scene: ColocationScene) -> int:
    """Prints the tables, and what was wrong; the exit code."""
    jobs = figure_table("job", "nodes", "iterations", "alone", "model", title="four jobs on two nodes", texts=2)
    for job in scene.jobs:
        equal = "equal bit for bit" if job.is_equal else "differs"
        jobs.add_row(job.name, " then ".join(job.nodes), f"{job.iterations}", f"{job.alone_s:.1f} s", equal)
    console.print(jobs)
    groups = figure_table("node", "jobs", "bound by", "iteration, predicted", "measured", texts=3)
    for group in scene.groups:
        measured = "too short" if group.measured_s is None else f"{group.measured_s:.3f} s"
        groups.add_row(
            group.node, ", ".join(group.jobs), _BOUNDS[group.bound], f"{group.predicted_s:.3f} s", measured
        )  # fmt: skip
    console.print(groups)
    lines = [f"no time is judged, the models alone are: {scene.unjudged}"] if scene.unjudged else []
    if scene.has_links:
        ratio, expected = scene.together_s / scene.apart_s, scene.predicted_s / scene.apart_s
        lines.append(
            f"one after the other {scene.apart_s:.1f} s, together {scene.together_s:.1f} s: {ratio:.2f} of it, "
            f"predicted {expected:.2f}; computing alone varied by {100 * scene.spread:.0f} % of an iteration"
        )
    return _judged(console, lines, scene_faults(scene))


def managed_faults(scene: ManagedScene) -> tuple[str, ...]:
    """What was not as it has to be in the manager's half; times count only where they say something."""
    found = list(scene.violations)
    for job, starts in zip(scene.jobs, STARTS, strict=True):
        if job.state != "done":
            found.append(f"job {job.name} is {job.state}")
        elif not job.is_equal:
            found.append(f"job {job.name}'s model differs from the one that it has alone")
        if job.starts != starts:
            found.append(f"job {job.name} was started {job.starts} times, not {starts}")
    if scene.unjudged:
        return tuple(found)
    error = scene.measured_s / scene.predicted_s - 1
    if abs(error) > ERROR_MAX:
        found.append(f"an iteration took {100 * error:+.0f} % of the predicted; {100 * ERROR_MAX:.0f} % may be")
    if scene.still_s > STILL_MAX_S:
        found.append(f"the other job stood still for {scene.still_s:.2f} s; {STILL_MAX_S:g} s may be")
    if scene.turns_s > TURNS_MAX_S:
        found.append(f"turns were given again after {scene.turns_s:.2f} s; {TURNS_MAX_S:g} s may be")
    return tuple(found)


def print_managed(console: Console, scene: ManagedScene) -> int:
    """Prints the tables of the manager's half, and what was wrong; the exit code."""
    jobs = figure_table("job", "ended", "starts", "model", title="two jobs that a manager grouped", texts=2)
    for job in scene.jobs:
        jobs.add_row(job.name, job.state, f"{job.starts}", "equal bit for bit" if job.is_equal else "differs")
    console.print(jobs)
    lines = [f"no time is judged, the models alone are: {scene.unjudged}"] if scene.unjudged else []
    lines += [
        f"on {scene.node}, bound by {BOUND_WORDS[scene.bound]}: an iteration of both takes {scene.predicted_s:.3f} s "
        f"by prediction, measured {scene.measured_s:.3f} s; computing varied by {100 * scene.spread:.0f} %",
        f"kill -9 of a worker: the other job stood still for at most {scene.still_s:.2f} s; "
        f"of the executor: turns again after {scene.turns_s:.2f} s",
    ]
    return _judged(console, lines, managed_faults(scene))


def _judged(console: Console, lines: Sequence[str], faults: Sequence[str]) -> int:
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for fault in faults:
        console.print(Text("FAIL ", style="bold red") + Text(fault), highlight=False, soft_wrap=True)
    return 1 if faults else 0
