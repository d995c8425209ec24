"""Result of the demo's aggregation scene: its verdict, and the table against gloo and ps-lite."""

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from farside.cli.demo.shared import MODELS, NODES, RANKS, STEPS, SharedScene
from farside.cli.figure_table import figure_table

CHECKOUT = Path(__file__).parents[4]
"""Where this file is part of one: benchmarks are no part of an installed Farside."""
PEERS_LIMIT_S = 300.0


def scene_faults(scene: SharedScene) -> tuple[str, ...]:
    """What was not as it has to be."""
    found = [f"the log: {one}" for one in scene.violations]
    found += [f"job {job.model} is {job.state}, not done" for job in scene.jobs if job.state != "done"]
    found += [
        f"the parameters of job {job.model} differ from those of one process" for job in scene.jobs if not job.is_equal
    ]
    if len(scene.page) < NODES + len(MODELS):
        found.append(f"the page shows of aggregation only: {', '.join(scene.page) or 'nothing'}")
    return tuple(found)


def print_scene(console: Console, scene: SharedScene) -> None:
    """Prints the table, and what was wrong if anything was."""
    table = figure_table("job", "ended", "ranks", "iterations", "parameters", title="two jobs on shared Aggregators")
    for job in scene.jobs:
        equal = "equal bit for bit" if job.is_equal else "differ"
        table.add_row(job.model, job.state, f"{RANKS}", f"{STEPS}", equal)
    console.print(table)
    told = f"moved from {scene.moved_from} to {scene.moved_to} while they trained; the Aggregator there was killed"
    console.print(told, highlight=False, markup=False, soft_wrap=True)
    for fault in scene_faults(scene):
        console.print(Text("FAIL ", style="bold red") + Text(fault), highlight=False, soft_wrap=True)


def print_peers(console: Console, root: Path = CHECKOUT) -> int:
    """Prints how fast aggregation is beside gloo and ps-lite; 1 if that could not be measured."""
    if not (root / "benchmarks" / "aggregation").is_dir():
        console.print("the table against gloo and ps-lite needs a checkout: make demo SCENE=aggregation")
        return 0
    console.print("beside gloo and ps-lite, in one run:", highlight=False)
    argv = [sys.executable, "-m", "benchmarks.aggregation", "--quick", "--output", os.devnull]
    try:
        return 1 if subprocess.run(argv, cwd=root, timeout=PEERS_LIMIT_S, check=False).returncode else 0
    except subprocess.TimeoutExpired:
        told = f"the peers took more than {PEERS_LIMIT_S:g} s"
        console.print(Text("FAIL ", style="bold red") + Text(told), highlight=False, soft_wrap=True)
        return 1
