"""What the authors' simulator gives under its other policies, only GPUs counted. Skips where there are no traces."""

import csv

import pytest

from farside.scheduler.domain import Rules
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.count import CountOnly
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace import TraceJob
from tests.support.traces import CLUSTER_DATA, flat_cluster, philly, trace

LIMITS = {"las": {"limits_gpu_s": "3250,7200"}}


def average_s(policy: str, jobs: list[TraceJob], nodes: int, gpus_per_node: int, vc: str = "") -> float:
    rules = Rules(order=make_order(policy, LIMITS.get(policy, {})), placement=CountOnly())
    runs = Simulation(flat_cluster(nodes, gpus_per_node, vc), rules, jobs).run()
    return sum(run.end_s - job.job.submit_s for run, job in zip(runs, jobs, strict=True)) / len(jobs)


def sixty_jobs() -> list[TraceJob]:
    path = CLUSTER_DATA / "jobs" / "tiresias_60_job.csv"
    if not path.exists():
        pytest.skip("no real traces on this machine")
    with path.open() as file:
        rows = [
            (float(row["submit_time"]), float(row["duration"]), int(row["num_gpu"])) for row in csv.DictReader(file)
        ]
    return trace(rows)


@pytest.mark.parametrize(
    ("nodes", "policy", "expected_s"),
    [
        (4, "fifo", 200.8),
        (4, "best-effort", 190.7),
        (4, "sf", 198.2),
        (4, "srtf", 192.1),
        (4, "srsf", 195.9),
        (4, "las", 190.7),
        (2, "fifo", 1556.5),
        (2, "srtf", 519.9),
        (2, "srsf", 563.4),
        (2, "las", 715.3),
        *(
            (15, policy, 178.4)
            for policy in ("fifo", "best-effort", "sf", "srtf", "srsf", "las", "gittins", "timeshare")
        ),
        *(
            (32, policy, 178.4)
            for policy in ("fifo", "best-effort", "sf", "srtf", "srsf", "las", "gittins", "timeshare")
        ),
    ],
)
def test_the_authors_60_jobs(nodes: int, policy: str, expected_s: float) -> None:
    assert average_s(policy, sixty_jobs(), nodes, 4) == pytest.approx(expected_s, abs=0.05)


@pytest.mark.parametrize(
    ("vc", "nodes", "policy", "expected_s"),
    [
        ("2869ce", 8, "best-effort", 480_105),
        ("2869ce", 8, "srtf", 180_116),
        ("2869ce", 8, "srsf", 172_684),
        ("7f04ca", 20, "best-effort", 1_014_146),
        ("7f04ca", 20, "srtf", 358_075),
        ("7f04ca", 20, "srsf", 322_480),
    ],
)
def test_two_of_phillys_virtual_clusters(vc: str, nodes: int, policy: str, expected_s: float) -> None:
    assert average_s(policy, philly(vc), nodes, 8, vc) == pytest.approx(expected_s, abs=0.6)
