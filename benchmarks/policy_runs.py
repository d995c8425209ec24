"""Traces under several policies, for the tables of papers: each run is what `farside sim` runs, with its settings.

Ratios are made a trace at a time, and then their median is taken over the draws of a generated workload, with the span
behind it where there are several draws.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.figure import Row, Table
from farside.cli.sim import Request
from farside.cli.simulate.parallel import run_all
from farside.cli.simulate.request import prepare
from farside.scheduler.sim.cluster import build_site
from farside.scheduler.sim.experiment import Outcome, Scene, make_experiments
from farside.scheduler.sim.result.figures import Results
from farside.scheduler.sim.workload.catalog import TIRESIAS_480, named

TESTBED_NODES, TESTBED_GPUS_PER_NODE = 15, 4  # [tiresias §3.5.1]
PHILLY_GPUS_PER_NODE = 8
# Two virtual clusters of Philly's of which every job is there, on so few nodes that they are busy: as the authors'
# simulator is known to answer for them.
BUSY_PHILLY = (("2869ce", 8), ("7f04ca", 20))

Value = Callable[[Results], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """A policy with its settings, and what a table calls it."""

    label: str
    policy: str
    placement: str = ""
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A workload on its cluster; several scenes are draws of the same workload."""

    name: str
    scenes: tuple[Scene, ...]


def data_folder(given: Path | None) -> Path:
    """Where real traces lie: as given, else ``FARSIDE_DATA``, else beside the checkout. It need not be there."""
    told = given or os.environ.get("FARSIDE_DATA")
    return Path(told) if told else Path(__file__).resolve().parents[2] / "shared" / "data"


def the_testbed(seeds: Sequence[int]) -> Stage:
    """The paper's 480 jobs on its 60 GPUs, a draw for each seed."""
    return Stage(name=f"{TIRESIAS_480} on 60 GPUs", scenes=tuple(_drawn(seed) for seed in seeds))


@cache
def _drawn(seed: int) -> Scene:
    trace = named(TIRESIAS_480, np.random.default_rng(seed))
    site = build_site(nodes=TESTBED_NODES, gpus_per_node=TESTBED_GPUS_PER_NODE)
    return Scene(site=site, jobs=trace.jobs, labels=tuple(job.job.vc for job in trace.jobs))


def philly_file(data: Path) -> Path:
    """Philly's jobs."""
    return data / "cluster" / "jobs" / "philly_dev.csv.gz"


@cache
def philly(data: Path, vc: str, nodes: int, window: tuple[str, str] = ("", "")) -> Stage:
    """One of Philly's virtual clusters on so many nodes, the jobs submitted in a window.

    Raises:
        ConfigError: The file is not there, or not as it should be.
    """
    request = Request(
        trace=philly_file(data),
        policy="fifo",
        gpus_per_node=PHILLY_GPUS_PER_NODE,
        nodes=nodes,
        vc=[vc],
        from_time=window[0],
        to_time=window[1],
    )
    gpus = nodes * PHILLY_GPUS_PER_NODE
    return Stage(name=f"Philly's {vc} on {gpus} GPUs", scenes=(prepare(request).scene,))


def stages(seeds: Sequence[int], data: Path) -> tuple[Stage, ...]:
    """The generated workload, and the real ones where they are."""
    real = [philly(data, vc, nodes) for vc, nodes in BUSY_PHILLY] if philly_file(data).exists() else []
    return (the_testbed(seeds), *real)


def missing(data: Path) -> tuple[str, ...]:
    """The note that real traces are not there; none where they are."""
    path = philly_file(data)
    return () if path.exists() else (f"Philly's virtual clusters are skipped: there is no {path} (--data FOLDER).",)


def outcomes(scene: Scene, plays: Sequence[Play]) -> tuple[Outcome, ...]:
    """What comes of each, in their order."""
    experiments = [make_experiments((play.policy,), dict(play.settings), placement=play.placement)[0] for play in plays]
    return run_all(experiments, scene, is_keeping_segments=False, tell=lambda at, share: None)


def results_of(stage: Stage, plays: Sequence[Play]) -> list[tuple[Results, ...]]:
    """For each play its results, one a scene."""
    by_scene = [tuple(outcome.results for outcome in outcomes(scene, plays)) for scene in stage.scenes]
    return list(zip(*by_scene, strict=True))


def over(values: Sequence[float], pattern: str = ".2f") -> str:
    """The median of draws, with their span where there are several."""
    span = f" ({min(values):{pattern}}-{max(values):{pattern}})" if len(values) > 1 else ""
    return f"{median(values):{pattern}}{span}"


def ratio_table(
    stage: Stage, plays: Sequence[Play], base: Play, columns: Sequence[tuple[str, Value]], papers: Mapping[str, Row]
) -> Table:
    """Figures of plays over those of another one, each beside the paper's; and how often each preempted."""
    *compared, against = results_of(stage, (*plays, base))
    rows: list[Row] = []
    for play, found in zip(plays, compared, strict=True):
        cells: list[str] = []
        for at, (_, value) in enumerate(columns):
            ratios = [value(ours) / value(theirs) for ours, theirs in zip(found, against, strict=True)]
            cells += [over(ratios), papers[play.label][at] if play.label in papers else "-"]
        rows.append((play.label, *cells, over([float(ours.all.preemptions) for ours in found], ".0f")))
    header = ("", *(title for name, _ in columns for title in (name, "paper")), "preemptions")
    return Table(caption=f"{stage.name}, over {base.label}'s", header=header, rows=tuple(rows))


AVERAGE: tuple[str, Value] = ("average", lambda results: results.all.avg_jct_s)
MEDIAN: tuple[str, Value] = ("median", lambda results: results.all.median_jct_s)
P95: tuple[str, Value] = ("95th", lambda results: results.all.p95_jct_s)
LONGEST: tuple[str, Value] = ("longest", lambda results: results.all.max_jct_s)
