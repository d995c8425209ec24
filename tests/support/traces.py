"""Small clusters and traces, and the real ones where this machine has them."""

import csv
import gzip
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import pytest

from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Cluster, Job, Node, VirtualCluster

# Real traces lie beside the checkout on the developers' machines; users have none.
CLUSTER_DATA = Path(__file__).parents[2].parent / "shared" / "data" / "cluster"


def flat_cluster(nodes: int, gpus_per_node: int, vc: str = "") -> Cluster:
    """One virtual cluster of equal nodes."""
    made = tuple(Node(name=f"n{at}", gpus=gpus_per_node) for at in range(nodes))
    return Cluster(virtual_clusters=(VirtualCluster(name=vc, nodes=made),))


def trace(rows: Iterable[tuple[float, float, int]], vc: str = "") -> list[TraceJob]:
    """Jobs of (submit_s, duration_s, gpus), in the order given for equal times."""
    ordered = sorted(enumerate(rows), key=lambda entry: entry[1][0])
    return [
        TraceJob(job=Job(job_id=str(at), sequence=sequence, submit_s=submit_s, gpus=gpus, vc=vc), duration_s=duration_s)
        for sequence, (at, (submit_s, duration_s, gpus)) in enumerate(ordered)
    ]


def seconds(written: str) -> float:
    """A time of day without a zone, as seconds of a time line without one."""
    return datetime.fromisoformat(written + "+00:00").timestamp()


def philly(vc: str, window: tuple[str, str] | None = None) -> list[TraceJob]:
    """Philly's jobs of one virtual cluster in the order of the file; skips where the data is not there."""
    path = CLUSTER_DATA / "jobs" / "philly_dev.csv.gz"
    if not path.exists():
        pytest.skip("no real traces on this machine")
    with gzip.open(path, "rt") as file:
        rows = [
            (
                datetime.fromisoformat(row["submit_time"] + "+00:00").timestamp(),
                float(row["duration"]),
                int(row["gpus"]),
            )
            for row in csv.DictReader(file)
            if row["vc"] == vc and (window is None or window[0] <= row["submit_time"] <= window[1])
        ]
    return trace(rows, vc)
