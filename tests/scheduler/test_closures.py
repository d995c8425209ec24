"""Planned maintenance in the simulator: who starts before it, who waits until it is over, and in how many partitions
a quota counts."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.domain import Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.sim.closure import Closure
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Cluster
from farside.scheduler.tenancy import Account, Tenancy
from tests.support.traces import flat_cluster, trace

RULES = Rules(order=Fifo(), placement=make_placement("consolidate", {}))


def limited(jobs: Sequence[TraceJob], limit_s: float) -> list[TraceJob]:
    return [replace(one, job=replace(one.job, limit_s=limit_s)) for one in jobs]


def closure(nodes: str, begin_s: float, end_s: float, **more: float) -> Closure:
    return Closure(nodes=frozenset(nodes.split()), begin_s=begin_s, end_s=end_s, **more)  # type: ignore[arg-type]


def starts(jobs: Sequence[TraceJob], *closures: Closure, nodes: int = 1) -> list[float]:
    simulation = Simulation(flat_cluster(nodes, 8), RULES, jobs, closures=closures)
    return [run.start_s for run in simulation.run()]


def test_a_job_that_ends_before_it_starts_and_one_that_may_not_waits() -> None:
    short, long = limited(trace([(10, 50, 8)]), 60), limited(trace([(10, 50, 8)]), 100)
    window = closure("n0", 100, 200)

    assert starts(short, window) == [10]
    assert starts(long, window) == [200]


def test_a_job_without_a_limit_waits_from_when_it_is_planned() -> None:
    jobs = trace([(10, 5, 8), (30, 5, 8)])

    assert starts(jobs, closure("n0", 100, 200, planned_s=20)) == [10, 200]
    assert starts(jobs, closure("n0", 100, 200)) == [200, 205]


def test_other_nodes_take_jobs_meanwhile() -> None:
    assert starts(trace([(10, 500, 8), (20, 500, 8)]), closure("n0", 15, 2000), nodes=2) == [10, 510]


def test_a_job_that_runs_is_not_ended() -> None:
    (run,) = Simulation(
        flat_cluster(1, 8), RULES, trace([(10, 500, 8)]), closures=[closure("n0", 100, 200, planned_s=50)]
    ).run()

    assert (run.start_s, run.end_s, run.preemptions) == (10, 510, 0)


def test_it_closes_nodes_of_its_own_virtual_cluster() -> None:
    a = flat_cluster(1, 8, "a").virtual_clusters[0]
    b = replace(flat_cluster(1, 8, "b").virtual_clusters[0], nodes=tuple(replace(n, name="m0") for n in a.nodes))
    cluster = Cluster(virtual_clusters=(a, b))
    jobs = [*trace([(0, 10, 8)], "a"), *trace([(0, 10, 8)], "b")]

    runs = Simulation(cluster, RULES, jobs, closures=[closure("m0", 0, 100)]).run()

    assert [run.start_s for run in runs] == [0, 100]


@given(
    rows=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60), st.sampled_from([1, 4, 8, 16])), max_size=12),
    spans=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 90), st.sampled_from(["n0", "n0 n1"])), max_size=3),
)
def test_no_job_that_starts_after_it_was_planned_runs_into_it(
    rows: list[tuple[int, int, int]], spans: list[tuple[int, int, str]]
) -> None:
    jobs = limited(trace([(float(at), float(long), gpus) for at, long, gpus in rows]), 60.0)
    closures = [closure(nodes, begin, begin + long) for begin, long, nodes in spans]
    simulation = Simulation(flat_cluster(2, 8), RULES, jobs, closures=closures)
    held: dict[int, frozenset[str]] = {}

    def note(_: float, domain: object, __: object) -> None:
        for row, one in simulation.domains[""].running.items():
            held[row] = frozenset(f"n{at}" for at, _ in one.allocation)

    simulation.observers.append(note)
    runs = simulation.run()

    for row, run in enumerate(runs):
        assert not math.isnan(run.end_s)
        for one in closures:
            meets = run.start_s < one.end_s and run.start_s + 60.0 > one.begin_s
            assert not (meets and held[row] & one.nodes)


@pytest.mark.parametrize(("quota_gpus", "second"), [(8.0, 50.0), (16.0, 0.0)])
def test_the_quota_of_an_account_counts_in_all_virtual_clusters(quota_gpus: float, second: float) -> None:
    tenancy = Tenancy(accounts={"ml": Account(name="ml", quota_gpus=quota_gpus)}, half_life_s=0.0)
    parts = (flat_cluster(1, 8, name).virtual_clusters[0] for name in "ab")
    jobs = [
        replace(one, job=replace(one.job, account="ml", sequence=at))
        for at, one in enumerate([*trace([(0, 50, 8)], "a"), *trace([(0, 50, 8)], "b")])
    ]

    runs = Simulation(Cluster(virtual_clusters=tuple(parts)), replace(RULES, tenancy=tenancy), jobs).run()

    assert [run.start_s for run in runs] == [0, second]
