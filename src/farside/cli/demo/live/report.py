"""Result of the demo's live scene: estimates beside what happened, live beside simulated, and the verdict."""

import math
import statistics

from rich.console import Console
from rich.table import Table
from rich.text import Text

from farside.cli.demo.live.scene import LiveScene, scene_faults
from farside.cli.demo.live.senders import GRACE_S
from farside.cli.figure_table import figure_table
from farside.units import format_count

ROWS = 12
"""Jobs of the table of estimates, from the shortest to the longest."""


def print_scene(console: Console, scene: LiveScene) -> int:
    """Prints the tables, and what was wrong; the exit code."""
    console.print(_estimates_table(scene))
    console.print(_compared_table(scene))
    for line in lines(scene):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    faults = scene_faults(scene)
    for fault in faults:
        console.print(Text("FAIL ", style="bold red") + Text(fault), highlight=False, soft_wrap=True)
    return 1 if faults else 0


def _estimates_table(scene: LiveScene) -> Table:
    names = ("job", "virtual cluster", "GPUs", "estimate", "really", "off by", "from jobs", "claimed error")
    table = figure_table(*names, title="estimate and result", texts=2)
    needs_s, estimates = scene.played.needs_s, scene.played.estimates
    known = sorted(estimates, key=lambda job_id: (needs_s[job_id], int(job_id)))
    count = min(ROWS, len(known))
    for at in range(count):
        job_id = known[at * (len(known) - 1) // max(1, count - 1)]
        job, one, real_s = scene.played.jobs[job_id].job, estimates[job_id], needs_s[job_id]
        said = "-" if one.error is None else f"x{one.error:.1f}"
        table.add_row(
            job_id, job.vc, f"{job.gpus}", f"{one.expected_s:.1f} s", f"{real_s:.1f} s",
            f"x{_factor(one.expected_s, real_s):.1f}", f"{one.from_jobs:,}", said,
        )  # fmt: skip
    return table


def _compared_table(scene: LiveScene) -> Table:
    compared, fidelity = scene.compared, scene.compared.fidelity
    table = figure_table("", "live", "simulated", "off by", title="the day live and simulated, seconds of this machine")
    for name, live_s, simulated_s in (
        ("average JCT", fidelity.mean_jct_s, fidelity.predicted_mean_s),
        ("average wait", compared.wait_s, compared.predicted_wait_s),
    ):
        off = f"{100 * (simulated_s / live_s - 1):+.1f} %" if live_s > 0 else ""
        table.add_row(name, f"{live_s:.2f}", f"{simulated_s:.2f}", off)
    table.add_row("average JCT under FIFO", "-", f"{compared.fifo_jct_s:.2f}", "")
    table.add_row("given back to owners", f"{fidelity.preemptions}", f"{fidelity.predicted_preemptions}", "")
    return table


def lines(scene: LiveScene) -> list[str]:
    """What the tables leave out, a line each."""
    compared, order = scene.compared, scene.compared.fidelity.order
    found = [
        f"of {format_count(order.pairs, 'pair')} of jobs that waited together, {100 * order.error:.1f} % started in "
        "another order than in the simulation"
    ]
    if compared.fidelity.predicted_mean_s >= compared.fifo_jct_s:
        found.append("in the simulation QSSF gains nothing over FIFO on this day")
    if len(scene.day.nodes) == 1:
        found.append("the log has one virtual cluster, so nothing could be lent")
    else:
        longest_s = max((one.waited_s for one in compared.recalls), default=0.0)
        found.append(
            f"{format_count(compared.guests, 'start')} on idle nodes of other virtual clusters, "
            f"{len(compared.recalls)} of which gave them back; an owner waited {longest_s:.2f} s for a borrower at "
            f"most, whose grace is {GRACE_S:g} s"
        )
    if factors := _factors(scene):
        half = f"half of {format_count(len(factors), 'estimate')} were off by a factor of"
        found.append(
            f"{half} {statistics.median(factors):.1f} or less"
            + ("" if scene.day.has_users else "; this log has neither users nor names to tell jobs by")
        )
    if scene.played.late_s > 1:
        found.append(f"this machine was busy: a job was submitted {scene.played.late_s:.1f} s late")
    return found


def _factors(scene: LiveScene) -> list[float]:
    needs_s = scene.played.needs_s
    return [_factor(one.expected_s, needs_s[job_id]) for job_id, one in scene.played.estimates.items()]


def _factor(expected_s: float, real_s: float) -> float:
    """By what factor an estimate is off, whichever way; at least 1."""
    return math.exp(abs(math.log(expected_s / real_s)))
