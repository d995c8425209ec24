"""Result of the demo's cluster scene: a table of real, simulated and the paper's figures, and the verdict."""

from rich.console import Console
from rich.text import Text

from farside.cli.demo.cluster import Scene
from farside.cli.figure_table import figure_table
from farside.scheduler.manager.compare_simulation import PAPER_APART_PCT, PAPER_SIMULATOR, PAPER_TESTBED

ERROR_MAX_PCT = 25.0
"""The simulator's mean JCT may be so far off. The paper's was within 7.1 % [tiresias §3.5.3.1], ours within 2 % on a
machine that did little else; the rest is for one that is busy."""


def scene_faults(scene: Scene) -> tuple[str, ...]:
    """What was not as it has to be; how long anything took is part of it only beside what was simulated."""
    found = list(scene.violations)
    for one in scene.rounds:
        left = len(one.fidelity.jobs) - one.done
        if left:
            found.append(f"{left} jobs under {one.policy} were not done")
        if one.policy == "las" and not one.fidelity.preemptions:
            found.append("nothing was preempted under las")
        off_pct = 100 * one.fidelity.mean_error
        if abs(off_pct) > ERROR_MAX_PCT:
            found.append(
                f"the simulated mean JCT under {one.policy} is off by {off_pct:+.1f} % ({ERROR_MAX_PCT:g} at most)"
            )
    return tuple(found)


def improvement(scene: Scene) -> tuple[float, float]:
    """How many times better the mean JCT of the last policy is than that of the first: really, and simulated."""
    first, last = scene.rounds[0].fidelity, scene.rounds[-1].fidelity
    return first.mean_jct_s / last.mean_jct_s, first.predicted_mean_s / last.predicted_mean_s


def print_scene(console: Console, scene: Scene) -> None:
    """Prints the table, and what was wrong if anything was."""
    columns = ("policy", "mean JCT", "simulated", "off by", "median job", "preempted", "simulated")
    table = figure_table(*columns, title="the same jobs, really and in the simulator")
    for one in scene.rounds:
        found = one.fidelity
        table.add_row(
            one.policy, f"{found.mean_jct_s:.2f} s", f"{found.predicted_mean_s:.2f} s",
            f"{100 * found.mean_error:+.1f} %", f"{100 * found.median_error:.1f} %",
            str(found.preemptions), str(found.predicted_preemptions),
        )  # fmt: skip
    console.print(table)
    really, said = improvement(scene)
    apart_pct = 100 * abs(said - really) / really
    first, last = scene.rounds[0].policy, scene.rounds[-1].policy
    for line in (
        f"{last} over {first}: {really:.2f} times better really, {said:.2f} times simulated, {apart_pct:.1f} % apart",
        f"the paper's, over YARN-CS: {PAPER_TESTBED:g} times on its testbed, {PAPER_SIMULATOR:g} times simulated, "
        f"{PAPER_APART_PCT:.1f} % apart [tiresias §3.5.3.1]",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for fault in scene_faults(scene):
        console.print(Text("FAIL ", style="bold red") + Text(fault), highlight=False, soft_wrap=True)
