"""Measure the average cost of QSSF's guard against starvation, and its gain at the tail."""

from pathlib import Path

from benchmarks.figure import Figure, Row, Table
from benchmarks.qssf_repeating import FIFO, SJF, qssf
from benchmarks.qssf_runs import Lesson, Take, lesson, outcomes
from farside.cli.sim import Request
from farside.cli.simulate.request import prepare

# Complete virtual clusters of Philly's, on so few nodes that their queues grow for weeks.
BUSY = (("2869ce", 8), ("7f04ca", 20))
PATIENCE = ("inf", "672h", "336h", "168h", "72h")
SHARES = ("0.1", "0.4")
DEFAULT = "336h"


def figure(*, jobs: int, seed: int, data: Path) -> Figure:
    """A table for each workload."""
    path = data / "cluster" / "jobs" / "philly_dev.csv.gz"
    stages = [(f"Made trace, {jobs:,} jobs of users that repeat themselves, load 0.9", lesson(jobs, seed))]
    if path.exists():
        stages += [(f"Philly's {vc} on {nodes} nodes", _philly(path, vc, nodes)) for vc, nodes in BUSY]
    missing = () if path.exists() else (f"Philly's virtual clusters are skipped: there is no {path}.",)
    return Figure(
        key="qssf-guard",
        title="QSSF's guard: average against the 95th percentile, over FIFO's",
        source="ours; helios §4.2 has no guard",
        tables=tuple(_table(caption, stage) for caption, stage in stages),
        notes=(
            "To reach by default (patience 336 h, overtaking share 0.2): the 95th percentile within 10 % of FIFO's, the"
            " average at least 15 % below.",
            "Philly's log has neither users nor names, so GPUs decide there.",
            *missing,
        ),
    )


def _philly(path: Path, vc: str, nodes: int) -> Lesson:
    request = Request(trace=path, policy="fifo", gpus_per_node=8, nodes=nodes, vc=[vc])
    return Lesson(past=(), scene=prepare(request).scene)


def _table(caption: str, stage: Lesson) -> Table:
    takes = [FIFO, SJF]
    takes += [_take(patience, "0.2") for patience in PATIENCE]
    takes += [_take(DEFAULT, share) for share in SHARES]
    found = outcomes(takes, stage.scene, stage.past)
    fifo = found[FIFO.label].results.all
    rows: list[Row] = []
    for take in takes:
        own = found[take.label].results.all
        rows.append(
            (
                take.label, f"{own.avg_jct_s:.0f}", f"{own.avg_jct_s / fifo.avg_jct_s:.2f}",
                f"{own.p95_jct_s / fifo.p95_jct_s:.2f}", f"{own.max_jct_s / fifo.max_jct_s:.2f}",
            )
        )  # fmt: skip
    header = ("", "average JCT s", "average", "95th", "longest")
    return Table(caption=f"{caption}; JCT over FIFO's", header=header, rows=tuple(rows))


def _take(patience: str, share: str) -> Take:
    label = "QSSF, no guard" if patience == "inf" else f"QSSF, patience {patience}, share {share}"
    return qssf("model", label, ("patience_s", patience), ("overtaking_share", share))
