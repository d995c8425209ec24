"""Idle nodes of one virtual cluster run jobs of another, until their owner wants them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.sim.simulation import Run, Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Action, Cluster
from tests.support.traces import flat_cluster, trace

CLUSTER = Cluster(
    virtual_clusters=(*flat_cluster(2, 4, "a").virtual_clusters, *flat_cluster(1, 4, "b").virtual_clusters)
)
Row = tuple[float, float, int, str]


def jobs_of(rows: list[Row]) -> list[TraceJob]:
    by_time = sorted(rows, key=lambda row: row[0])
    jobs = trace([(submit_s, duration_s, gpus) for submit_s, duration_s, gpus, _ in by_time])
    return [replace(job, job=replace(job.job, vc=row[3])) for job, row in zip(jobs, by_time, strict=True)]


def run(rows: list[Row], *, is_lending: bool, order: OrderPolicy | None = None) -> list[Run]:
    rules = Rules(order=order or Fifo(), placement=Consolidate())
    return list(Simulation(CLUSTER, rules, jobs_of(rows), is_lending=is_lending).run())


BUSY_A = [(0.0, 100.0, 8, "a"), (1.0, 100.0, 4, "a")]


def test_a_job_that_has_no_room_at_home_runs_on_idle_nodes_of_another() -> None:
    assert run(BUSY_A, is_lending=False)[1].start_s == 100.0
    assert run(BUSY_A, is_lending=True)[1].start_s == 1.0


def test_the_owner_has_its_nodes_back_at_once_whatever_the_policy() -> None:
    _, guest, owner = run([*BUSY_A, (41.0, 10.0, 4, "b")], is_lending=True)

    assert owner.start_s == 41.0
    assert guest.preemptions == 1
    assert guest.end_s == 51.0 + 60.0


def test_a_guest_that_is_sent_away_goes_on_at_home_when_there_is_room() -> None:
    _, guest, _ = run([*BUSY_A, (41.0, 500.0, 4, "b")], is_lending=True)

    assert guest.end_s == 100.0 + 60.0


@pytest.mark.parametrize("order", [Fifo(), Fifo(is_strict=False), Las(limits_gpu_s=(30.0,))], ids=["fifo", "be", "las"])
@settings(deadline=None, max_examples=80)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 60).map(float),
            st.integers(1, 40).map(float),
            st.sampled_from([1, 2, 4]),
            st.sampled_from(["a", "b"]),
        ),
        min_size=1,
        max_size=25,
    )
)
def test_no_gpu_is_given_twice_and_all_jobs_end(order: OrderPolicy, rows: list[Row]) -> None:
    def watch(now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        del now_s, actions
        held = [0] * len(domain.ledger.nodes)
        for holder in [*domain.running.values(), *(guest for _, guest in domain.guests.values())]:
            for at, gpus in holder.allocation:
                held[at] += gpus
        assert all(held[at] + domain.ledger.free[at] == node.gpus for at, node in enumerate(domain.ledger.nodes))

    jobs = jobs_of(rows)
    rules = Rules(order=order, placement=Consolidate())

    runs = Simulation(CLUSTER, rules, jobs, is_lending=True, observers=(watch,)).run()

    assert all(done.held_s == pytest.approx(job.duration_s) for done, job in zip(runs, jobs, strict=True))
