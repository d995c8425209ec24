"""QSSF on Philly's complete virtual clusters: with the noise of Helios's experiment, and with what can be learned."""

from pathlib import Path
from statistics import mean, stdev

import msgspec

from benchmarks.figure import Figure, Row, Table
from benchmarks.qssf_runs import HeliosNoise, Take, average_with, outcomes
from farside.cli.sim import Request
from farside.cli.simulate.request import prepare
from farside.scheduler.sim.estimator import Foreknown, past_of
from farside.scheduler.sim.experiment import Scene
from farside.scheduler.sim.trace.read import read_trace

_AS_PUBLISHED = (("remainder_on_fullest", "true"), ("patience_s", "inf"))
QSSF = Take(label="QSSF", policy="qssf", settings=_AS_PUBLISHED)
SEEDS = range(10)


class Expected(msgspec.Struct, frozen=True):
    """What was published: of each virtual cluster its nodes, and [average JCT s, average queueing delay s]."""

    window: tuple[str, str]
    vc: dict[str, dict[str, int | tuple[float, float]]]


def figure(*, data: Path) -> Figure:
    """A table a virtual cluster; none where there is no data."""
    path, log = data / "cluster" / "expected.json", data / "cluster" / "jobs" / "philly_dev.csv.gz"
    is_there = path.exists() and log.exists()
    expected = msgspec.json.decode(path.read_bytes(), type=Expected) if is_there else None
    return Figure(
        key="qssf-philly",
        title="QSSF on two of Philly's virtual clusters, October and November 2017",
        source="helios §4.2.3, Table 3, Figure 13",
        tables=tuple(_table(log, vc, expected) for vc in expected.vc) if expected else (),
        notes=(
            "Noise: the truth and an error drawn as in the published code, mean and standard deviation of 10 seeds. As"
            " coded, 15 % of the priorities are negative and go first; folded, the same errors divide where they would"
            " subtract too much.",
            "Learned: from all of Philly that had ended on November 1, then as jobs end; November's jobs. The log has"
            " neither users nor names, so that a model ranks hardly better than the number of GPUs.",
            *(() if is_there else (f"Skipped: there is no {path} or no {log}.",)),
        ),
    )


def _scene(log: Path, vc: str, nodes: int, window: tuple[str, str]) -> Scene:
    return prepare(
        Request(
            trace=log, policy="fifo", gpus_per_node=8, nodes=nodes, vc=[vc],
            from_time=window[0], to_time=window[1],
        )
    ).scene  # fmt: skip


def _table(log: Path, vc: str, expected: Expected) -> Table:
    told = expected.vc[vc]
    nodes = told["nodes"]
    assert isinstance(nodes, int)
    scene = _scene(log, vc, nodes, expected.window)
    rows = _published(scene, told)
    for label, is_folded in (("QSSF, noise as coded", False), ("QSSF, noise folded", True)):
        drawn = [
            average_with(Foreknown(HeliosNoise(seed, is_folded=is_folded), scene.jobs), QSSF, scene) for seed in SEEDS
        ]
        jct_s, queue_s = ([one[at] for one in drawn] for at in (0, 1))
        rows.append((label, f"{mean(jct_s):.0f} +- {stdev(jct_s):.0f}", _paper(told, "qssf_paper_noise", 0),
                     f"{mean(queue_s):.0f}", _paper(told, "qssf_paper_noise", 1)))  # fmt: skip
    rows += _learned(log, vc, nodes, expected.window[1])
    header = ("", "average JCT s", "paper", "average queue s", "paper")
    return Table(caption=f"{vc}, {nodes} nodes of 8 GPUs, {len(scene.jobs)} jobs", header=header, rows=tuple(rows))


def _published(scene: Scene, told: dict[str, int | tuple[float, float]]) -> list[Row]:
    takes = [
        Take(label="fifo", policy="fifo", settings=_AS_PUBLISHED[:1]),
        Take(label="sjf", policy="sjf", settings=_AS_PUBLISHED[:1]),
        Take(label="srtf", policy="srtf", settings=(*_AS_PUBLISHED[:1], ("cost", "helios"))),
    ]
    found = outcomes(takes, scene)
    return [
        (name.upper(), f"{one.results.all.avg_jct_s:.0f}", _paper(told, name, 0),
         f"{one.results.all.avg_queue_s:.0f}", _paper(told, name, 1))
        for name, one in found.items()
    ]  # fmt: skip


def _learned(log: Path, vc: str, nodes: int, until: str) -> list[Row]:
    scene = _scene(log, vc, nodes, ("2017-11-01", until))
    past = past_of(read_trace(log).jobs, scene.jobs[0].job.submit_s)
    takes = [Take(label="November: FIFO", policy="fifo")] + [
        Take(label=f"November: QSSF by {name}", policy="qssf", settings=(("estimator", name),))
        for name in ("model", "rolling", "gpus")
    ]
    return [
        (label, f"{one.results.all.avg_jct_s:.0f}", "-", f"{one.results.all.avg_queue_s:.0f}", "-")
        for label, one in outcomes(takes, scene, past).items()
    ]


def _paper(told: dict[str, int | tuple[float, float]], policy: str, at: int) -> str:
    found = told.get(policy)
    return f"{found[at]:.0f}" if isinstance(found, tuple) else "-"
