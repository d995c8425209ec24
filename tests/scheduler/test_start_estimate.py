"""When a job is expected to start: true when all use up their limits, and asking changes nothing."""

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.srtf import Srtf
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.start_estimate import estimate_start
from farside.scheduler.state import Action, Node
from farside.scheduler.table import JobTable
from farside.scheduler.tenancy import Account, Tenancy
from tests.support.traces import flat_cluster, trace


def limited(rows: list[tuple[float, float, int]], *, slack: float = 1.0) -> list[TraceJob]:
    """Jobs that run for their limits, or for a part of them."""
    return [
        replace(job, job=replace(job.job, limit_s=job.duration_s / slack, preemptible=False)) for job in trace(rows)
    ]


class Foresee:
    """Asks for each waiting job after each cycle, and checks that nothing is another for it."""

    def __init__(self) -> None:
        self.told: list[tuple[int, float]] = []

    def __call__(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        before = (list(domain.ledger.free), domain.ledger.free_gpus, list(domain.ledger.buckets))
        self.told += [(row, estimate_start(domain, row, now_s).at_s) for row in domain.waiting.rows()]
        assert (list(domain.ledger.free), domain.ledger.free_gpus, list(domain.ledger.buckets)) == before


def foreseen(jobs: list[TraceJob], order: OrderPolicy, tenancy: Tenancy | None = None) -> list[tuple[float, float]]:
    """What was expected at each look, and what came."""
    watch = Foresee()
    rules = Rules(order=order, placement=Consolidate(), tenancy=tenancy)
    runs = Simulation(flat_cluster(2, 4), rules, jobs, observers=(watch,)).run()
    return [(expected_s, runs[row].start_s) for row, expected_s in watch.told]


rows_of_a_trace = st.lists(
    st.tuples(st.integers(0, 30).map(float), st.integers(1, 50).map(float), st.sampled_from([1, 2, 4, 8])),
    min_size=1,
    max_size=15,
)


@settings(deadline=None, max_examples=60)
@given(rows_of_a_trace)
def test_in_strict_order_it_is_exact_if_all_use_up_their_limits(rows: list[tuple[float, float, int]]) -> None:
    found = foreseen(limited(rows), Fifo())

    assert all(math.isclose(expected_s, start_s) for expected_s, start_s in found)


@settings(deadline=None, max_examples=60)
@given(rows_of_a_trace)
def test_a_quota_is_foreseen_too(rows: list[tuple[float, float, int]]) -> None:
    small = [(submit_s, run_s, min(gpus, 4)) for submit_s, run_s, gpus in rows]
    tenancy = Tenancy(others=Account(name="", quota_gpus=4), half_life_s=0.0)

    found = foreseen(limited(small), Fifo(), tenancy)

    assert all(math.isclose(expected_s, start_s) for expected_s, start_s in found)


def test_jobs_that_end_early_only_make_it_earlier() -> None:
    found = foreseen(limited([(0, 10, 8), (0, 10, 8), (0, 10, 8)], slack=0.5), Fifo())

    assert found[0][0] == 20
    assert all(start_s <= expected_s for expected_s, start_s in found)


def test_nobody_knows_where_somebody_before_it_has_no_limit() -> None:
    found = foreseen(trace([(0, 10, 8), (0, 10, 8)]), Fifo())

    assert found[0][0] == math.inf


def test_of_whom_it_may_take_gpus_it_does_not_wait() -> None:
    domain = Domain(
        "", (Node(name="n", gpus=8),), Rules(order=Srtf(), placement=Consolidate(), min_run_s=30), JobTable()
    )
    (long, short) = (job.job for job in trace([(0, 1000, 8), (5, 10, 8)]))
    domain.submit(0, long, remaining_s=1000, predicted_gpu_s=math.nan)
    run_cycle(domain, 0)
    domain.submit(1, short, remaining_s=10, predicted_gpu_s=math.nan)
    run_cycle(domain, 5)

    assert estimate_start(domain, 1, 5).at_s == 30
