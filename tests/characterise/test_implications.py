"""Which of the seven implications hold: logs made so that they do, or do not, or cannot tell."""

import math

import numpy as np
import pytest

from farside.scheduler.sim.characterise.cluster_size import Sizes, sizes_of
from farside.scheduler.sim.characterise.implications import Verdict, verdicts
from farside.scheduler.sim.characterise.survey import survey
from farside.scheduler.sim.cluster import VcSize
from farside.scheduler.sim.trace.log import JobLog, Logged, Status
from tests.characterise.logs import job, log

HOUR_S, DAY_S = 3600.0, 86400.0


def judged(jobs: list[Logged], sizes: Sizes | None = None) -> tuple[Verdict, ...]:
    found: JobLog = log(jobs)
    return verdicts(survey(found, sizes or sizes_of(found)))


def test_a_daily_pattern_is_seen_and_chance_is_not() -> None:
    rng = np.random.default_rng(1)
    office = [
        job(day * DAY_S + hour * HOUR_S, wait_s=0, duration_s=HOUR_S) for day in range(20) for hour in range(8, 18)
    ]
    chance = [job(float(at), wait_s=0, duration_s=HOUR_S) for at in rng.integers(0, int(20 * DAY_S), 2000)]

    assert judged(office)[0].holds is True
    assert judged(chance)[0].holds is False
    assert judged(office[:30])[0].holds is None  # three days


def test_steady_multi_gpu_jobs_hold_the_second_implication() -> None:
    jobs = []
    for month, singles in enumerate((1, 10, 2, 12)):
        for day in range(28):
            at_s = (month * 30.5 + day) * DAY_S
            jobs += [job(at_s, wait_s=0, gpus=8, duration_s=DAY_S)] + [job(at_s, wait_s=0)] * singles

    assert judged(jobs)[1].holds is True
    assert judged([one._replace(gpus=8 if one.gpus == 1 else 1) for one in jobs])[1].holds is False
    assert judged(jobs[:100])[1].holds is None


def test_waiting_beside_idle_nodes_holds_the_third() -> None:
    jobs = [job(at * HOUR_S, wait_s=HOUR_S, gpus=8, vc="a", duration_s=HOUR_S) for at in range(50)]
    jobs += [job(0, wait_s=0, vc="b"), job(50 * HOUR_S, wait_s=0, vc="b")]
    sizes = Sizes(by_vc=(VcSize(vc="a", gpus=8), VcSize(vc="b", gpus=64)), gpus_per_node=8)

    assert judged(jobs, sizes)[2].holds is True
    assert judged([job(wait_s=0, vc="a"), job(wait_s=0, vc="b")], sizes)[2].holds is False
    assert judged([job(wait_s=0)])[2].holds is None


def test_many_small_jobs_and_few_large_ones_hold_the_fourth() -> None:
    assert judged([job()] * 9 + [job(gpus=64, duration_s=1000.0)])[3].holds is True
    assert judged([job()] * 9 + [job(gpus=2)])[3].holds is False


def test_gpu_time_in_vain_holds_the_fifth() -> None:
    done, canceled = job(status=Status.COMPLETED), job(status=Status.CANCELED)

    assert judged([done] * 3 + [canceled])[4].holds is True
    assert judged([done] * 9 + [canceled])[4].holds is False
    assert judged([job()])[4].found == "the log lacks final statuses"


def test_short_failures_that_wait_hold_the_sixth() -> None:
    waits = job(status=Status.FAILED, wait_s=HOUR_S, duration_s=60)
    runs = job(status=Status.FAILED, wait_s=0, duration_s=HOUR_S)

    assert judged([waits] * 3 + [runs])[5].holds is True
    assert judged([waits] + [runs] * 3)[5].holds is False
    assert judged([job(wait_s=0, status=Status.COMPLETED)])[5].holds is None


def test_users_who_bear_all_waiting_hold_the_seventh() -> None:
    others = [job(wait_s=1, user=f"u{at}") for at in range(40)]

    assert judged([*others, job(wait_s=HOUR_S, user="u0")])[6].holds is True
    assert judged(others)[6].holds is False
    assert judged(others[:5])[6].holds is None
    assert judged([job(wait_s=1)])[6].found == "the log lacks users"


def test_every_verdict_says_what_it_must_reach() -> None:
    for one in judged([job(wait_s=0)]):
        assert one.bar
        assert one.found
        assert all(math.isfinite(value) for value in one.values)


@pytest.mark.parametrize("gpus", [1, 8])
def test_a_log_of_one_job_has_an_answer_to_everything(gpus: int) -> None:
    assert len(judged([job(wait_s=0, gpus=gpus)])) == 7


def test_the_fifth_and_sixth_are_not_told_by_the_few_whose_status_is_known() -> None:
    unknown = [job(at, wait_s=1) for at in range(9)]
    failed = job(9, wait_s=200, status=Status.FAILED)

    found = judged([*unknown, failed])

    assert (found[4].holds, found[5].holds) == (None, None)
    assert found[4].found == "final statuses are known of 10.0% of GPU time, 80% are needed"
    assert found[5].found == "final statuses are known of 10.0% of GPU jobs, 80% are needed"


def test_the_fifth_is_told_by_four_fifths_of_gpu_time() -> None:
    known = [job(at, wait_s=1, status=Status.FAILED) for at in range(8)]

    assert judged([*known, job(8, wait_s=1), job(9, wait_s=1)])[4].holds is True
