"""Idle nodes of one virtual cluster run jobs of another, until their owner wants them."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.srtf import Srsf
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.sim.simulation import Run, Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Action, Cluster, Start
from tests.scheduler.bound import start_bound_s
from tests.support.traces import flat_cluster, trace

CLUSTER = Cluster(
    virtual_clusters=(*flat_cluster(2, 4, "a").virtual_clusters, *flat_cluster(1, 4, "b").virtual_clusters)
)
Row = tuple[float, float, int, str]


def jobs_of(rows: list[Row]) -> list[TraceJob]:
    by_time = sorted(rows, key=lambda row: row[0])
    jobs = trace([(submit_s, duration_s, gpus) for submit_s, duration_s, gpus, _ in by_time])
    return [replace(job, job=replace(job.job, vc=row[3])) for job, row in zip(jobs, by_time, strict=True)]


def run(
    rows: list[Row], *, is_lending: bool, order: OrderPolicy | None = None, reserve_after_s: float = math.inf
) -> list[Run]:
    rules = Rules(order=order or Fifo(), placement=Consolidate(), reserve_after_s=reserve_after_s)
    return list(Simulation(CLUSTER, rules, jobs_of(rows), is_lending=is_lending).run())


BUSY_A = [(0.0, 100.0, 8, "a"), (1.0, 100.0, 4, "a")]


def test_a_job_that_has_no_room_at_home_runs_on_idle_nodes_of_another() -> None:
    assert run(BUSY_A, is_lending=False)[1].start_s == 100.0
    assert run(BUSY_A, is_lending=True)[1].start_s == 1.0


def test_reasons_count_one_gpu_as_one() -> None:
    reasons: list[str] = []

    def note(now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        del now_s, domain
        reasons.extend(action.reason for action in actions)

    rules = Rules(order=Fifo(), placement=Consolidate())
    jobs = jobs_of([(0.0, 9.0, 8, "a"), (1.0, 5.0, 1, "a"), (2.0, 5.0, 1, "b"), (3.0, 5.0, 3, "b")])
    Simulation(CLUSTER, rules, jobs, is_lending=True, observers=(note,)).run()

    assert reasons[:3] == ["8 GPUs free", "1 GPU of b is idle", "1 GPU free"]
    assert "goes before 1 running job" in reasons


def test_the_owner_has_its_nodes_back_at_once_whatever_the_policy() -> None:
    _, guest, owner = run([*BUSY_A, (41.0, 10.0, 4, "b")], is_lending=True)

    assert owner.start_s == 41.0
    assert guest.preemptions == 1
    assert guest.end_s == 51.0 + 60.0


def test_a_guest_that_is_sent_away_goes_on_at_home_when_there_is_room() -> None:
    _, guest, _ = run([*BUSY_A, (41.0, 500.0, 4, "b")], is_lending=True)

    assert guest.end_s == 100.0 + 60.0


def test_a_gang_is_reserved_for_where_guests_run_and_its_own_small_jobs_keep_coming() -> None:
    guests = [(1.0, 9e4, 4, "b"), (2.0, 9e4, 4, "b"), (3.0, 9e4, 2, "b")]
    small = [(300.0 + 200 * at, 300.0, 1, "a") for at in range(15)]
    rows: list[Row] = [(0.0, 500.0, 2, "a"), *guests, (10.0, 100.0, 8, "a"), *small]

    gang = run(rows, is_lending=True, order=Fifo(is_strict=False), reserve_after_s=100.0)[4]

    assert gang.start_s == 500.0


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 80).map(float),
            st.integers(1, 40).map(float),
            st.sampled_from([1, 1, 2, 4]),
            st.sampled_from(["a", "b"]),
        ),
        min_size=1,
        max_size=30,
    ),
    gang_s=st.integers(0, 40).map(float),
    order=st.sampled_from([Fifo(is_strict=False), Srsf(), Las(limits_gpu_s=(30.0, 90.0))]),
    placement=st.sampled_from([CountOnly(), Consolidate()]),
    reserve_after_s=st.sampled_from([5.0, 30.0]),
)
def test_with_lending_too_every_job_starts_within_the_bound(
    rows: list[Row], gang_s: float, order: OrderPolicy, placement: PlacementPolicy, reserve_after_s: float
) -> None:
    jobs = jobs_of([*rows, (gang_s, 10.0, 8, "a")])
    rules = Rules(order=order, placement=placement, reserve_after_s=reserve_after_s)

    runs = Simulation(CLUSTER, rules, jobs, is_lending=True).run()

    longest_s = reserve_after_s if order.traits.is_preemptive else max(job.duration_s for job in jobs)
    for done, job in zip(runs, jobs, strict=True):
        ahead = sum(other.job.submit_s <= job.job.submit_s and other.job.vc == job.job.vc for other in jobs) - 1
        bound_s = start_bound_s(reserve_after_s=reserve_after_s, ahead=ahead, longest_s=longest_s)
        assert done.start_s - job.job.submit_s <= bound_s


# One gets lent GPUs as it is reserved for, others get what was held for it, and then the owner of the lent ones comes.
LENT_TO_RESERVED = [
    (0.0, 1.0, 1, "a"), (0.0, 41.0, 1, "b"), (1.0, 1.0, 4, "a"), (1.0, 2.0, 4, "a"), (1.0, 2.0, 4, "a"),
    (33.0, 1.0, 4, "a"), (42.0, 1.0, 1, "b"),
]  # fmt: skip


def test_a_job_that_gets_lent_gpus_is_not_reserved_for_any_more() -> None:
    jobs = [
        replace(job, job=replace(job.job, limit_s=job.duration_s))
        for job in jobs_of([*LENT_TO_RESERVED, (0.0, 40.0, 8, "a")])
    ]
    reserved_for = list[object]()

    def note(now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        if any(isinstance(one, Start) and one.host != domain.name for one in actions):
            reserved_for.append(domain.reservation)

    rules = Rules(order=Fifo(is_strict=False), placement=CountOnly(), reserve_after_s=10.0)
    Simulation(CLUSTER, rules, jobs, is_lending=True, observers=(note,)).run()

    assert reserved_for == [None]


@settings(deadline=None, max_examples=300)
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 80).map(float),
            st.integers(1, 60).map(float),
            st.sampled_from([1, 1, 2, 4]),
            st.sampled_from(["a", "a", "b"]),
        ),
        min_size=1,
        max_size=30,
    ),
    gang_s=st.integers(0, 40).map(float),
    order=st.sampled_from([Fifo(is_strict=False), Srsf(), Las(limits_gpu_s=(30.0, 90.0))]),
    placement=st.sampled_from([CountOnly(), Consolidate()]),
    is_lending=st.booleans(),
    left_alone=st.sets(st.integers(0, 29), max_size=10),
)
@example(
    rows=LENT_TO_RESERVED, gang_s=0.0, order=Fifo(is_strict=False), placement=CountOnly(), is_lending=True,
    left_alone=set(),
)  # fmt: skip
def test_who_is_reserved_for_starts_when_it_was_told_whoever_comes_meanwhile(
    rows: list[Row],
    gang_s: float,
    order: OrderPolicy,
    placement: PlacementPolicy,
    is_lending: bool,
    left_alone: set[int],
) -> None:
    jobs = [
        replace(job, job=replace(job.job, limit_s=job.duration_s, preemptible=at not in left_alone))
        for at, job in enumerate(jobs_of([*rows, (gang_s, 40.0, 8, "a")]))
    ]
    told: dict[int, float] = {}
    late: list[int] = []

    def note(now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if isinstance(action, Start) and now_s > told.pop(action.row, math.inf):
                late.append(action.row)
        if domain.reservation is not None and domain.reservation.row in domain.waiting:
            told.setdefault(domain.reservation.row, domain.reservation.at_s)

    rules = Rules(order=order, placement=placement, reserve_after_s=10.0)
    Simulation(CLUSTER, rules, jobs, is_lending=is_lending, observers=(note,)).run()

    assert not late


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
