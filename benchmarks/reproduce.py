"""``python -m benchmarks.reproduce``: the papers' figures that can be shown on this machine, ours beside theirs.

Figures of chapter II that need no kernel, of chapters III and IV, of Helios and of Harmony; a new one joins
``FIGURES``. What needs real sockets and memory (Figure 2.12, times to map and evict) is measured by ``python -m
benchmarks``. Real traces are read where they are, from ``--data FOLDER`` or the environment's ``FARSIDE_DATA``; without
them what needs them is skipped.
"""

import argparse
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import (
    autops_decisions,
    autops_log,
    autops_mixes,
    autops_sharing,
    autops_usage,
    cluster_figure,
    energy_saving,
    energy_sensitivity,
    eviction_curve,
    glet_interference,
    glet_schedulable,
    glet_throughput,
    glet_waves,
    harmony_decisions,
    harmony_figures,
    harmony_memory,
    headroom_trace,
    helios_philly,
    helios_preemption,
    ilp_growth,
    live_days,
    qssf_estimates,
    qssf_guard,
    qssf_philly,
    qssf_repeating,
    qssf_speed,
    tiresias_dimensions,
    tiresias_example,
    tiresias_placement,
    tiresias_queueing,
    tiresias_sensitivity,
    tiresias_simulation,
    tiresias_testbed,
)
from benchmarks.cluster_figure import Scale
from benchmarks.figure import Figure, as_text
from benchmarks.figure_plot import save_plot
from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.policy_runs import data_folder
from benchmarks.result import Machine

SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is simulated: the whole, or enough to see that it works. ``data``: where real traces may lie."""

    small: Scale
    large: Scale
    trials: int
    draws: tuple[int, ...]  # seeds of generated workloads
    seeds: tuple[int, ...]  # of workloads from which something is learned
    jobs: int  # of those
    pairs: tuple[tuple[int, int], ...]  # jobs and seeds of workloads whose draws are shown one by one
    names: tuple[int, ...]  # distinct ones, that are put into buckets
    clusters: int  # draws of jobs that share machines
    data: Path


FULL = Effort(
    small=Scale(machines=32, seeds=tuple(range(1, 11))),
    large=Scale(machines=1000, seeds=(SEED,)),
    trials=4000,
    draws=(1, 2, 3),
    seeds=(1, 2, 3, 4, 5, 6),
    jobs=16_000,
    pairs=(*((8000, seed) for seed in range(1, 9)), *((16_000, seed) for seed in range(1, 6))),
    names=(10_000, 100_000, 1_000_000),
    clusters=10,
    data=data_folder(None),
)
QUICK = Effort(
    small=Scale(machines=32, seeds=(1, 2, 3)),
    large=Scale(machines=100, seeds=(SEED,)),
    trials=400,
    draws=(1,),
    seeds=(1,),
    jobs=2000,
    pairs=((2000, 1),),
    names=(1000, 10_000),
    clusters=1,
    data=data_folder(None),
)

FIGURES: Mapping[str, Callable[[Effort], Figure]] = {
    "imbalance": lambda effort: cluster_figure.imbalance(effort.large.machines, seed=SEED),
    "cluster-memory": lambda effort: cluster_figure.utilisation((effort.small, effort.large)),
    "placement": lambda effort: cluster_figure.placement((effort.small, effort.large), skewed=effort.large),
    "eviction-curve": lambda effort: eviction_curve.figure(trials=effort.trials, seed=SEED),
    "headroom-trace": lambda effort: headroom_trace.figure(),
    "placement-ilp": lambda effort: ilp_growth.figure(is_quick=len(effort.draws) == 1, seed=SEED),
    "two-dimensional": lambda effort: tiresias_example.figure(),
    "dimensions": lambda effort: tiresias_dimensions.figure(seeds=effort.draws, data=effort.data),
    "testbed": lambda effort: tiresias_testbed.figure(seeds=effort.draws),
    "queueing": lambda effort: tiresias_queueing.figure(seeds=effort.draws),
    "fidelity": lambda effort: tiresias_testbed.fidelity(seeds=effort.draws),
    "placement-gain": lambda effort: tiresias_placement.figure(seeds=effort.draws),
    "simulation": lambda effort: tiresias_simulation.figure(seeds=effort.draws, data=effort.data),
    "sensitivity-las": lambda effort: tiresias_sensitivity.figure(
        tiresias_sensitivity.LAS, seeds=effort.draws, data=effort.data
    ),
    "sensitivity-gittins": lambda effort: tiresias_sensitivity.figure(
        tiresias_sensitivity.GITTINS, seeds=effort.draws, data=effort.data
    ),
    "helios-philly": lambda effort: helios_philly.figure(data=effort.data),
    "helios-preemption": lambda effort: helios_preemption.figure(data=effort.data),
    "energy-table-5": lambda effort: energy_saving.table_5(effort.data),
    "energy-risk": lambda effort: energy_saving.risk(effort.data),
    "energy-wake-ahead": lambda effort: energy_saving.wake_ahead(effort.data),
    "energy-other-weeks": lambda effort: energy_saving.other_weeks(effort.data),
    "energy-earth": lambda effort: energy_saving.earth(effort.data),
    "energy-sensitivity": lambda effort: energy_sensitivity.figure(effort.data),
    "qssf-philly": lambda effort: qssf_philly.figure(data=effort.data),
    "qssf-repeating": lambda effort: qssf_repeating.figure(jobs=effort.jobs // 2, seeds=effort.seeds),
    "qssf-draws": lambda effort: qssf_repeating.draws(effort.pairs),
    "qssf-guard": lambda effort: qssf_guard.figure(jobs=effort.jobs // 2, seed=SEED, data=effort.data),
    "qssf-estimates": lambda effort: qssf_estimates.figure(jobs=effort.jobs, seed=SEED),
    "live-days": lambda effort: live_days.figure(is_quick=effort.clusters == 1),
    "autops-sharing": lambda effort: autops_sharing.sharing(),
    "autops-scaling": lambda effort: autops_sharing.scaling(),
    "autops-log": lambda effort: autops_log.figure(effort.data),
    "autops-usage": lambda effort: autops_usage.servers(effort.data),
    "autops-cycles": lambda effort: autops_usage.losses(),
    "autops-decisions": lambda effort: autops_decisions.figure(
        cases=40 if len(effort.draws) > 1 else 10, jobs=1000 if len(effort.draws) > 1 else 100
    ),
    "autops-mixes": lambda effort: autops_mixes.figure(mixes=300 if len(effort.draws) > 1 else 30),
    "harmony-main": lambda effort: harmony_figures.main(range(1, effort.clusters + 1)),
    "harmony-rules": lambda effort: harmony_figures.rules(
        range(1, effort.clusters + 1), range(11, 11 + 2 * effort.clusters)
    ),
    "harmony-parts": lambda effort: harmony_figures.parts(range(1, effort.clusters + 1)),
    "harmony-mix": lambda effort: harmony_figures.mix(range(1, effort.clusters + 1)),
    "harmony-arrivals": lambda effort: harmony_figures.arrivals(range(1, effort.clusters + 1)),
    "harmony-error": lambda effort: harmony_figures.errors(
        range(1, effort.clusters + 1), (0.05, 0.1, 0.2, 0.4) if effort.clusters > 1 else (0.2,)
    ),
    "harmony-oracle": lambda effort: harmony_decisions.oracle(50 if effort.clusters > 1 else 5),
    "harmony-scale": lambda effort: harmony_decisions.scale(
        harmony_decisions.SIZES if effort.clusters > 1 else harmony_decisions.SIZES[:2]
    ),
    "harmony-eq1": lambda effort: harmony_decisions.eq1(300 if effort.clusters > 1 else 20),
    "harmony-alpha": lambda effort: harmony_memory.alpha(50 if effort.clusters > 1 else 10),
    "harmony-disks": lambda effort: harmony_memory.disks(range(1, min(2, effort.clusters) + 1)),
    "glet-latency": lambda effort: glet_interference.latency(effort.data),
    "glet-interference": lambda effort: glet_interference.interference(effort.data, seeds=effort.draws),
    "glet-schedulable": lambda effort: glet_schedulable.figure(effort.data, every=1 if len(effort.draws) > 1 else 20),
    "glet-throughput": lambda effort: glet_throughput.figure(
        effort.data, seconds=60.0 if len(effort.draws) > 1 else 10.0, seeds=effort.draws
    ),
    "glet-waves": lambda effort: glet_waves.figure(effort.data, whole_s=3200.0 if len(effort.draws) > 1 else 400.0),
    "qssf-refit": lambda effort: qssf_speed.refit(
        ended_jobs=effort.names[-2], waiting_jobs=effort.names[-2] // 10, seed=SEED
    ),
    "qssf-speed": lambda effort: qssf_speed.figure(name_counts=effort.names, history_jobs=effort.jobs, seed=SEED),
}


def _pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Jobs and seeds of draws; argparse shows the error."""
    found = [re.fullmatch(r"([0-9]{1,6}):([0-9]{1,6})", part) for part in text.split(",")]
    pairs = tuple((int(one[1]), int(one[2])) for one in found if one)
    if len(pairs) != len(found) or any(jobs < 100 for jobs, _ in pairs):
        raise argparse.ArgumentTypeError("give JOBS:SEED, of 100 jobs or more, with commas between several")
    return pairs


