"""What every order policy promises, and the rules of the small ones."""

import math
from collections.abc import Sequence
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.domain import Rules
from farside.scheduler.order.catalog import ORDERS, make_order, passing
from farside.scheduler.order.distribution import Distribution
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.priority_share import TenantOrder
from farside.scheduler.order.qssf import Qssf
from farside.scheduler.order.reason import why_first
from farside.scheduler.order.smallest import Smallest
from farside.scheduler.order.srtf import Srsf
from farside.scheduler.order.timeshare import Timeshare
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.estimator import Foreknown
from farside.scheduler.sim.oracle import Oracle
from farside.scheduler.sim.result.digest import Digest
from farside.scheduler.sim.simulation import Run, Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Job
from farside.scheduler.table import JobColumns, JobTable
from tests.support.traces import flat_cluster, trace

KNOWN = Distribution([50.0, 400.0, 5000.0])
POLICIES: dict[str, OrderPolicy] = {
    **{name: make_order(name, {}) for name in ORDERS},
    "sf without preemption": Smallest(is_preemptive=False, is_strict=True),
    "las by start": Las(within="start_time", promote_knob=2.0),
    "las without queues": Las(limits_gpu_s=(), interval_s=60.0),
    "gittins of the known": Gittins(limits_gpu_s=(100.0, 1000.0), prior=KNOWN, is_learning=False),
    "fifo of tenants": TenantOrder(inner=Fifo()),
    "las of tenants": TenantOrder(inner=Las()),
    "gittins without queues": Gittins(limits_gpu_s=(), delta="best", prior=KNOWN, is_learning=False),
}
policies = st.sampled_from(list(POLICIES))


def simulate(
    order: OrderPolicy, jobs: Sequence[TraceJob], *, gpus: int = 8, seed: int = 0
) -> tuple[Sequence[Run], str]:
    """What became of each job, and the digest of all that was decided."""
    digest = Digest(jobs)
    rules = Rules(order=order, placement=CountOnly())
    predict = Oracle(error_factor=2.0, seed=seed)
    runs = Simulation(flat_cluster(1, gpus), rules, jobs, estimator=Foreknown(predict, jobs), observers=(digest,)).run()
    return runs, digest.value


def table_of(seed: int, count: int = 12) -> JobTable:
    """Jobs in all phases, figures drawn; the same seed, the same table."""
    random, table = Random(seed), JobTable()
    for row in range(count):
        job = Job(job_id=str(row), sequence=row, submit_s=float(random.randrange(5)), gpus=random.choice([1, 2, 4, 8]))
        predicted = random.choice([math.nan, random.uniform(1, 1e4)])
        table.submit(row, job, remaining_s=random.uniform(1e3, 9e3), predicted_gpu_s=predicted)
        table.position[row] = random.randrange(1000)
        table.priority[row], table.share_level[row] = random.choice([0, 0, 5]), random.choice([-1, 0, 0])
        for change in range(random.randrange(4)):
            now_s = 10.0 + 50.0 * change + random.uniform(0, 9)
            if change % 2:
                table.stop(row, now_s=now_s)
            else:
                table.start(row, now_s=now_s, delay_s=0.0, speed=1.0)
    return table


def columns(table: JobTable, rows: Sequence[int]) -> JobColumns:
    return table.figures(np.array(rows, dtype=np.intp), 400.0)


# ---------------------------------------------------------------------- all of them


@settings(deadline=None, max_examples=200)
@given(policies, st.integers(0, 10_000), st.permutations(range(12)))
def test_a_jobs_keys_do_not_depend_on_who_stands_beside_it(name: str, seed: int, rows: list[int]) -> None:
    order, table = POLICIES[name], table_of(seed)

    alone = [[key.item() for key in order.keys(columns(table, [row]))] for row in rows]

    together = zip(*(key.tolist() for key in order.keys(columns(table, rows))), strict=True)
    assert [list(keys) for keys in together] == alone
    assert not any(math.isnan(value) for keys in alone for value in keys)


@settings(deadline=None, max_examples=200)
@given(policies, st.integers(0, 10_000))
def test_for_any_two_jobs_it_is_told_in_a_line_why_one_goes_first(name: str, seed: int) -> None:
    order, table = POLICIES[name], table_of(seed)
    everyone = columns(table, range(12))
    keys = (*order.keys(everyone), everyone.submit_s, everyone.sequence)
    ranked = np.lexsort(keys[::-1]).tolist()

    for first, second in pairwise(ranked):
        why = why_first(order, columns(table, [first]), columns(table, [second]))

        assert why
        assert "\n" not in why
        assert "nan" not in why.replace("nothing", "")
        assert "-" not in why.replace(order.name, "")


def test_of_equal_jobs_the_earlier_goes_first_then_the_one_with_the_lower_number() -> None:
    table = JobTable()
    for row, submit_s in enumerate([5.0, 5.0, 3.0]):
        job = Job(job_id=str(row), sequence=row, submit_s=submit_s, gpus=1)
        table.submit(row, job, remaining_s=9.0, predicted_gpu_s=9.0)
    one, other, early = (table.figures(np.array([row], dtype=np.intp), 6.0) for row in range(3))

    assert why_first(Srsf(), early, one) == "equal by srsf; came 2 s earlier"
    assert why_first(Srsf(), one, other) == "equal by srsf; came in the same second, and has the lower number"


