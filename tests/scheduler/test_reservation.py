"""A wide gang among small jobs: it starves by the papers' rules, and starts within a bound with a reservation."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.srtf import Srsf
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from tests.scheduler.bound import start_bound_s
from tests.support.traces import flat_cluster, trace

GANG_GPUS, GPUS_PER_NODE, NODES = 16, 4, 4
STREAM = 400


def stream_and_gang() -> list[TraceJob]:
    """From the first second on every GPU is taken by small jobs, and the next ones come before they end."""
    small = [(5.0 * at, 90.0, 1) for at in range(STREAM)]
    return trace([*small, (100.0, 50.0, GANG_GPUS)])


def gang_start_s(order: OrderPolicy, *, reserve_after_s: float = float("inf")) -> float:
    jobs = stream_and_gang()
    rules = Rules(order=order, placement=CountOnly(), reserve_after_s=reserve_after_s)
    runs = Simulation(flat_cluster(NODES, GPUS_PER_NODE), rules, jobs).run()
    return next(run.start_s for run, job in zip(runs, jobs, strict=True) if job.job.gpus == GANG_GPUS)


@pytest.mark.parametrize(
    "order",
    [Fifo(is_strict=False), Srsf(), Las(), Las(promote_knob=1.0), Las(limits_gpu_s=(60.0,), promote_knob=1.0)],
    ids=["best-effort", "srsf", "las", "las-knob", "las-knob-demoting"],
)
def test_without_a_reservation_the_gang_waits_until_the_stream_of_small_jobs_ends(order: OrderPolicy) -> None:
    """No finite PROMOTEKNOB helps a job that never started: it is in the first queue already."""
    assert gang_start_s(order) >= 5.0 * STREAM


@pytest.mark.parametrize("order", [Fifo(is_strict=False), Srsf(), Las()], ids=["best-effort", "srsf", "las"])
def test_with_a_reservation_the_gang_starts_while_small_jobs_keep_coming(order: OrderPolicy) -> None:
    assert gang_start_s(order, reserve_after_s=200.0) <= 100.0 + 200.0 + 90.0


def test_a_job_that_is_gone_in_time_runs_on_what_is_held() -> None:
    wide = [(0.0, 100.0, 12), (1.0, 50.0, 16)]
    jobs = trace([*wide, (20.0, 60.0, 4), (21.0, 200.0, 4)])
    jobs = [replace(job, job=replace(job.job, limit_s=job.duration_s)) for job in jobs]
    rules = Rules(order=Fifo(is_strict=False), placement=CountOnly(), reserve_after_s=10.0)

    gone_in_time, too_long = Simulation(flat_cluster(NODES, GPUS_PER_NODE), rules, jobs).run()[2:]

    assert gone_in_time.start_s == 20.0
    assert too_long.start_s > 100.0


def without_preemption(jobs: list[TraceJob], rows: set[int]) -> list[TraceJob]:
    """The same, these of them left alone once they run."""
    return [replace(job, job=replace(job.job, preemptible=at not in rows)) for at, job in enumerate(jobs)]


NARROW = [(0.0, 20000.0, 2), (0.0, 90000.0, 3), (1.0, 90000.0, 4), (2.0, 90000.0, 1)]
GANG = (10.0, 100.0, 8)


def test_who_stands_before_a_running_job_that_nothing_is_held_of_takes_its_gpus() -> None:
    """The gang waits for the first node and takes the third; the second is none of its business."""
    jobs = without_preemption(trace([*NARROW, GANG, (9000.0, 60.0, 1)]), {0, 1})
    rules = Rules(order=Srsf(), placement=Consolidate(), reserve_after_s=100.0)

    *_, gang, short = Simulation(flat_cluster(3, GPUS_PER_NODE), rules, jobs).run()

    assert short.start_s == 9000.0
    assert gang.start_s == 20000.0


def test_who_stands_before_a_running_job_does_not_take_what_its_end_leaves_to_the_gang() -> None:
    """It would not give them back in time: it may not be preempted, and takes longer than the gang has to wait."""
    rows = [(0.0, 200.0, 2), (1.0, 90000.0, 1), (10.0, 1000.0, 4), (150.0, 500.0, 1)]
    jobs = without_preemption(trace(rows), {0, 3})
    rules = Rules(order=Srsf(), placement=CountOnly(), reserve_after_s=100.0)

    *_, gang, short = Simulation(flat_cluster(1, GPUS_PER_NODE), rules, jobs).run()

    assert gang.start_s == 200.0
    assert short.start_s == 300.0  # the gang is left alone for so long


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 80), st.integers(1, 40), st.sampled_from([1, 1, 2, 4, 8, 16])), min_size=1, max_size=30
    ),
    st.sampled_from([Fifo(is_strict=False), Srsf(), Las(limits_gpu_s=(30.0, 90.0))]),
    st.sampled_from([CountOnly(), Consolidate()]),
    st.sampled_from([5.0, 30.0]),
    st.sets(st.integers(0, 29), max_size=10),
)
def test_every_job_starts_within_the_bound(
    rows: list[tuple[int, int, int]],
    order: OrderPolicy,
    placement: PlacementPolicy,
    reserve_after_s: float,
    left_alone: set[int],
) -> None:
    jobs = trace((float(submit), float(duration), gpus) for submit, duration, gpus in rows)
    jobs = without_preemption(jobs, left_alone)
    rules = Rules(order=order, placement=placement, reserve_after_s=reserve_after_s)

    runs = Simulation(flat_cluster(NODES, GPUS_PER_NODE), rules, jobs).run()

    stays = [job.duration_s for job in jobs if not (order.traits.is_preemptive and job.job.preemptible)]
    longest_s = max([*stays, reserve_after_s] if order.traits.is_preemptive else stays)
    for run, job in zip(runs, jobs, strict=True):
        submit_s = job.job.submit_s
        ahead = sum(other.job.submit_s <= submit_s for other in jobs) - 1
        bound_s = start_bound_s(reserve_after_s=reserve_after_s, ahead=ahead, longest_s=longest_s)
        assert run.start_s - submit_s <= bound_s
