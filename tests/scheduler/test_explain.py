"""What an operator is told of a waiting job is true."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.explain import Cause, explain, look
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.srtf import Srtf
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.result.digest import Digest
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.state import Action, Job
from farside.scheduler.table import JobTable
from tests.support.traces import flat_cluster, trace

BEST_EFFORT = Fifo(is_strict=False)


class World:
    """A domain of 4-GPU nodes to which jobs are submitted by hand; the row is the place in the order."""

    def __init__(self, rules: Rules, nodes: int = 3) -> None:
        self.domain = Domain("", flat_cluster(nodes, 4).virtual_clusters[0].nodes, rules, JobTable())

    def submit(self, at_s: float, *gpus: int, duration_s: float = 100.0, preemptible: bool = True) -> None:
        for need in gpus:
            row = len(self.domain.jobs)
            job = Job(job_id=f"j{row}", sequence=row, submit_s=at_s, gpus=need, preemptible=preemptible)
            self.domain.submit(row, job, remaining_s=duration_s, predicted_gpu_s=0.0)
        run_cycle(self.domain, at_s)

    def told(self, row: int, now_s: float) -> str:
        return " | ".join(explain(self.domain, row, now_s))


def test_too_few_gpus_under_a_policy_that_preempts_nobody() -> None:
    world = World(Rules(order=BEST_EFFORT, placement=Consolidate()))
    world.submit(0.0, 4, 4, 2)
    world.submit(5.0, 8)

    assert world.told(3, 5.0) == (
        "waits: needs 8 GPUs on 2 nodes, 2 free; 3 running jobs there, and best-effort preempts no job | "
        "no waiting job goes before it"
    )


def test_behind_the_first_in_line_of_a_strict_policy() -> None:
    world = World(Rules(order=Fifo(), placement=Consolidate()))
    world.submit(0.0, 4, 4, 2)
    world.submit(5.0, 8)
    world.submit(9.0, 1)

    assert world.told(4, 9.0).startswith(
        "waits: needs 1 GPU, 2 free; the first in line is job j3 (8 GPUs), which came 4 s earlier"
    )
    assert look(world.domain, 3, 9.0).cause is Cause.FEW


def test_free_but_scattered() -> None:
    world = World(Rules(order=BEST_EFFORT, placement=Consolidate()))
    world.submit(0.0, 3, 3, 3)
    world.submit(5.0, 2)

    seen = look(world.domain, 3, 5.0)

    assert (seen.cause, seen.free_gpus) == (Cause.SCATTERED, 3)
    assert seen.because == "scattered over 3 nodes, at most 1 on one, 0 nodes idle"


def test_behind_running_jobs_that_go_before_it() -> None:
    world = World(Rules(order=Srtf(), placement=CountOnly()))
    world.submit(0.0, 8, duration_s=50.0)
    world.submit(0.0, 4, duration_s=80.0)
    world.submit(5.0, 8, duration_s=400.0)

    seen = look(world.domain, 2, 5.0)

    assert (seen.cause, seen.blocker) == (Cause.FEW, 1)
    assert seen.because.startswith("12 are held by 2 running jobs that go before it, the last of them job j1 (4 GPUs)")


def test_what_may_not_be_taken_yet_or_ever_is_told() -> None:
    world = World(Rules(order=Srtf(), placement=CountOnly(), min_run_s=60.0))
    world.submit(0.0, 8, duration_s=500.0)
    world.submit(0.0, 4, duration_s=500.0, preemptible=False)
    world.submit(5.0, 8, duration_s=10.0)

    assert look(world.domain, 2, 5.0).words == (
        "waits: needs 8 GPUs, 0 free; no running job goes before it",
        "8 are held by one running job left alone for now, the first until 60 s",
        "4 are held by one running job that may not be preempted",
        "no waiting job goes before it",
    )


def test_reserved_and_held_for_who_is_reserved() -> None:
    world = World(Rules(order=BEST_EFFORT, placement=Consolidate(), reserve_after_s=20.0), nodes=2)
    world.submit(0.0, 3)
    world.submit(1.0, 8)
    world.submit(30.0, 4)

    wide, narrow = (look(world.domain, row, 30.0) for row in (1, 2))

    assert wide.cause is Cause.RESERVED
    assert wide.because == "reserved: n0 (4), n1 (4), as soon as the jobs that run there have ended"
    assert (narrow.cause, narrow.blocker, narrow.because) == (Cause.HELD, 1, "held for job j1, reserved")


def test_held_where_it_could_take_more_gpus_but_what_they_leave_is_counted_on() -> None:
    world = World(Rules(order=Srtf(), placement=CountOnly(), reserve_after_s=20.0), nodes=1)
    world.submit(0.0, 2, duration_s=500.0, preemptible=False)
    world.submit(1.0, 1, duration_s=400.0)
    world.submit(2.0, 4, duration_s=100.0)
    world.submit(30.0, 2, duration_s=60.0)

    seen = look(world.domain, 3, 30.0)

    assert (seen.cause, seen.blocker, seen.because) == (Cause.HELD, 2, "held for job j2, reserved")
    assert seen.free_gpus == 1


def test_running_and_gone() -> None:
    world = World(Rules(order=Fifo(), placement=Consolidate()))
    world.submit(1506816000.0, 8)

    assert world.told(0, 1506816007.0) == "runs on n0 (4), n1 (4) since 2017-10-01 00:00:00"
    assert world.told(7, 1506816007.0) == "has ended, or never came here"


orders: st.SearchStrategy[OrderPolicy] = st.sampled_from(
    [Fifo(), BEST_EFFORT, Srtf(), Las(limits_gpu_s=(30.0,)), Las(limits_gpu_s=(30.0,), promote_knob=2.0)]
)


@settings(deadline=None, max_examples=120)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 6, 8, 12])), max_size=20),
    orders,
    st.sampled_from([CountOnly(), Consolidate()]),
    st.sampled_from([float("inf"), 30.0]),
    st.sampled_from([0.0, 5.0]),
)
def test_each_cause_is_what_it_says_and_asking_changes_nothing(
    rows: list[tuple[int, int, int]],
    order: OrderPolicy,
    placement: CountOnly | Consolidate,
    reserve_after_s: float,
    min_run_s: float,
) -> None:
    jobs = trace((float(submit), float(duration), gpus) for submit, duration, gpus in rows)
    rules = Rules(order=order, placement=placement, reserve_after_s=reserve_after_s, min_run_s=min_run_s)
    asked, unasked = Digest(jobs), Digest(jobs)

    def ask(now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        del actions
        for row in domain.jobs:
            check(domain, row, now_s)

    Simulation(flat_cluster(3, 4), rules, jobs, observers=(ask, asked)).run()
    Simulation(flat_cluster(3, 4), rules, jobs, observers=(unasked,)).run()

    assert asked.value == unasked.value


def check(domain: Domain, row: int, now_s: float) -> None:
    seen = look(domain, row, now_s)
    need, free = domain.jobs[row].gpus, domain.ledger.free_gpus
    reservation = domain.reservation
    has_room = domain.rules.placement.place(domain.ledger, domain.demands[domain.groups[row]]) is not None
    match seen.cause:
        case Cause.RUNS:
            assert row in domain.running
        case Cause.FEW:
            assert free < need
            assert not has_room
        case Cause.SCATTERED:
            assert not has_room
        case Cause.HELD:
            assert has_room or domain.traits.is_preemptive
            assert reservation is not None
            assert reservation.row == seen.blocker != row
        case Cause.RESERVED:
            assert reservation is not None
            assert reservation.row == row
        case Cause.IN_LINE:
            assert domain.traits.is_strict
            assert seen.blocker in domain.waiting
        case _:
            pytest.fail(f"{seen} right after a cycle")
    if seen.blocker in domain.running:
        mine, other = domain.roster.ranks([row, seen.blocker], now_s)
        held = domain.running[seen.blocker]
        assert other < mine or held.until_s > now_s or not domain.jobs[seen.blocker].preemptible