rows_of_a_trace = st.lists(
    st.tuples(st.sampled_from([0, 0, 7, 20]), st.sampled_from([5, 20, 50]), st.sampled_from([1, 1, 2, 4, 8])),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, max_examples=100)
@given(policies, rows_of_a_trace, st.randoms(use_true_random=False))
def test_which_of_two_equal_jobs_bears_which_name_does_not_matter(
    name: str, rows: list[tuple[int, int, int]], random: Random
) -> None:
    jobs = trace((float(submit), float(duration), gpus) for submit, duration, gpus in rows)
    names = [job.job.job_id for job in jobs]
    random.shuffle(names)
    renamed = [
        TraceJob(
            job=Job(job_id=name, sequence=at, submit_s=job.job.submit_s, gpus=job.job.gpus), duration_s=job.duration_s
        )
        for at, (name, job) in enumerate(zip(names, jobs, strict=True))
    ]
    order = POLICIES[name]
    rules = Rules(order=order, placement=CountOnly())

    def ends(jobs: Sequence[TraceJob]) -> list[float]:
        return [run.end_s for run in Simulation(flat_cluster(1, 8), rules, jobs).run()]

    assert ends(renamed) == ends(jobs)


@settings(deadline=None, max_examples=100)
@given(policies, rows_of_a_trace)
def test_everybody_gets_all_the_time_that_it_needs(name: str, rows: list[tuple[int, int, int]]) -> None:
    jobs = trace((float(submit), float(duration), gpus) for submit, duration, gpus in rows)

    runs, _ = simulate(POLICIES[name], jobs)

    assert [run.held_s for run in runs] == pytest.approx([job.duration_s for job in jobs])


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_seed_gives_the_same_digest(name: str) -> None:
    random = Random(4)
    jobs = trace(
        (float(random.randrange(3000)), random.expovariate(1 / 90), random.choice([1, 1, 2, 8])) for _ in range(150)
    )

    assert simulate(POLICIES[name], jobs)[1] == simulate(POLICIES[name], jobs)[1]


# ---------------------------------------------------------------------- each


def ends(order: OrderPolicy, rows: list[tuple[float, float, int]], *, gpus: int) -> list[float]:
    return [run.end_s for run in simulate(order, trace(rows), gpus=gpus)[0]]


LARGE_THEN_SMALL = [(0.0, 10.0, 4), (1.0, 5.0, 2), (2.0, 5.0, 2), (2.0, 5.0, 1)]


def test_smallest_first_takes_gpus_from_the_large() -> None:
    assert ends(Smallest(), LARGE_THEN_SMALL, gpus=4) == [20, 6, 11, 7]


def test_smallest_first_without_preemption_waits_for_the_large() -> None:
    assert ends(Smallest(is_preemptive=False), LARGE_THEN_SMALL, gpus=4) == [10, 15, 20, 15]


def test_a_strict_smallest_first_lets_nobody_pass() -> None:
    """On 4 GPUs a job of 3 leaves one free; of who waits, the 2-GPU job is the smallest and has no room."""
    rows = [(0.0, 10.0, 3), (1.0, 5.0, 2), (1.0, 5.0, 4)]

    assert ends(Smallest(is_preemptive=False, is_strict=True), rows, gpus=4) == [10, 15, 20]


def test_yarn_lets_nobody_pass_and_best_effort_does() -> None:
    rows = [(0.0, 10.0, 3), (1.0, 5.0, 2), (2.0, 5.0, 1)]

    assert ends(make_order("yarn-cs", {}), rows, gpus=4) == [10, 15, 15]
    assert ends(Fifo(is_strict=False), rows, gpus=4) == [10, 15, 7]


def test_qssf_goes_by_what_is_expected_and_puts_the_unknown_last() -> None:
    jobs = trace([(0.0, 10.0, 1), (1.0, 9.0, 1), (1.0, 1.0, 1), (1.0, 5.0, 1)])
    expected = {"0": 10.0, "1": math.nan, "2": 7.0, "3": 3.0}
    simulation = Simulation(
        flat_cluster(1, 1),
        Rules(order=Qssf(), placement=CountOnly()),
        jobs,
        estimator=Foreknown(lambda job: expected[job.job.job_id], jobs),
    )

    assert [run.end_s for run in simulation.run()] == [10, 25, 16, 15]


def test_of_two_jobs_with_equally_much_left_srsf_takes_the_narrower() -> None:
    """At 4 s both have 16 GPU s left; then a third takes the GPUs of the wider."""
    rows = [(0.0, 8.0, 4), (0.0, 12.0, 2), (4.0, 1.0, 2)]

    assert ends(Srsf(), rows, gpus=6) == [9, 12, 5]


@pytest.mark.parametrize("name", [name for name in ORDERS if name != "yarn-cs"])
def test_under_a_policy_that_lets_others_pass_nobody_blocks(name: str) -> None:
    order = make_order(name, {})

    found = passing(order)

    assert not found.traits.is_strict
    assert type(found) is type(order)
    assert (found is order) == (not order.traits.is_strict)


def test_a_slice_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="at least"):
        Timeshare(quantum_s=0.0)
