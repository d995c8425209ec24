"""A running job that falls to another queue between two events is seen to have fallen by whatever comes next."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.admission.queue import Queue
from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.qssf import Qssf
from farside.scheduler.order.timeshare import Timeshare
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.sim.result.digest import Digest
from farside.scheduler.sim.simulation import Run, Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Action, Cluster, Node, Promote, VirtualCluster
from farside.scheduler.waiting import Rank
from tests.support.traces import flat_cluster, trace

Rows = list[tuple[float, float, int]]


def simulate(rows: Rows, order: OrderPolicy, *, gpus: int = 4, is_in_whole_seconds: bool = True) -> list[Run]:
    """In the order of the rows, which is that of their submit times."""
    rules = Rules(order=order, placement=CountOnly())
    simulation = Simulation(flat_cluster(1, gpus), rules, trace(rows), is_in_whole_seconds=is_in_whole_seconds)
    return list(simulation.run())


def test_a_newcomer_between_the_limit_and_the_next_whole_second_does_not_pass_an_older_job() -> None:
    """The first has had its 3200 GPU s at 1066.67, which is noticed at 1067 unless something comes before."""
    rows = [(0.0, 5000.0, 3), (10.0, 100.0, 4), (1066.8, 900.0, 3)]

    _, older, newcomer = simulate(rows, Las())

    assert older.start_s == 1066.8
    assert newcomer.start_s == 1166.8


def test_a_newcomer_that_comes_a_rounding_error_before_the_limit_does_not_pass_an_older_job() -> None:
    """A third of a second, three times, is not one: the threshold is at 27.000000000000004, the newcomer at 27."""
    rows = [
        (2.0, 13.0, 3), (2.0, 12.0, 4), (6.0, 23.0, 3), (7.0, 24.0, 3), (8.0, 7.0, 4), (8.0, 40.0, 3),
        (19.0, 33.0, 1), (20.0, 4.0, 4), (21.0, 35.0, 3), (27.0, 20.0, 2), (38.0, 2.0, 1), (39.0, 25.0, 3),
    ]  # fmt: skip
    order = Las(limits_gpu_s=(20.0, 70.0), within="start_time")

    with all_heads_each_cycle():
        slow = simulate(rows, order, is_in_whole_seconds=False)

    assert simulate(rows, order, is_in_whole_seconds=False) == slow


def test_who_lost_its_gpus_after_it_fell_stands_at_the_tail_of_the_next_queue() -> None:
    """The second falls at 10.5, which would be noticed at 11; the first fell long before, and stands in front."""
    rows = [(0.0, 60.0, 2), (6.0, 60.0, 2), (10.7, 1.0, 4), (11.0, 4.0, 2)]

    first, second, *_ = simulate(rows, Las(limits_gpu_s=(9.0,)))

    assert first.end_s == pytest.approx(61.0)
    assert second.end_s == pytest.approx(71.0)


def test_a_threshold_a_rounding_error_from_now_does_not_stop_the_clock() -> None:
    """What is left of a wait may be above zero, and too little to change the time when it is added."""
    rows = [(0.2, 1.7, 1), (0.4, 3.7, 1)]

    runs = simulate(rows, Las(limits_gpu_s=(0.4,), promote_knob=1.0), gpus=1, is_in_whole_seconds=False)

    assert max(run.end_s for run in runs) == pytest.approx(0.2 + 1.7 + 3.7)


SINCE_1970_S = 1.7e9  # seconds are rounded to 2.4e-7 there


@pytest.mark.parametrize("order", [Las(limits_gpu_s=(12.50000103,)), Qssf(patience_s=12.50000103)], ids=["las", "qssf"])
def test_a_threshold_that_the_clock_takes_for_now_does_not_stop_it_either(order: OrderPolicy) -> None:
    """Between the last job and the limit are 1.03e-6 s, which added to its time are 0.95e-6."""
    rows = [(SINCE_1970_S, 100.0, 1), (SINCE_1970_S, 10.0, 1), (SINCE_1970_S + 12.5, 10.0, 1)]

    runs = simulate(rows, order, gpus=1, is_in_whole_seconds=False)

    assert max(run.end_s for run in runs) - SINCE_1970_S == pytest.approx(120.0)


@pytest.mark.parametrize("apart_s", [0.0, 2.4e-7, 7.2e-7])
def test_a_gang_that_falls_with_another_a_rounding_error_before_its_limit_is_in_the_next_queue(apart_s: float) -> None:
    """Two gangs run and two wait, so that each queue is left by two at a time."""
    begins_s = (0.0, apart_s, 5.0, 6.0)
    rows = [(SINCE_1970_S + at_s, run_s, 8) for at_s, run_s in zip(begins_s, (100.0, 100.0, 30.0, 30.0), strict=True)]
    rules = Rules(order=Las(limits_gpu_s=(100.0, 200.0)), placement=CountOnly())

    runs = Simulation(flat_cluster(2, 8), rules, trace(rows), is_in_whole_seconds=False).run()

    assert [run.preemptions for run in runs] == [2, 2, 2, 2]


@pytest.mark.parametrize("told", ["by the clock", "by a cycle"])
@pytest.mark.parametrize(("apart_s", "first"), [(10.0, 1), (1e-7, 0)])
def test_jobs_stand_in_the_next_queue_as_they_fell_and_by_submission_if_together(
    told: str, apart_s: float, first: int
) -> None:
    """Both have fallen when that is noticed, at 180, the second before the first."""
    begins_s = (0.0, 70.0 - apart_s)
    jobs = trace([(begins_s[0], 1000.0, 1), (begins_s[1], 1000.0, 2)])
    rules = Rules(order=Las(limits_gpu_s=(140.0,)), placement=CountOnly())
    domain = Simulation(flat_cluster(1, 3), rules, jobs).domains[""]
    for row, one in enumerate(jobs):
        domain.submit(row, one.job, remaining_s=1000.0, predicted_gpu_s=1.0)
        run_cycle(domain, begins_s[row])
        domain.watch([row], begins_s[row])

    for row in range(2) if told == "by the clock" else ():
        domain.cross(row, 180.0)
    domain.notice(180.0)

    position = domain.table.position
    assert (position[0] < position[1]) == (first == 0)


def test_a_job_that_has_starved_before_its_wait_begins_is_promoted_at_once() -> None:
    """The third waits 76 s in the first queue, runs 40 s, falls, and loses its GPU to the fourth at that moment."""
    rows = [(0.0, 39.0, 1), (1.0, 39.0, 1), (2.0, 100.0, 1), (100.0, 200.0, 1)]
    promoted: list[tuple[float, int]] = []

    def note(now_s: float, _: Domain, actions: Sequence[Action]) -> None:
        promoted.extend((now_s, action.row) for action in actions if isinstance(action, Promote))

    rules = Rules(order=Las(limits_gpu_s=(40.0,), promote_knob=1.0), placement=CountOnly())
    Simulation(flat_cluster(1, 1), rules, trace(rows), observers=[note]).run()

    assert promoted[0] == (118.0, 2)


def test_a_job_whose_patience_has_ended_when_it_may_start_is_promoted_at_once() -> None:
    """As in the shadow of a Slurm, where a job waits from its submission on, and may start later."""
    running, patient, small = (one.job for one in trace([(0.0, 500.0, 1), (0.0, 500.0, 1), (0.0, 500.0, 1)]))
    jobs = [
        TraceJob(job=running, duration_s=500.0),
        TraceJob(job=patient, duration_s=500.0, ready_s=100.0),
        TraceJob(job=small, duration_s=500.0, ready_s=100.0),
    ]
    promoted: list[tuple[float, int]] = []

    def note(now_s: float, _: Domain, actions: Sequence[Action]) -> None:
        promoted.extend((now_s, action.row) for action in actions if isinstance(action, Promote))

    rules = Rules(order=Qssf(patience_s=50.0), placement=CountOnly())
    Simulation(flat_cluster(1, 1), rules, jobs, observers=[note]).run()

    assert promoted == [(100.0, 1), (100.0, 2)]


def test_a_guest_that_has_starved_as_it_loses_lent_gpus_is_promoted_in_its_own_virtual_cluster() -> None:
    """It waits from 1 to 100, runs as a guest for 60 s, and falls; then the owner's second job comes."""
    told = [("b", 0.0, 100.0), ("a", 0.0, 2000.0), ("a", 1.0, 2000.0), ("b", 160.0, 3000.0)]
    jobs = [
        TraceJob(job=replace(one.job, vc=vc), duration_s=one.duration_s)
        for one, (vc, _, _) in zip(trace([(at_s, run_s, 1) for _, at_s, run_s in told]), told, strict=True)
    ]
    cluster = Cluster(
        virtual_clusters=tuple(VirtualCluster(name=vc, nodes=(Node(name=f"{vc}0", gpus=1),)) for vc in "ab")
    )
    promoted: list[tuple[float, str, int]] = []

    def note(now_s: float, domain: Domain, actions: Sequence[Action]) -> None:
        promoted.extend((now_s, domain.name, action.row) for action in actions if isinstance(action, Promote))

    rules = Rules(order=Las(limits_gpu_s=(40.0,), promote_knob=0.25), placement=CountOnly())
    Simulation(cluster, rules, jobs, is_lending=True, observers=[note]).run()

    assert (160.0, "a", 2) in promoted


