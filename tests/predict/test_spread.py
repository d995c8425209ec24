"""From medians to means."""

import math

import pytest

from farside.scheduler.predict.mean_correction import MOST_VARIANCE, Spread, kind_of
from farside.scheduler.predict.rolling_estimate import RollingEstimator, RollingParams
from tests.predict.log import job


def test_before_any_job_has_ended_the_mean_is_the_median() -> None:
    assert Spread().factor(3) == 1.0


def test_jobs_that_were_far_off_have_a_mean_far_above_their_median() -> None:
    spread = Spread()
    for at in range(5000):
        spread.add(1, 0.5 if at % 2 else -0.5)
        spread.add(2, 2.0 if at % 2 else -2.0)

    assert spread.factor(1) == pytest.approx(math.exp(0.25 / 2), rel=0.05)
    assert spread.factor(2) == pytest.approx(math.exp(4.0 / 2), rel=0.05)
    assert spread.factor(3) == pytest.approx(math.exp((0.25 + 4.0) / 4), rel=0.05)  # nothing is known of its kind


def test_the_factor_is_bounded() -> None:
    spread = Spread()
    spread.add(1, 1e6)

    assert spread.factor(1) == math.exp(MOST_VARIANCE / 2)


def test_a_name_that_came_often_is_another_kind_than_one_that_came_once() -> None:
    estimator = RollingEstimator(RollingParams())
    kinds = []
    for _ in range(25):
        kinds.append(kind_of(estimator.expect(job(user="ann", name="nightly"))))
        estimator.add(job(user="ann", name="nightly"), 60.0)

    assert len(set(kinds)) == 5  # nobody, once, from 2, from 5, from 20 on
    assert kinds == sorted(kinds)
