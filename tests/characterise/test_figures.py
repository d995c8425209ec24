"""What the figures show, on logs small enough to count by hand."""

import math

import numpy as np
import pytest

from farside.errors import ConfigError
from farside.scheduler.sim.characterise import jobs, users
from farside.scheduler.sim.characterise.busy_times import diurnal, months, pattern
from farside.scheduler.sim.characterise.cluster_size import Sizes, sizes_of
from farside.scheduler.sim.characterise.tenants import box_of, imbalance, tenants
from farside.scheduler.sim.cluster import VcSize
from farside.scheduler.sim.trace.log import Status
from tests.characterise.logs import MONDAY_S, job, log

HOUR_S, DAY_S = 3600.0, 86400.0


def sizes(**gpus: int) -> Sizes:
    return Sizes(by_vc=tuple(VcSize(vc=name, gpus=count) for name, count in gpus.items()), gpus_per_node=8)


def test_a_day_is_the_mean_of_whole_days() -> None:
    found = log(
        [
            *(job(day * DAY_S + 9 * HOUR_S, wait_s=0, duration_s=HOUR_S, gpus=8, vc="a") for day in range(3)),
            job(3 * DAY_S + 60, wait_s=0, vc="a"),
        ]
    )

    day = diurnal(found, sizes(a=16))

    assert day.days == 2  # the first day has no midnight before it, the last does not end
    assert np.flatnonzero(day.submissions).tolist() == [9]
    assert day.submissions[9] == 1
    assert day.utilisation is not None
    assert day.utilisation[9] == pytest.approx(0.5)


def test_a_pattern_is_all_of_the_variance_or_none_of_it() -> None:
    every_day_the_same = np.tile(np.arange(24.0), (10, 1))
    chance = np.random.default_rng(1).random((200, 24))

    assert pattern(every_day_the_same) == pytest.approx(1.0)
    assert pattern(chance) < 0.02
    assert pattern(np.ones((10, 24))) == 0.0
    assert pattern(every_day_the_same[:1]) == 0.0


def test_months_tell_single_from_multi_gpu_jobs() -> None:
    found = log(
        [
            job(0, wait_s=0, duration_s=DAY_S, gpus=1),
            job(3 * DAY_S, wait_s=0, gpus=4),
            job(40 * DAY_S, wait_s=0, gpus=1),
        ]
    )

    told = months(found, Sizes(by_vc=(VcSize(vc="", gpus=8),), gpus_per_node=8))

    assert [(one.name, one.single, one.multi) for one in told] == [
        ("2020-03", 1, 0), ("2020-04", 0, 1), ("2020-05", 1, 0)
    ]  # fmt: skip
    assert told[0].use_single == pytest.approx(1 / 16)  # a day of two, one GPU of eight
    assert sum(one.days for one in told) == pytest.approx(40)


def test_virtual_clusters_have_boxes_by_minute() -> None:
    found = log([job(0, wait_s=60, duration_s=600, gpus=8, vc="a"), job(600, wait_s=0, duration_s=60, gpus=2, vc="a")])

    (one,) = tenants(found, sizes(a=8, empty=8))

    assert (one.name, one.gpus, one.jobs, one.mean_gpus) == ("a", 8, 2, 5.0)
    assert one.mean_wait_s == 30.0
    assert one.box[2] == 1.0


def test_whiskers_end_within_the_data() -> None:
    low, first, middle, third, high = box_of(np.array([0.0, 0.5, 0.5, 0.55, 0.6, 0.6, 1.0]))

    assert (low, middle, high) == (0.5, 0.55, 0.6)
    assert low <= first <= middle <= third <= high


def test_waiting_beside_idle_gpus_is_counted_and_waiting_in_full_clusters_is_not() -> None:
    full = [job(0, wait_s=0, duration_s=2 * HOUR_S, gpus=8, vc="full")]
    waits = [job(0, wait_s=HOUR_S, duration_s=60, gpus=4, vc="full"), job(2 * HOUR_S, wait_s=0, gpus=1, vc="full")]
    idle = [job(0, wait_s=0, duration_s=10, gpus=1, vc="idle")]
    busy = [job(0, wait_s=0, duration_s=2 * HOUR_S, gpus=8, vc="idle")]

    beside_idle = imbalance(log(full + waits + idle), sizes(full=8, idle=8))
    beside_busy = imbalance(log(full + waits + busy), sizes(full=8, idle=8))

    assert beside_idle.waiting_gpu_s == pytest.approx(4 * HOUR_S)
    assert beside_idle.share == pytest.approx(1.0)
    assert beside_busy.share == pytest.approx(0.0)


