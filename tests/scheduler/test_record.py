"""What a recorder saw agrees with what the simulation says became of the jobs."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.las import Las
from farside.scheduler.order.srtf import Srtf
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.preemption_cost import SteppedCost
from farside.scheduler.sim.result import record
from farside.scheduler.sim.result.record import CAPACITY, STRANDED, USED, WAITING, Recorder, Recording, stranded_gpus
from farside.scheduler.sim.simulation import Run, Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Cluster, Demand
from tests.support.traces import flat_cluster, trace

Row = tuple[int, int, int, str]
CLUSTER = Cluster(
    virtual_clusters=(*flat_cluster(2, 4, "a").virtual_clusters, *flat_cluster(1, 4, "b").virtual_clusters)
)
rows_of_a_trace = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 40), st.sampled_from([1, 2, 3, 4]), st.sampled_from(["a", "b"])),
    min_size=1,
    max_size=25,
)
rules = st.sampled_from(
    [
        Rules(order=Fifo(), placement=Consolidate()),
        Rules(order=Fifo(is_strict=False), placement=CountOnly()),
        Rules(order=Srtf(), placement=Consolidate(), preemption_cost=SteppedCost()),
        Rules(order=Las(limits_gpu_s=(20.0,)), placement=Consolidate()),
    ]
)


def jobs_of(rows: list[Row]) -> list[TraceJob]:
    by_time = sorted(rows, key=lambda row: row[0])
    jobs = trace([(float(submit_s), float(duration_s), gpus) for submit_s, duration_s, gpus, _ in by_time])
    return [replace(job, job=replace(job.job, vc=row[3])) for job, row in zip(jobs, by_time, strict=True)]


def recorded(
    jobs: list[TraceJob], by: Rules, *, is_lending: bool = False, tick_s: float = 0.0
) -> tuple[Recording, list[Run]]:
    simulation = Simulation(CLUSTER, by, jobs, is_lending=is_lending, tick_s=tick_s)
    recorder = Recorder(simulation)
    runs = list(simulation.run())
    return recorder.finish(max(run.end_s for run in runs)), runs


@settings(deadline=None, max_examples=200)
@given(rows_of_a_trace, rules, st.booleans(), st.sampled_from([0.0, 7.0]))
def test_areas_and_segments_are_the_jobs_own_times(rows: list[Row], by: Rules, is_lending: bool, tick_s: float) -> None:
    jobs = jobs_of(rows)

    recording, runs = recorded(jobs, by, is_lending=is_lending, tick_s=tick_s)

    span_s = max(run.end_s for run in runs) - jobs[0].job.submit_s
    held_gpu_s = sum(run.held_s * job.job.gpus for run, job in zip(runs, jobs, strict=True))
    assert recording.series.mean[USED] * span_s == pytest.approx(held_gpu_s)
    assert recording.series.mean[CAPACITY] * span_s == pytest.approx(12 * span_s)
    if not tick_s:  # until the next tick a job that came is not in the queue yet
        queue_s = sum(run.end_s - job.job.submit_s - run.held_s for run, job in zip(runs, jobs, strict=True))
        assert recording.series.mean[WAITING] * span_s == pytest.approx(queue_s, abs=1e-6)
    if isinstance(by.placement, CountOnly):
        assert recording.all_segments == 0
    else:
        drawn = sum((one.end_s - one.start_s) * one.gpus for one in recording.segments)
        assert drawn == pytest.approx(held_gpu_s)


@settings(deadline=None, max_examples=40)
@given(rows_of_a_trace, rules, st.booleans())
def test_no_gpu_of_a_picture_has_two_jobs_at_once(rows: list[Row], by: Rules, is_lending: bool) -> None:
    recording, _ = recorded(jobs_of(rows), by, is_lending=is_lending)

    lanes: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for one in recording.segments:
        assert one.first_gpu + one.gpus <= 4
        for lane in range(one.first_gpu, one.first_gpu + one.gpus):
            lanes[one.vc, one.node, lane].append((one.start_s, one.end_s))
    for times in lanes.values():
        times.sort()
        assert all(ends <= starts for (_, ends), (starts, _) in pairwise(times))


def test_only_the_longest_segments_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "SEGMENTS", 2)
    jobs = jobs_of([(0, 5, 4, "b"), (0, 9, 4, "b"), (0, 2, 4, "b"), (0, 7, 4, "b")])

    recording, _ = recorded(jobs, Rules(order=Fifo(), placement=Consolidate()))

    assert recording.all_segments == 4
    assert sorted(one.end_s - one.start_s for one in recording.segments) == [7.0, 9.0]


def test_free_gpus_beside_others_are_stranded_those_of_idle_nodes_are_not() -> None:
    nodes = flat_cluster(3, 4).virtual_clusters[0].nodes
    ledger, pool = Consolidate().ledger(nodes), CountOnly().ledger(nodes)
    for one in (ledger, pool):
        one.take(Demand(gpus=3), ((0, 3),))

    assert (stranded_gpus(ledger), stranded_gpus(pool)) == (1, 0)


def test_fragmentation_is_seen_while_it_lasts() -> None:
    recording, _ = recorded(jobs_of([(0, 10, 3, "a"), (0, 10, 4, "b")]), Rules(order=Fifo(), placement=Consolidate()))

    assert recording.series.peak[STRANDED] == 1
    assert recording.fragmentation == pytest.approx(1 / 12)
    assert recording.utilisation == pytest.approx(7 / 12)
