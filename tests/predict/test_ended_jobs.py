"""Ended jobs that a model is fitted to: the newest, in the order of their ends, however they are kept."""

import numpy as np
import pytest

from farside.scheduler.predict import gpu_time_fit
from farside.scheduler.predict.gpu_time_fit import EndedJobs, Lesson
from farside.scheduler.predict.job_features import FEATURES


def lesson_of(most: int, ended: int) -> Lesson:
    jobs = EndedJobs(most)
    for at in range(ended):
        row = np.full(len(FEATURES), float(at))
        row[0] = np.nan
        jobs.add(
            row, ran_s=at + 0.5, gpus=at % 8, kind=at % 3, rolling_median_s=2.0 * at, rolling_s=3.0 * at,
            submit_s=1000.0 - at,
        )  # fmt: skip
    assert len(jobs) == min(most, ended)
    return jobs.lesson(rolling_weight=0.25, is_first=True)


@pytest.mark.parametrize(("most", "ended"), [(100, 3), (100, 7), (7, 7), (7, 8), (7, 13), (7, 14), (5, 12)])
def test_a_lesson_has_the_newest_jobs_in_the_order_of_their_ends(
    most: int, ended: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_time_fit, "FIRST_ROOM", 2)

    found = lesson_of(most, ended)

    kept = list(range(max(0, ended - most), ended))
    assert found.rows[:, 1:].tolist() == [[float(at)] * (len(FEATURES) - 1) for at in kept]
    assert np.isnan(found.rows[:, 0]).all()
    assert found.ran_s.tolist() == [at + 0.5 for at in kept]
    assert (found.gpus.tolist(), found.kinds.tolist()) == ([at % 8 for at in kept], [at % 3 for at in kept])
    assert found.rolling_median_s.tolist() == [2.0 * at for at in kept]
    assert found.rolling_s.tolist() == [3.0 * at for at in kept]
    assert (found.from_s, found.rolling_weight, found.is_first) == (1000.0 - kept[-1], 0.25, True)


def test_jobs_that_end_later_change_no_lesson_that_was_given_out() -> None:
    """It is read by another thread meanwhile."""
    jobs = EndedJobs(2)
    for at in (1.0, 2.0):
        jobs.add(np.zeros(len(FEATURES)), ran_s=at, gpus=1, kind=0, rolling_median_s=1.0, rolling_s=1.0, submit_s=0.0)
    found = jobs.lesson(rolling_weight=0.5, is_first=False)

    jobs.add(np.ones(len(FEATURES)), ran_s=3.0, gpus=1, kind=0, rolling_median_s=1.0, rolling_s=1.0, submit_s=0.0)

    assert found.ran_s.tolist() == [1.0, 2.0]
    assert not found.rows.any()