def test_demand_is_told_by_jobs_and_by_gpu_time() -> None:
    found = jobs.demand(log([job(gpus=1, duration_s=10)] * 3 + [job(gpus=8, duration_s=100)]))

    assert found.gpus.tolist() == [1, 8]
    assert found.share_of_jobs.tolist() == [0.75, 1.0]
    assert found.single() == pytest.approx((0.75, 30 / 830))


def test_ends_are_told_by_jobs_by_gpu_time_and_by_demand() -> None:
    found = log(
        [
            job(gpus=1, duration_s=10, status=Status.COMPLETED),
            job(gpus=1, duration_s=10, status=Status.FAILED),
            job(gpus=5, duration_s=36, status=Status.CANCELED),
            job(gpus=64, duration_s=1),
        ]
    )

    assert jobs.ends(found) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert jobs.ends(found, jobs.gpu_s(found)) == (0.05, 0.9, 0.05)
    assert jobs.ends_by_demand(found) == {"1": (0.5, 0.0, 0.5), "4-7": (0.0, 1.0, 0.0)}
    assert jobs.ends(log([job()])) is None


def test_users_are_ranked_by_what_they_have() -> None:
    found = log(
        [job(user="a", duration_s=90), job(user="b", duration_s=10), job(user="c", duration_s=0), job(duration_s=5)]
    )

    told = users.concentration(found, jobs.gpu_s(found), users=3)

    assert told is not None
    assert told.share.tolist() == [0.9, 1.0, 1.0]
    assert told.of_top(0.05) == 0.9
    assert told.top(0.7) == {0, 1}
    assert users.concentration(found, np.zeros(4), users=3) is None
    assert users.concentration(log([job()]), np.ones(1), users=0) is None


def test_completion_rates_count_known_ends_only() -> None:
    done, failed = Status.COMPLETED, Status.FAILED
    found = log(
        [
            job(user="a", status=done),
            job(user="a", status=failed),
            job(user="a"),
            job(user="b", status=done),
            job(user="c"),
        ]
    )

    assert users.completion_rates(found).tolist() == [0.5, 1.0]


def test_sizes_are_guessed_from_what_was_in_use_at_once() -> None:
    found = log(
        [
            job(0, wait_s=0, gpus=6, vc="a"),
            job(50, wait_s=0, gpus=6, vc="a"),
            job(150, wait_s=0, gpus=6, vc="a"),
            job(0, wait_s=0),
        ]
    )

    guessed = sizes_of(found)

    assert guessed is not None
    assert guessed.is_guess
    assert guessed.largest == {"a": 16, "": 8}
    assert sizes_of(log([job()])) is None


def test_sizes_change_by_time() -> None:
    told = (VcSize(vc="a", gpus=8), VcSize(vc="a", gpus=16, from_s=MONDAY_S), VcSize(vc="b", gpus=8))
    found = Sizes(by_vc=told, gpus_per_node=8)

    assert found.at(np.array([0.0, MONDAY_S])).tolist() == [16, 24]
    assert found.at(np.array([0.0, MONDAY_S]), "a").tolist() == [8, 16]
    assert found.gpus == 24


def test_sizes_of_other_virtual_clusters_are_refused() -> None:
    with pytest.raises(ConfigError, match="names none of the log's virtual clusters, such as 'a'; it names z"):
        sizes_of(log([job(vc="a")]), vc_sizes=(VcSize(vc="z", gpus=8),))
    with pytest.raises(ConfigError, match="exclude each other"):
        sizes_of(log([job(vc="a")]), nodes=2, vc_sizes=(VcSize(vc="a", gpus=8),))


def test_a_start_before_the_submission_is_no_wait() -> None:
    assert math.isnan(log([job(wait_s=-5)]).wait_s[0])
