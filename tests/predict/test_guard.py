"""QSSF's guard against starvation: short jobs overtake, who has waited too long goes in order of arrival."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.domain import Rules
from farside.scheduler.order.catalog import make_order
from farside.scheduler.order.qssf import Cut, Qssf, short_up_to_gpu_s
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.sim.estimator import Foreknown
from farside.scheduler.sim.oracle import Oracle
from farside.scheduler.sim.simulation import Run, Simulation
from farside.scheduler.sim.trace.job import TraceJob
from tests.support.traces import flat_cluster, trace

HOUR_S = 3600.0


def run(order: Qssf, jobs: list[TraceJob], gpus: int = 1) -> list[Run]:
    rules = Rules(order=order, placement=CountOnly())
    return list(Simulation(flat_cluster(1, gpus), rules, jobs, estimator=Foreknown(Oracle(), jobs)).run())


def flood(long_s: float, short_s: float, shorts: int) -> list[TraceJob]:
    """A long job comes while a first one runs, and then more short ones than one GPU can do."""
    return trace([(0.0, 10.0, 1), (1.0, long_s, 1), *((2.0 + at * short_s, short_s, 1) for at in range(shorts))])


def test_without_a_guard_a_long_job_waits_for_all_that_come() -> None:
    runs = run(Qssf(patience_s=math.inf), flood(10 * HOUR_S, 600.0, 100))

    assert runs[1].start_s == max(one.start_s for one in runs)


def test_with_a_guard_it_starts_when_its_patience_ends() -> None:
    runs = run(Qssf(patience_s=2 * HOUR_S), flood(10 * HOUR_S, 600.0, 100))

    assert 2 * HOUR_S <= runs[1].start_s - 1.0 <= 2 * HOUR_S + 600.0


def test_short_jobs_overtake_even_who_has_lost_patience() -> None:
    order = Qssf(patience_s=2 * HOUR_S, cut=Cut(600.0, 10**9))

    runs = run(order, flood(10 * HOUR_S, 600.0, 100))

    assert runs[1].start_s == max(one.start_s for one in runs)


def test_those_without_patience_go_in_order_of_arrival() -> None:
    rows = [(0.0, 100.0, 1), (1.0, 50.0, 1), (2.0, 40.0, 1), (3.0, 30.0, 1)]

    runs = run(Qssf(patience_s=10.0), trace(rows))

    assert [one.start_s for one in runs] == [0.0, 100.0, 150.0, 190.0]


def test_jobs_of_which_nothing_is_expected_lose_patience_too() -> None:
    rules = Rules(order=Qssf(patience_s=HOUR_S), placement=CountOnly())
    jobs = flood(10.0, 600.0, 50)

    def predict(job: TraceJob) -> float:
        return math.nan if job.duration_s == 10.0 and job.job.submit_s else job.duration_s

    runs = Simulation(flat_cluster(1, 1), rules, jobs, estimator=Foreknown(predict, jobs)).run()

    assert HOUR_S <= runs[1].start_s - 1.0 <= HOUR_S + 600.0


@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(0.0, 1e6)), min_size=1, max_size=50),
    st.floats(0.0, 1.0),
)
def test_short_jobs_are_never_more_of_the_work_than_the_share(rows: list[tuple[int, float]], share: float) -> None:
    expected, true = np.array([float(one) for one, _ in rows]), np.array([work for _, work in rows])

    cut = short_up_to_gpu_s(expected, true, share)

    assert true[expected <= cut].sum() <= share * true.sum() * (1 + 1e-9)


def test_equal_expectations_are_cut_together() -> None:
    expected, true = np.array([1.0, 1.0, 2.0, 8.0]), np.array([1.0, 1.0, 2.0, 6.0])

    assert short_up_to_gpu_s(expected, true, 0.19) == 0.0
    assert short_up_to_gpu_s(expected, true, 0.2) == 1.0
    assert short_up_to_gpu_s(expected, true, 0.4) == 2.0


def test_jobs_without_an_expectation_are_work_that_is_not_short() -> None:
    expected, true = np.array([1.0, math.nan]), np.array([1.0, 9.0])

    assert short_up_to_gpu_s(expected, true, 0.1) == 1.0
    assert short_up_to_gpu_s(expected, true, 0.05) == 0.0


def test_the_cut_is_learned_from_ended_jobs() -> None:
    ended, expected = [1.0] * 90 + [100.0] * 10, [2.0] * 90 + [50.0] * 10

    learned = Qssf().learn(ended, expected)

    assert learned.cut == Cut(2.0, 100)
    assert learned.learn([*ended, 1.0], [*expected, 2.0]) is learned


def test_the_cut_is_learned_again_from_the_newest_jobs_when_all_are_a_tenth_more() -> None:
    ended, expected = [1.0] * 90 + [100.0] * 10, [2.0] * 90 + [50.0] * 10
    learned = Qssf().learn(ended, expected, seen=1000)

    assert learned.cut == Cut(2.0, 1000)
    assert learned.learn(ended, expected, seen=1099) is learned
    assert learned.learn(ended, expected, seen=1100).cut == Cut(2.0, 1100)


def test_without_patience_nothing_is_learned() -> None:
    order = Qssf(patience_s=math.inf)

    assert order.learn([1.0] * 100, [1.0] * 100) is order


def test_settings_of_the_guard_are_checked() -> None:
    assert make_order("qssf", {"patience_s": "24h", "overtaking_share": "10%"}) == Qssf(
        patience_s=24 * HOUR_S, overtaking_share=0.1
    )
    with pytest.raises(ConfigError, match="overtaking_share: must be at most 1"):
        make_order("qssf", {"overtaking_share": "2"})
