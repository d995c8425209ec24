"""The rolling estimate and its three cases."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.scheduler.predict import rolling_estimate
from farside.scheduler.predict.rolling_estimate import LEVELS, NOBODY_KNOWS_S, RollingEstimator, RollingParams
from tests.predict.log import job

PAPER = RollingParams(prior_jobs=0.0, decay=1.0)


def known(params: RollingParams = PAPER) -> RollingEstimator:
    estimator = RollingEstimator(params)
    estimator.add(job(user="ann", name="train_resnet_imagenet", gpus=8), 1000.0)
    estimator.add(job(user="ann", name="train_resnet_imagenet", gpus=8), 4000.0)
    estimator.add(job(user="ann", name="debug", gpus=1), 10.0)
    estimator.add(job(user="bob", name="train_resnet_imagenet", gpus=8), 50.0)
    return estimator


def test_without_history_all_jobs_are_expected_to_run_equally_long() -> None:
    found = RollingEstimator(PAPER).expect(job(user="ann", name="debug", gpus=4))

    assert (found.duration_s, found.case, found.jobs) == (NOBODY_KNOWS_S, "nothing", 0)


def test_a_new_user_gets_the_average_of_jobs_with_as_many_gpus() -> None:
    found = known().expect(job(user="eve", name="train_resnet_imagenet", gpus=8))

    assert found.case == "new user"
    assert found.duration_s == pytest.approx((1000 * 4000 * 50) ** (1 / 3))


def test_a_job_without_a_user_is_one_of_a_new_user() -> None:
    assert known().expect(job(name="debug", gpus=1)).duration_s == pytest.approx(10.0)


def test_where_nobody_had_as_many_gpus_all_jobs_count() -> None:
    assert known().expect(job(user="eve", gpus=3)).duration_s == pytest.approx((1000 * 4000 * 10 * 50) ** 0.25)


def test_a_user_without_a_similar_name_gets_the_average_of_his_jobs_with_as_many_gpus() -> None:
    found = known().expect(job(user="ann", name="something else", gpus=8))

    assert found.case == "no similar name"
    assert found.duration_s == pytest.approx(2000.0)


def test_a_similar_name_counts_whatever_its_gpus() -> None:
    found = known().expect(job(user="bob", name="train_resnet_imagenett", gpus=2))

    assert found.case == "similar name"
    assert found.duration_s == pytest.approx(50.0)


def test_the_very_same_form_goes_before_a_similar_one() -> None:
    estimator = known()
    estimator.add(job(user="bob", name="train_resnet_imagenets", gpus=8), 800.0)

    assert estimator.expect(job(user="bob", name="train_resnet_imagenets")).duration_s == pytest.approx(800.0)


def test_newer_jobs_of_a_name_count_more() -> None:
    estimator = RollingEstimator(RollingParams(prior_jobs=0.0, decay=0.5))
    for ran_s in (100.0, 10_000.0):
        estimator.add(job(user="ann", name="debug"), ran_s)

    # weights 1/3 and 2/3, in logarithms
    assert estimator.expect(job(user="ann", name="debug")).duration_s == pytest.approx(100 ** (1 / 3) * 1e4 ** (2 / 3))


def test_one_job_of_a_name_does_not_decide_alone() -> None:
    estimator = RollingEstimator(RollingParams(prior_jobs=1.0))
    for _ in range(1000):
        estimator.add(job(user="ann", name="usual"), 100.0)
    estimator.add(job(user="ann", name="once_before_now"), 10_000.0)

    assert 100.0 < estimator.expect(job(user="ann", name="once_before_now")).duration_s < 10_000.0


@given(st.lists(st.tuples(st.sampled_from(["", "ann", "bob"]), st.text(max_size=5), st.floats(0.0, 1e12))))
def test_an_estimate_is_above_0_and_within_what_was_seen(rows: list[tuple[str, str, float]]) -> None:
    estimator = RollingEstimator(RollingParams(prior_jobs=1.0))
    for user, name, ran_s in rows:
        estimator.add(job(user=user, name=name), ran_s)
    seen = [rolling_estimate.bounded_s(ran_s) for _, _, ran_s in rows] or [NOBODY_KNOWS_S]

    found = estimator.expect(job(user="ann", name="a")).duration_s

    assert min(seen) * (1 - 1e-9) <= found <= max(seen) * (1 + 1e-9)


def test_the_names_added_to_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolling_estimate, "MOST_NAMED", 10)
    estimator = RollingEstimator(PAPER)
    estimator.add(job(user="ann", name="the first of all"), 5.0)
    for at in range(100):
        estimator.add(job(user="ann", name=chr(97 + at % 26) * (5 + at)), 1000.0)

    assert len(estimator._named) <= 12
    assert estimator.expect(job(user="ann", name="the first of all")).case == "no similar name"


@pytest.mark.parametrize("wrong", [{"decay": 0.0}, {"similarity": 1.5}, {"prior_jobs": math.inf}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RollingParams(**wrong)


def test_a_users_average_counts_for_new_names_only_where_users_differ() -> None:
    chance = random.Random(1)
    counts = {}
    for differ in (0.0, 3.0):
        estimator = RollingEstimator(RollingParams())
        means = {f"u{user}": 6.0 + differ * chance.gauss(0, 1) for user in range(20)}
        for at in range(1500):
            user = f"u{at % 20}"
            name = "".join(chance.choices("abcdefghijklmnop", k=12))
            estimator.add(job(user=user, name=name), math.exp(means[user] + chance.gauss(0, 1)))
        counts[differ] = estimator.shrinkage.prior_jobs(LEVELS.index("user_gpus"), LEVELS.index("user"))

    assert counts[0.0] >= 100.0
    assert counts[3.0] <= 1.0


def test_a_name_that_says_all_is_believed_at_once() -> None:
    chance = random.Random(2)
    estimator = RollingEstimator(RollingParams())
    names = {f"job-{chance.getrandbits(24):06d}x".replace("0", "q"): 2.0 + 8.0 * chance.random() for _ in range(200)}
    for _ in range(8):
        for name, mean in names.items():
            estimator.add(job(user="ann", name=name), math.exp(mean + chance.gauss(0, 0.1)))
    estimator.add(job(user="ann", name="never seen before"), 5.0)

    assert estimator.expect(job(user="ann", name="never seen before")).duration_s == pytest.approx(5.0, rel=0.5)
