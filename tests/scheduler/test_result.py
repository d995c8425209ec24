"""Figures of a simulation, against sums by hand."""

import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.srtf import Srtf
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.preemption_cost import SteppedCost
from farside.scheduler.sim.cluster import build_site
from farside.scheduler.sim.experiment import Scene, make_experiments, run_experiment
from farside.scheduler.sim.result.column import COLUMNS, Best, Column, best_of
from farside.scheduler.sim.result.figures import (
    Results,
    average_gpus,
    average_jobs,
    finish_time_fairness,
    jain_index,
    results,
)
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.workload.catalog import named
from farside.scheduler.state import Resize, VirtualCluster
from tests.support.traces import flat_cluster, trace


def of(jobs: list[TraceJob], rules: Rules, gpus: int = 4, vcs: list[str] | None = None) -> Results:
    cluster = flat_cluster(1, gpus)
    return results(jobs, Simulation(cluster, rules, jobs).run(), cluster, vcs=vcs)


STRICT = Rules(order=Fifo(), placement=CountOnly())


def test_three_jobs_by_hand() -> None:
    found = of(trace([(0.0, 100.0, 4), (10.0, 50.0, 4), (20.0, 30.0, 2)]), STRICT)

    assert found.jct_s.tolist() == [100.0, 140.0, 160.0]
    assert found.queue_s.tolist() == [0.0, 90.0, 130.0]
    assert [found.all.avg_jct_s, found.all.median_jct_s, found.all.max_jct_s] == pytest.approx([400 / 3, 140.0, 160.0])
    assert found.all.p95_jct_s == pytest.approx(158.0)
    assert [found.all.avg_queue_s, found.all.queued_jobs] == pytest.approx([220 / 3, 2])
    assert (found.all.makespan_s, found.all.preemptions) == (180.0, 0)


@pytest.mark.parametrize("policy", ["srtf", "las", "gittins", "timeshare"])
def test_what_a_job_held_is_its_run_time_and_the_cost_of_its_preemptions(policy: str) -> None:
    """However often it is moved, also within one instant."""
    jobs = named("tiresias-480", np.random.default_rng(1)).jobs
    scene = Scene(site=build_site(nodes=15, gpus_per_node=4), jobs=jobs, labels=("",) * len(jobs))
    (experiment,) = make_experiments((policy,), {"cost": "model"}, placement="skew")

    found = run_experiment(experiment, scene).results

    assert found.all.preemptions > 0
    assert found.held_s == pytest.approx(found.duration_s + found.cost_s, abs=1e-5)


def test_who_is_preempted_before_it_makes_progress_has_paid_only_what_it_held() -> None:
    rules = Rules(order=Srtf(), placement=CountOnly(), preemption_cost=SteppedCost(one_s=50))
    # the long job is put aside at 10, goes on at 30, and is put aside again at 40, when 40 of its 50 s are to come
    jobs = trace([(0, 200, 1), (10, 20, 1), (40, 20, 1)])

    run = Simulation(flat_cluster(1, 1), rules, jobs).run()[0]

    assert (run.preemptions, run.cost_s) == (2, 60.0)
    assert run.held_s == 200 + run.cost_s


def test_a_preemption_counts_with_its_cost_and_the_wait_after_it() -> None:
    rules = Rules(order=Srtf(), placement=CountOnly(), preemption_cost=SteppedCost())

    found = of(trace([(0.0, 100.0, 4), (10.0, 20.0, 4)]), rules)

    assert found.end_s.tolist() == [10.0 + 20.0 + 30.0 + 90.0, 30.0]
    assert found.queue_s.tolist() == [20.0, 0.0]
    assert (found.all.preemptions, found.all.preemption_cost_s) == (1, 30.0)


