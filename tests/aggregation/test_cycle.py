"""Cyclic execution of jobs with different iterations on one Aggregator."""

import pytest

from farside.scheduler.sharing.aggregation.cycle import (
    Demand,
    Limits,
    best_cycle_s,
    is_fair,
    loss,
    runs,
    shared_iteration_s,
    work_s,
)

PAPER = Limits(cycle_multiple=1, period_tolerance=0.0)
EXACT = Limits(cycle_multiple=4, period_tolerance=0.0)


def test_the_papers_toy_example_has_a_cycle_of_12_and_work_for_7() -> None:
    """[autops Figure 4.6]: two runs of 2 units, and one of 3."""
    both = [Demand(6.0, 2.0), Demand(12.0, 3.0)]

    assert best_cycle_s(both, PAPER) == 12.0
    assert work_s(12.0, both) == 7.0


def test_a_job_of_5_on_a_cycle_of_12_runs_every_6_and_loses_a_sixth() -> None:
    """[autops §4.3.3.2]: "may lose 17 % of its training speed"."""
    assert runs(12.0, 5.0) == 2
    assert shared_iteration_s(12.0, 5.0) == 6.0
    assert loss(12.0, 5.0) == pytest.approx(1 / 6)
    assert best_cycle_s([Demand(5.0, 1.0), Demand(12.0, 3.0)], PAPER) is None


def test_a_longer_cycle_lets_jobs_share_that_the_papers_does_not() -> None:
    both = [Demand(5.0, 1.0), Demand(12.0, 3.0)]

    # Three runs of 12 give seven of 5, which lose one part in 36.
    assert best_cycle_s(both, EXACT) == 36.0
    assert loss(36.0, 5.0) == pytest.approx(1 / 36)


def test_what_was_measured_a_little_too_long_still_fits() -> None:
    # 3.0005 s beside 6.0 s: two runs, not one.
    assert runs(6.0, 3.0005, tolerance=0.02) == 2
    assert loss(6.0, 3.0005, tolerance=0.02) == 0.0
    assert loss(6.0, 3.0005) == pytest.approx(0.5, abs=1e-3)


def test_equal_times_are_equal_whatever_their_last_bits() -> None:
    assert runs(0.1 + 0.2, 0.1) == 3
    assert runs(0.7, 0.1) == 7


def test_a_cycle_is_kept_where_a_shorter_one_would_cost_too_much() -> None:
    # With 12 they share without loss. Without it the longest is 6, in which 4 runs once.
    left = [Demand(6.0, 1.0), Demand(4.0, 1.0)]

    assert best_cycle_s([*left, Demand(12.0, 1.0)], PAPER) == 12.0
    assert best_cycle_s(left, PAPER) is None
    assert best_cycle_s(left, PAPER, kept_s=12.0) == 12.0
    assert best_cycle_s(left, EXACT, kept_s=12.0) == 12.0


def test_a_cycle_without_the_time_for_all_work_is_not_taken() -> None:
    assert not is_fair(10.0, [Demand(10.0, 6.0), Demand(10.0, 5.0)], PAPER)
    assert is_fair(10.0, [Demand(10.0, 6.0), Demand(10.0, 5.0)], Limits(capacity=1.1))


@pytest.mark.parametrize(
    "wrong",
    [{"loss_limit": 0.0}, {"loss_limit": 1.0}, {"capacity": 0.0}, {"cycle_multiple": 0}, {"period_tolerance": 0.1}],
)
def test_a_limit_out_of_bounds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)  # type: ignore[arg-type]
