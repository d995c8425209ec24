"""SRTF preempts jobs by a count of GPUs, as Helios's published simulator does, or planned with the placement.

The published averages of Philly's other virtual clusters can be met only with all of their jobs. Of five of them the
data has a part: these jobs run here on fewer nodes, so that they queue, under both rules.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.figure import Figure, Row, Table
from benchmarks.helios_philly import CONSOLIDATED, PLAYS, Expected
from benchmarks.policy_runs import Play, Stage, missing, outcomes, philly, philly_file
from farside.scheduler.sim.experiment import Scene
from farside.scheduler.sim.result.figures import Results
from farside.scheduler.sim.trace.job import TraceJob

SRTF = PLAYS["srtf"]
BY_COUNT = Play(
    label="SRTF by count",
    policy="srtf",
    placement="consolidate",
    settings=(CONSOLIDATED, ("cost", "helios"), ("preempts_by", "count")),
)
# Nodes on which the jobs that are there ask for 70 to 90 % of all GPU time. ed69ec is left out: all its jobs have one
# GPU, so that whoever is counted has a place.
BUSY = (("2869ce", 10), ("7f04ca", 22), ("6214e9", 8), ("b436b2", 7), ("103959", 3), ("11cb48", 2))
ORDERS = 5  # of jobs that came in one second, beside that of the file


def figure(*, data: Path) -> Figure:
    """Both rules beside each other, and the published averages where all jobs are there."""
    path = data / "cluster" / "expected.json"
    tables: tuple[Table, ...] = ()
    if path.exists() and philly_file(data).exists():
        expected = msgspec.json.decode(path.read_bytes(), type=Expected)
        stages = tuple((vc, philly(data, vc, nodes, expected.window)) for vc, nodes in BUSY)
        tables = (_published(data, expected), _busy(stages), _same_second(stages))
    return Figure(
        key="helios-preemption",
        title="Whom SRTF preempts: by a count of GPUs, or planned with the placement",
        source="helios §4.2.3, Table 3 (per virtual cluster: its published notebook and simulator)",
        tables=tables,
        notes=(
            "Under SRTF the published simulator ends each job a second late, so by count each runs a second longer.",
            "The published simulator also orders by what resuming costs; the first table shows how little that does.",
            "The order of jobs of one second is an accident there, of an unstable sort of all virtual clusters.",
            *missing(data),
        ),
    )


def _published(data: Path, expected: Expected) -> Table:
    rows: list[Row] = []
    for vc, told in expected.vc.items():
        nodes, published = told["nodes"], told["srtf"]
        assert isinstance(nodes, int)
        assert isinstance(published, tuple)
        both = _both(philly(data, vc, nodes, expected.window))
        for label, found in zip(("by count", "by placement"), both, strict=True):
            cells = (f"{found.all.avg_jct_s:.1f}", f"{published[0]:g}", f"{found.all.avg_queue_s:.1f}")
            rows.append((f"{vc} {label}", *cells, f"{published[1]:g}", str(found.all.preemptions)))
    header = ("", "average JCT s", "paper", "average queue s", "paper", "preemptions")
    return Table(caption="SRTF on all jobs, on the published nodes", header=header, rows=tuple(rows))


def _busy(stages: Iterable[tuple[str, Stage]]) -> Table:
    rows: list[Row] = []
    for vc, stage in stages:
        count, placement = _both(stage)
        share = placement.all.avg_jct_s / count.all.avg_jct_s
        rows.append(
            (
                vc, str(len(stage.scenes[0].jobs)), stage.name.split(" on ")[1], f"{count.all.avg_jct_s:.0f}",
                f"{placement.all.avg_jct_s:.0f}", f"{share:.3f}", f"{count.all.avg_queue_s:.0f}",
                f"{placement.all.avg_queue_s:.0f}", str(count.all.preemptions), str(placement.all.preemptions),
            )
        )  # fmt: skip
    header = (
        "", "jobs", "on", "JCT by count s", "by placement s", "of it", "queue by count s", "queue by placement s",
        "preemptions by count", "preemptions by placement",
    )  # fmt: skip
    return Table(caption="SRTF on the jobs that are there, on few nodes", header=header, rows=tuple(rows))


def _same_second(stages: Iterable[tuple[str, Stage]]) -> Table:
    rows: list[Row] = []
    for vc, stage in stages:
        scene = stage.scenes[0]
        cells: list[str] = []
        scenes = [scene, *(_shuffled(scene, seed) for seed in range(ORDERS))]
        found = [outcomes(one, [PLAYS["fifo"], PLAYS["sjf"]]) for one in scenes]
        for at in range(2):
            first, *others = (outcome[at].results.all.avg_jct_s for outcome in found)
            percent = [100 * (other / first - 1) for other in others]
            cells += [f"{first:.0f}", f"{min(percent):+.2f}", f"{max(percent):+.2f}"]
        alike = len(scene.jobs) - len({one.job.submit_s for one in scene.jobs})
        rows.append((vc, str(alike), *cells))
    header = ("", "with an earlier job in its second", "FIFO s", "least %", "most %", "SJF s", "least %", "most %")
    caption = f"Average JCT in the file's order, and by how much {ORDERS} other orders of jobs of one second change it"
    return Table(caption=caption, header=header, rows=tuple(rows))


def _both(stage: Stage) -> tuple[Results, Results]:
    (scene,) = stage.scenes
    late = replace(scene, jobs=tuple(replace(one, duration_s=one.duration_s + 1) for one in scene.jobs))
    return outcomes(late, [BY_COUNT])[0].results, outcomes(scene, [SRTF])[0].results


def _shuffled(scene: Scene, seed: int) -> Scene:
    """Jobs of the same second change places. All are of one virtual cluster."""
    draw = random.Random(seed)
    drawn = sorted(scene.jobs, key=lambda one: (one.job.submit_s, draw.random()))
    return replace(scene, jobs=tuple(_numbered(one, at) for at, one in enumerate(drawn)))


def _numbered(one: TraceJob, sequence: int) -> TraceJob:
    return replace(one, job=replace(one.job, sequence=sequence))