def test_bins_groups_and_labels_part_the_jobs() -> None:
    rows = [(0.0, 60.0, 1), (0.0, 800.0, 4), (0.0, 5 * 3600.0, 8), (0.0, 7 * 3600.0, 16)]
    jobs = trace(rows)

    found = of(jobs, STRICT, gpus=64, vcs=["x", "y", "x", "x"])

    assert {name: one.jobs for name, one in found.by_bin.items()} == {"SS": 2, "SL": 1, "LS": 0, "LL": 1}
    assert {name: one.jobs for name, one in found.by_scaled_bin.items()} == {"SS": 1, "SL": 1, "LS": 0, "LL": 2}
    assert {name: one.jobs for name, one in found.by_group.items()} == {"short": 2, "middle": 1, "long": 1}
    assert {name: one.jobs for name, one in found.by_vc.items()} == {"x": 3, "y": 1}
    assert math.isnan(found.by_bin["LS"].avg_jct_s)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40), st.sampled_from([1, 2, 4])), min_size=1, max_size=25),
    st.data(),
)
def test_groups_add_up_to_all(rows: list[tuple[int, int, int]], data: st.DataObject) -> None:
    jobs = trace((float(submit), float(duration), gpus) for submit, duration, gpus in rows)
    vcs = data.draw(st.lists(st.sampled_from(["x", "y"]), min_size=len(jobs), max_size=len(jobs)))
    rules = Rules(order=Srtf(), placement=CountOnly(), preemption_cost=SteppedCost())

    found = of(jobs, rules, vcs=vcs)

    for groups in (found.by_vc, found.by_bin, found.by_scaled_bin, found.by_group):
        filled = [one for one in groups.values() if one.jobs]
        assert sum(one.jobs for one in filled) == len(jobs)
        assert sum(one.preemptions for one in filled) == found.all.preemptions
        for name in ("avg_jct_s", "avg_queue_s", "avg_rho"):
            total = sum(asdict(one)[name] * one.jobs for one in filled)
            assert total == pytest.approx(asdict(found.all)[name] * len(jobs), abs=1e-6)
    assert found.all.makespan_s == max(found.end_s) - min(found.submit_s)


def test_average_jobs_by_hand() -> None:
    found = average_jobs(np.array([0.0, 0.0, 10.0]), np.array([10.0, 20.0, 20.0]))

    assert found.tolist() == [2.0, 2.0, 2.0]
    assert average_jobs(np.array([0.0, 5.0]), np.array([10.0, 5.0])).tolist() == [1.0, 1.0]
    assert average_jobs(np.array([]), np.array([])).tolist() == []


def test_the_share_of_a_job_is_one_of_what_was_there_while_it_lived() -> None:
    nodes = flat_cluster(4, 4).virtual_clusters[0].nodes
    vc = VirtualCluster(name="", nodes=nodes)
    resizes = [Resize(at_s=10.0, vc="", nodes=nodes[:2]), Resize(at_s=20.0, vc="", nodes=())]
    submit_s, end_s = np.array([0.0, 5.0, 10.0, 12.0, 30.0]), np.array([10.0, 15.0, 20.0, 12.0, 40.0])

    assert average_gpus(vc, resizes, submit_s, end_s).tolist() == [16.0, 12.0, 8.0, 8.0, 1.0]
    assert average_gpus(vc, [], submit_s, end_s).tolist() == [16.0] * 5
    assert average_gpus(vc, resizes, np.array([]), np.array([])).tolist() == []


def test_rho_counts_the_gpus_that_were_there_and_not_those_of_another_day() -> None:
    small, jobs = flat_cluster(1, 4), trace([(100.0, 50.0, 4), (100.0, 50.0, 4)])
    grown = flat_cluster(2, 4)
    resizes = [
        Resize(at_s=at_s, vc="", nodes=grown.virtual_clusters[0].nodes[:count]) for at_s, count in ((0, 1), (900, 2))
    ]
    runs = Simulation(grown, STRICT, jobs, resizes=resizes).run()

    found = results(jobs, runs, grown, resizes=resizes)

    assert found.all == results(jobs, Simulation(small, STRICT, jobs).run(), small).all


def test_a_job_that_gets_its_equal_share_has_a_rho_of_one() -> None:
    zero, both = np.array([0.0, 0.0]), np.array([2.0, 2.0])

    # Each wants all 4 GPUs for 10 s, shares them, and would take 20 s.
    shared = finish_time_fairness(zero, np.array([20.0, 20.0]), np.array([10.0, 10.0]), 2 * both, 4)
    # One after the other instead.
    queued = finish_time_fairness(zero, np.array([10.0, 20.0]), np.array([10.0, 10.0]), 2 * both, 4)

    assert shared.tolist() == [1.0, 1.0]
    assert queued.tolist() == [0.5, pytest.approx(20 / 15)]


def test_jains_index_of_equals_and_of_one_who_has_all() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain_index(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert math.isnan(jain_index(np.array([])))


def test_the_best_of_a_column_is_marked_if_it_is_better_than_another() -> None:
    least = Column(title="s", of=lambda figures: figures.avg_jct_s)
    greatest = replace(least, best=Best.GREATEST)

    assert best_of(least, [3.0, 1.0, 1.2, math.nan]) == {1, 2}
    assert best_of(greatest, [3.0, 1.0, 1.2]) == {0}
    assert best_of(least, [1.0, 1.0]) == set()
    assert best_of(least, [math.nan, math.nan]) == set()


def test_every_column_has_a_text_for_a_group_without_jobs() -> None:
    empty = of(trace([(0.0, 60.0, 1)]), STRICT).by_bin["LL"]

    assert {column.text(column.of(empty)) for column in COLUMNS} == {"-", "0"}
