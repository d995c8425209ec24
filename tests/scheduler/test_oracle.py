"""The estimator that errs by a stated factor."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.domain import Rules
from farside.scheduler.order.qssf import Qssf
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.estimator import Foreknown
from farside.scheduler.sim.oracle import Oracle
from farside.scheduler.sim.simulation import Simulation
from tests.support.traces import flat_cluster, trace

JOBS = trace((float(at), 50.0 + at, 1 + at % 8) for at in range(2000))


def test_without_an_error_it_tells_the_truth() -> None:
    assert [Oracle()(job) for job in JOBS] == [job.duration_s * job.job.gpus for job in JOBS]


@given(st.integers(0, 50), st.floats(1.0, 100.0))
def test_it_never_expects_nothing_or_less(seed: int, error_factor: float) -> None:
    oracle = Oracle(error_factor=error_factor, seed=seed)

    assert min(oracle(job) for job in JOBS[:50]) > 0


def test_its_errors_are_as_large_as_stated() -> None:
    ratios = [Oracle(error_factor=3.0)(job) / (job.duration_s * job.job.gpus) for job in JOBS]

    assert median(ratios) == pytest.approx(1.0, rel=0.08)
    assert sum(1 / 3 <= ratio <= 3 for ratio in ratios) / len(ratios) == pytest.approx(0.68, abs=0.03)
    assert sum(1 / 9 <= ratio <= 9 for ratio in ratios) / len(ratios) == pytest.approx(0.95, abs=0.02)


def test_a_jobs_error_depends_on_the_seed_and_nothing_else() -> None:
    oracle = Oracle(error_factor=2.0, seed=1)

    assert [oracle(job) for job in reversed(JOBS)] == [oracle(job) for job in JOBS][::-1]
    assert oracle(JOBS[0]) != Oracle(error_factor=2.0, seed=2)(JOBS[0])


def test_a_factor_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Oracle(error_factor=0.5)


def test_the_larger_its_errors_the_less_qssf_gains() -> None:
    rows = [(float(at), 1.0 + (at * 7919) % 997, 1) for at in range(300)]

    def average_s(error_factor: float) -> float:
        rules = Rules(order=Qssf(), placement=CountOnly())
        jobs, oracle = trace(rows), Oracle(error_factor=error_factor)
        runs = Simulation(flat_cluster(1, 4), rules, jobs, estimator=Foreknown(oracle, jobs)).run()
        return sum(run.end_s - job.job.submit_s for run, job in zip(runs, jobs, strict=True)) / len(jobs)

    assert average_s(1.0) < average_s(2.0) < average_s(50.0)
