"""What the simulator says would have come of acting on an implication."""

import numpy as np
import pytest

from farside.scheduler.sim.characterise.cluster_size import Sizes
from farside.scheduler.sim.characterise.replay import HeadStarts, Stage, busiest, stage, trace_jobs, waits_s
from farside.scheduler.sim.characterise.what_if import boost, debug_queue, early_stop, lending
from farside.scheduler.sim.cluster import VcSize
from farside.scheduler.sim.trace.log import Logged, Status
from tests.characterise.logs import job, log

HOUR_S = 3600.0


def staged(jobs: list[Logged], *, is_pool: bool = False, **gpus: int) -> Stage:
    by_vc = tuple(VcSize(vc=name, gpus=count) for name, count in gpus.items())
    return stage(log(jobs), Sizes(by_vc=by_vc or (VcSize(vc="", gpus=8),), gpus_per_node=8, is_pool=is_pool))


def test_jobs_wait_first_come_first_served() -> None:
    found = staged([job(0, gpus=8), job(10, gpus=8), job(20, gpus=8)], is_pool=True)

    assert waits_s(found).tolist() == [0, 90, 180]


def test_jobs_that_fit_nowhere_are_left_out_and_counted() -> None:
    found = staged([job(gpus=9, vc="a"), job(gpus=8, vc="a"), job(gpus=1, vc="unknown")], a=8)

    assert (len(found.log), found.left_out) == (1, 2)


def test_the_busiest_stretch_is_the_one_that_asks_for_most() -> None:
    quiet = [job(at * HOUR_S, duration_s=10) for at in range(50)]
    busy = [job(50 * HOUR_S + at, duration_s=500) for at in range(50)]

    found = busiest(staged(quiet + busy, is_pool=True), 40)

    assert len(found.log) == 40
    assert found.log.duration_s.mean() == 500


def test_lending_takes_jobs_to_idle_virtual_clusters() -> None:
    found = staged([job(at, gpus=8, vc="a", duration_s=HOUR_S) for at in range(3)] + [job(0, vc="b")], a=8, b=16)

    told = lending(found, waits_s(found))

    assert told is not None
    (everyone,) = told.groups
    assert everyone.before_s > HOUR_S / 2
    assert everyone.after_s < everyone.before_s / 2


def test_nobody_lends_in_one_pool() -> None:
    found = staged([job()], is_pool=True)

    assert lending(found, waits_s(found)) is None


def test_failing_jobs_that_are_stopped_half_way_make_room() -> None:
    jobs = [job(0, gpus=8, duration_s=HOUR_S, status=Status.FAILED), job(1, gpus=8, status=Status.COMPLETED)]
    found = staged(jobs, is_pool=True)

    told = early_stop(found, waits_s(found))

    assert told is not None
    assert told.saved_gpu_s == 8 * HOUR_S / 2
    assert told.groups[0].before_s - told.groups[0].after_s == pytest.approx(HOUR_S / 4)
    assert early_stop(staged([job(status=Status.COMPLETED)], is_pool=True), np.zeros(1)) is None


def test_short_jobs_do_not_wait_in_a_queue_of_their_own() -> None:
    long = [job(at, gpus=8, duration_s=HOUR_S) for at in range(4)]
    short = [job(100 + at, gpus=1, duration_s=30, status=Status.FAILED) for at in range(4)]
    by_vc = (VcSize(vc="", gpus=32),)
    found = stage(log(long + short), Sizes(by_vc=by_vc, gpus_per_node=8, is_pool=True))

    told = debug_queue(found, waits_s(found))

    assert told is not None
    groups = {group.name: group for group in told.groups}
    assert groups["short jobs"].before_s > HOUR_S / 2
    assert groups["short jobs"].after_s == 0
    assert groups["others"].after_s > groups["others"].before_s  # a node less


def test_no_node_is_taken_that_the_largest_job_needs() -> None:
    found = staged([job(gpus=8), job(duration_s=10)], is_pool=True)

    assert debug_queue(found, waits_s(found)) is None


def test_who_waited_most_goes_first_and_the_future_does_not_count() -> None:
    # The first two jobs make "patient" wait; after that both users come again while the cluster is full.
    jobs = [
        job(0, gpus=8, duration_s=HOUR_S, user="hog"),
        job(1, gpus=8, duration_s=HOUR_S, user="patient"),
        job(3700, gpus=8, duration_s=HOUR_S, user="hog"),
        job(3701, gpus=8, duration_s=HOUR_S, user="patient"),
    ]
    found = staged(jobs, is_pool=True)
    before_s = waits_s(found)

    told = boost(found, before_s)

    assert told is not None
    groups = {group.name: group for group in told.groups}
    assert groups["jobs of who waited most before"].after_s < groups["jobs of who waited most before"].before_s
    assert groups["others"].after_s > groups["others"].before_s


def test_a_head_start_knows_only_what_has_started() -> None:
    found = staged([job(0, user="a"), job(1, user="b")], is_pool=True)
    starts = HeadStarts(found.log.user, 2, 0.5)

    counted_as = [starts(entry) for entry in trace_jobs(found)]

    assert counted_as == found.log.submit_s.tolist()


def test_nobody_is_boosted_where_nobody_waits() -> None:
    found = staged([job(user="a")], is_pool=True)

    assert boost(found, waits_s(found)) is None