def main(arguments: list[str] | None = None) -> int:
    """Prints the figures that were asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"which of: {', '.join(FIGURES)}; else all")
    parser.add_argument("--quick", action="store_true", help="100 machines instead of 1,000, and fewer seeds")
    parser.add_argument("--draws", type=_pairs, metavar="JOBS:SEED,...", help="of qssf-draws, such as 8000:1,16000:5")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="folder of the real traces; default: FARSIDE_DATA")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables as JSON; other figures in it stay")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="save the plots of figures that have some, as SVG")
    options = parser.parse_args(arguments)
    unknown = set(options.figures) - set(FIGURES)
    if unknown:
        parser.error(f"no figure called {', '.join(sorted(unknown))}")
    effort = replace(QUICK if options.quick else FULL, data=data_folder(options.data))
    effort = replace(effort, pairs=options.draws or effort.pairs)
    machine = this_machine()
    made = []
    for key in options.figures or FIGURES:
        started_s = time.monotonic()
        figure = FIGURES[key](effort)
        made.append(figure)
        print(as_text(figure))
        for plot in figure.plots if options.plots else ():
            print(f"  plot: {save_plot(plot, options.plots)}")
        print(f"  ({key}: {time.monotonic() - started_s:.1f} s)\n", flush=True)
    if options.json:
        _write(options.json, made, machine, is_all=not options.figures)
    return 0


def _write(path: Path, made: Sequence[Figure], machine: Machine, *, is_all: bool) -> None:
    """Writes the file; figures of it that were not made stay as they are."""
    head = {"command": this_command("benchmarks.reproduce"), "commit": this_commit(), "machine": machine}
    shown = [replace(figure, plots=()) for figure in made]
    told: dict[str, Any] = {**head, "figures": shown}
    if path.exists() and not is_all:
        told = msgspec.json.decode(path.read_bytes())
        ours = {figure.key: msgspec.to_builtins(figure) | msgspec.to_builtins(head) for figure in shown}
        told["figures"] = [ours.pop(known["key"], known) for known in told["figures"]] + list(ours.values())
    path.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")


if __name__ == "__main__":
    sys.exit(main())