@contextmanager
def all_heads_each_cycle() -> Iterator[None]:
    """Nothing is ever left out because nothing changed."""
    take_heads = Queue.take_heads

    def take_all(self: Queue, now_s: float) -> list[tuple[Rank, int, int]]:
        self.touch()
        return take_heads(self, now_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Queue, "take_heads", take_all)
        yield


orders: st.SearchStrategy[OrderPolicy] = st.sampled_from(
    [
        Las(limits_gpu_s=(20.0, 70.0)),
        Las(limits_gpu_s=(20.0, 70.0), within="start_time"),
        Las(limits_gpu_s=(20.0,), promote_knob=1.0),
        Gittins(limits_gpu_s=(20.0, 70.0), first_fit_jobs=8),
        Timeshare(quantum_s=7.1, is_strict=False),
    ]
)
moments = st.integers(0, 400).map(lambda tenths: tenths / 10)


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(moments, st.integers(1, 400).map(lambda tenths: tenths / 10), st.integers(1, 4)), max_size=25),
    orders,
    st.sampled_from([CountOnly(), Consolidate()]),
    st.booleans(),
    st.sampled_from([0.0, 6.5]),
)
def test_with_arrivals_at_any_time_it_decides_what_looking_at_every_class_each_cycle_would(
    rows: Rows, order: OrderPolicy, placement: PlacementPolicy, is_in_whole_seconds: bool, min_run_s: float
) -> None:
    jobs = trace(rows)
    rules = Rules(order=order, placement=placement, min_run_s=min_run_s)
    fast, slow = Digest(jobs), Digest(jobs)

    def run(digest: Digest) -> None:
        Simulation(flat_cluster(2, 4), rules, jobs, is_in_whole_seconds=is_in_whole_seconds, observers=(digest,)).run()

    run(fast)
    with all_heads_each_cycle():
        run(slow)

    assert fast.value == slow.value
