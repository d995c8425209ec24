"""What the authors' simulator gives under its other policies, only GPUs counted. Skips where there are no traces."""

import pytest

from farside.scheduler.domain import Rules
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from tests.support.traces import flat_cluster, philly


def average_s(policy: str, jobs: list[TraceJob], nodes: int, gpus_per_node: int, vc: str = "") -> float:
    rules = Rules(order=make_order(policy, {}), placement=CountOnly())
    runs = Simulation(flat_cluster(nodes, gpus_per_node, vc), rules, jobs).run()
    return sum(run.end_s - job.job.submit_s for run, job in zip(runs, jobs, strict=True)) / len(jobs)


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
