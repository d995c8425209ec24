"""A job log with shared aggregation: what is counted, and when."""

import random

import pytest

from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Profile
from farside.scheduler.sharing.aggregation.pool import PoolSettings
from farside.scheduler.sim.aggregation.job_log import LogResult, play
from farside.scheduler.sim.aggregation.models import MODELS, TrainedModel, drawn_profile

LIMITS = Limits(cycle_multiple=4, period_tolerance=0.0)


def run(*jobs: tuple[float, float, float], servers: int = 1, **settings: int) -> LogResult:
    """Jobs by begin, end and share of one Aggregator."""
    timed = [
        (begin_s, end_s, Profile(job=f"{at}", iteration_s=1.0, tasks_s=(share / 2, share / 2), servers=servers))
        for at, (begin_s, end_s, share) in enumerate(jobs)
    ]
    return play(timed, LIMITS, PoolSettings(**settings), 300.0)


def test_two_half_jobs_hold_one_aggregator_where_they_would_reserve_two_servers() -> None:
    result = run((0, 600, 0.4), (0, 600, 0.4))

    assert (result.asked_core_s, result.held_core_s) == (1200, 600)
    assert result.saved_share == 0.5
    assert result.ratios == [0.5] * 9


def test_an_aggregator_without_jobs_is_held_to_the_end_of_its_period() -> None:
    result = run((0, 630, 0.4), (0, 200, 0.9))

    # The second one is in reserve from 200 to 300 s, and as the period needed 1.67 on average, to 600 s.
    assert result.held_core_s == 630 + 600
    assert result.asked_core_s == 630 + 200
    assert result.ratios[-1] == 2.0


def test_a_job_that_waits_reserves_nothing_meanwhile() -> None:
    result = run((0, 600, 0.9), (10, 900, 0.9), servers_max=1)

    assert result.waited == 1
    assert result.asked_core_s == 900


def test_a_job_that_never_fits_is_counted_with_its_reason() -> None:
    result = run((0, 600, 1.5), (0, 600, 0.5))

    assert result.refused == 1
    assert "too much for servers=1" in result.why_refused


def test_a_drawn_job_has_a_server_for_each_worker_or_for_each_two() -> None:
    rng = random.Random(1)

    assert {drawn_profile("a", 32, rng).servers for _ in range(50)} == {4, 8}
    assert {drawn_profile("a", 2, rng).servers for _ in range(50)} == {1}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_no_task_of_a_model_is_larger_than_an_aggregator(model: TrainedModel) -> None:
    profile = model.profile("a", 4)

    assert max(profile.tasks_s) < profile.iteration_s
    assert profile.cpu_s == pytest.approx(4 * profile.iteration_s * model.busy_share)
