"""What the authors' simulator answers, on its own trace of 60 jobs and on two of Philly's clusters. Skips without them.

Settings that reproduce each column, on nodes of four GPUs: ``fifo`` is the order ``fifo`` with the placement named,
"first job that fits" is ``best-effort``, "fewest GPUs" is ``sf``, and ``dlas`` is ``las`` with
``limits_gpu_s=3250,7200``. All but the first column only count GPUs, whatever placement they are told. Their columns
``gittins`` and ``dlas-gpu-gittins`` rest on mistakes that are not copied.
"""

import csv
from collections.abc import Mapping
from statistics import fmean

import numpy as np
import pytest

from farside.scheduler.domain import Rules
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from tests.support.traces import CLUSTER_DATA, flat_cluster, philly, trace

DLAS = {"limits_gpu_s": "3250,7200"}
# order, its settings, placement: average, median and 95th percentile of the JCT on four nodes, seconds
ON_FOUR_NODES: tuple[tuple[str, Mapping[str, str], str, float, float, float], ...] = (
    ("fifo", {}, "yarn", 219.2, 178.5, 370.2),
    ("yarn-cs", {}, "yarn", 219.2, 178.5, 370.2),
    ("fifo", {}, "count", 200.8, 149.5, 366.1),
    ("best-effort", {}, "count", 190.7, 130.0, 366.1),
    ("sf", {}, "count", 198.2, 126.5, 463.9),
    ("srtf", {}, "count", 192.1, 126.5, 386.8),
    ("srsf", {}, "count", 195.9, 126.5, 461.9),
    ("las", DLAS, "count", 190.7, 130.0, 366.1),
    ("las", {**DLAS, "within": "start_time"}, "count", 190.7, 130.0, 366.1),
)
# average and 95th percentile on two
ON_TWO_NODES: tuple[tuple[str, Mapping[str, str], float, float], ...] = (
    ("fifo", {}, 1556.5, 3897.7),
    ("srtf", {}, 519.9, 2832.6),
    ("srsf", {}, 563.4, 2994.3),
    ("las", DLAS, 715.3, 3388.1),
)
WITHIN = 0.001


def jobs_of_the_testbed() -> list[TraceJob]:
    path = CLUSTER_DATA / "jobs" / "tiresias_60_job.csv"
    if not path.exists():
        pytest.skip("no real traces on this machine")
    with path.open() as file:
        return trace(
            (float(row["submit_time"]), float(row["duration"]), int(row["num_gpu"])) for row in csv.DictReader(file)
        )


def jct_s(jobs: list[TraceJob], nodes: int, order: str, settings: Mapping[str, str], placement: str) -> list[float]:
    rules = Rules(order=make_order(order, settings), placement=make_placement(placement, {}))
    runs = Simulation(flat_cluster(nodes, 4), rules, jobs).run()
    return [run.end_s - job.job.submit_s for run, job in zip(runs, jobs, strict=True)]


@pytest.mark.parametrize(("order", "settings", "placement", "average", "median", "p95"), ON_FOUR_NODES)
def test_the_testbed_trace_on_four_nodes(
    order: str, settings: Mapping[str, str], placement: str, average: float, median: float, p95: float
) -> None:
    found = jct_s(jobs_of_the_testbed(), 4, order, settings, placement)

    assert fmean(found) == pytest.approx(average, rel=WITHIN)
    assert np.median(found) == pytest.approx(median, rel=WITHIN)
    assert np.percentile(found, 95) == pytest.approx(p95, rel=WITHIN)


@pytest.mark.parametrize(("order", "settings", "average", "p95"), ON_TWO_NODES)
def test_the_testbed_trace_on_two_nodes(order: str, settings: Mapping[str, str], average: float, p95: float) -> None:
    found = jct_s(jobs_of_the_testbed(), 2, order, settings, "count")

    assert fmean(found) == pytest.approx(average, rel=WITHIN)
    assert np.percentile(found, 95) == pytest.approx(p95, rel=WITHIN)


@pytest.mark.parametrize("nodes", [15, 32])
@pytest.mark.parametrize(
    ("order", "settings", "placement"),
    [*(row[:3] for row in ON_FOUR_NODES), ("gittins", {}, "count"), ("timeshare", {}, "count")],
)
def test_with_room_for_all_policies_do_not_differ(
    nodes: int, order: str, settings: Mapping[str, str], placement: str
) -> None:
    found = jct_s(jobs_of_the_testbed(), nodes, order, settings, placement)

    assert fmean(found) == pytest.approx(178.4, rel=WITHIN)
    assert np.median(found) == pytest.approx(125.0, rel=WITHIN)
    assert np.percentile(found, 95) == pytest.approx(308.1, rel=WITHIN)


@pytest.mark.parametrize(("vc", "nodes", "expected_s"), [("2869ce", 8, 991_216), ("7f04ca", 20, 1_882_355)])
def test_first_fit_on_two_philly_clusters_agrees_to_the_second(vc: str, nodes: int, expected_s: int) -> None:
    jobs = philly(vc)
    rules = Rules(order=make_order("fifo", {}), placement=make_placement("yarn", {}))

    runs = Simulation(flat_cluster(nodes, 8, vc), rules, jobs).run()

    assert fmean(run.end_s - job.job.submit_s for run, job in zip(runs, jobs, strict=True)) == pytest.approx(
        expected_s, abs=0.5
    )
