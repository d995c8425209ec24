"""What sacct tells of jobs that have ended, and what is expected of jobs by it."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.config import SlurmConfig, load_config
from farside.scheduler.configured_rules import rules_of
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.qssf import Cut, Qssf
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.sim.learned_before import learned_before
from farside.scheduler.slurm.domain import SlurmDomain, job_of
from farside.scheduler.slurm.engine import Engine, Mode
from farside.scheduler.slurm.job_memory import Memory, Past, recall
from farside.scheduler.slurm.learned_jobs import LearnedJobs
from farside.scheduler.slurm.read_sacct import FIELDS, ended_of
from farside.scheduler.slurm.shadow_job import Ended
from farside.scheduler.slurm.shadow_log import ShadowLog
from farside.scheduler.slurm.snapshot import SlurmJob, Snapshot
from farside.scheduler.slurm.state_file import ENDED, MEMORY, StateFiles
from tests.slurm.made import NOW_S, TRAITS, FakeSlurm, groups, over, running, snapshot, waiting

# As Debian's 22.05 prints it.
TOLD = """\
1|ann|gpu|COMPLETED|1795319386|1795319386|1795319387|1795319391|4|5|billing=1,cpu=1,gres/gpu=2,node=1|one|two words
4|bob|gpu|REQUEUED|1795319387|1795319390|1795319392|1795319401|9|UNLIMITED|billing=1,cpu=1,gres/gpu=4,mem=10M,node=1|wrap
5|bob|gpu|RUNNING|1795319387|1795319387|1795319393|Unknown|6|UNLIMITED|billing=1,cpu=1,gres/gpu=4,mem=10M,node=1|wrap
6|bob|gpu|PENDING|1795319387|Unknown|Unknown|Unknown|0|Partition_Limit||wrap
7|bob|gpu|COMPLETED|1795319387|1795319387|1795319387|1795319390|3|525600|billing=1,cpu=1,mem=10M,node=1|no GPU
8|bob|gpu|CANCELLED by 0|1795319387|None|None|1795319390|0|10||never ran
4|bob|gpu|CANCELLED by 0|1795319401|1795319390|1795319501|1795319510|9|UNLIMITED|billing=1,cpu=1,gres/gpu=4,node=1|wrap
10|bob|gpu|COMPLETED|1795319387|1795319387|1795319387|1795319599|3|525600|billing=1,cpu=1,gres/gpu=1,node=1|no limit
9+0|bob|gpu|COMPLETED|1795319387|1795319387|1795319387|1795319390|3|10|gres/gpu=1|a part of another
"""


def ended(job_id: int, held_s: float, *, name: str = "train", submit_s: float = 0.0, limit_s: float = 0.0) -> Ended:
    return Ended(
        job_id=str(job_id), user="ann", name=name, partition="gpu", gpus=1, submit_s=submit_s, start_s=submit_s,
        end_s=submit_s + held_s, held_s=held_s, limit_s=limit_s, is_requeueable=True,
    )  # fmt: skip


def test_jobs_with_gpus_that_are_over_are_told_with_all_of_their_stints() -> None:
    first, second, unlimited = ended_of(TOLD)

    assert (first.job_id, first.user, first.name, first.gpus, first.limit_s) == ("1", "ann", "one|two words", 2, 300.0)
    assert (second.job_id, second.limit_s, second.held_s) == ("4", 0.0, 18.0)
    assert (second.submit_s, second.start_s, second.end_s) == (1795319387.0, 1795319392.0, 1795319510.0)
    assert (unlimited.job_id, unlimited.limit_s) == ("10", 0.0)
    assert (first.ready_s, second.ready_s) == (1795319386.0, 1795319390.0)


@given(st.text(alphabet="|\n0123456789abgpu/=,.:+ é", max_size=400))
def test_whatever_stands_there_is_read_or_left_out(text: str) -> None:
    lines = "\n".join(line + "|" * (len(FIELDS) - 1 - line.count("|")) for line in text.splitlines())

    for one in (*ended_of(text), *ended_of(lines)):
        assert one.end_s > one.start_s
        assert one.gpus > 0


QSSF = rules_of(SlurmConfig(policy="qssf"))


def learned_from(*past: Ended, jobs: tuple[SlurmJob, ...] = ()) -> LearnedJobs:
    found = LearnedJobs(QSSF, LearnedTimes())
    found.hear(past, jobs, groups(snapshot()))
    return found


def expected(learned: LearnedJobs, job: SlurmJob) -> float:
    return learned.estimator.predicted_gpu_s(job_of(job, may_preempt=False, is_counting_memory=False), NOW_S)


def test_a_job_is_expected_to_take_what_its_like_took_and_never_more_than_its_limit() -> None:
    before = waiting(30, limit_s=600.0), waiting(31)
    learned = learned_from(jobs=before)
    late = waiting(32, limit_s=600.0), waiting(33), waiting(34, limit_s=10.0)
    assert [expected(learned, job) for job in before] == [600.0, 3600.0]

    learned.hear([ended(at, 100.0, submit_s=NOW_S - 20_000) for at in range(20)], before, groups(snapshot()))
    learned.hear([], (*before, *late), groups(snapshot()))

    known = [known and known.run_s for _, known, _ in learned.expectations(["32", "33", "34"])]
    assert known == pytest.approx([100.0, 100.0, 10.0], rel=0.01)
    assert expected(learned, late[1]) < 3600.0
    assert expected(learned, late[2]) == 10.0
    assert [expected(learned, job) for job in before] == [600.0, 3600.0], "an estimate is that of the submission"


def test_what_was_expected_of_a_job_rests_on_those_that_had_ended_when_it_came() -> None:
    first, second, third = (
        waiting(at, submit_s=submit_s, limit_s=5000.0) for at, submit_s in ((4, 0.0), (5, 50.0), (6, 150.0))
    )

    learned = learned_from(ended(1, 100.0, limit_s=5000.0), jobs=(first, second, third))

    assert (expected(learned, first), expected(learned, second)) == (5000.0, 5000.0)
    assert expected(learned, third) < 5000.0
    assert [known and known.from_jobs for _, known, _ in learned.expectations(["4", "5", "6"])] == [None, None, 1]


def test_a_task_that_leaves_its_array_is_expected_to_take_what_the_array_was() -> None:
    """Slurm gives it a number of its own when it starts, long after it was submitted."""
    array = waiting(50, is_array=True)
    learned = learned_from(*(ended(at, 100.0) for at in range(1, 6)), jobs=(array,))
    learned.hear([ended(at, 5000.0) for at in range(6, 40)], (array,), groups(snapshot()))

    task = running(60, ("gn1", 1), submit_s=array.submit_s, since_s=1.0)
    other = waiting(61, submit_s=array.submit_s, user="bob")
    learned.hear([], (array, task, other), groups(snapshot()))

    assert expected(learned, task) == expected(learned, array)
    assert expected(learned, other) > 10 * expected(learned, array), "of others it is what is known now"


def test_a_job_that_never_ran_teaches_nothing() -> None:
    job = waiting(50)
    learned = learned_from(jobs=(job,))

    learned.hear([], (over(job, NOW_S),), groups(snapshot()))

    assert learned.times is not None
    assert learned.times.knows_nothing
    assert list(learned.expectations(["50"])) == []


def test_jobs_that_are_alike_in_all_but_their_gpus_go_by_these_as_long_as_no_job_has_ended() -> None:
    narrow, wide = waiting(30, 1), waiting(31, 8)

    learned = learned_from(jobs=(wide, narrow))

    assert (expected(learned, narrow), expected(learned, wide)) == (3600.0, 28_800.0)
    assert learned.goes_by == (
        "no job is known to have ended, so jobs go by their time limits, those without one by their number of GPUs"
    )


def test_a_policy_that_asks_for_no_run_times_learns_none() -> None:
    learned = LearnedJobs(rules_of(SlurmConfig(policy="las")), None)

    learned.hear([ended(1, 100.0)], (waiting(30, limit_s=60.0),), groups(snapshot()))

    assert learned.goes_by == ""
    assert expected(learned, waiting(30, limit_s=60.0)) == 60.0
    assert list(learned.expectations(["30"])) == []
    assert learned.history(groups(snapshot())[0]).ended_gpu_s == [100.0]


def watcher_of(settings: SlurmConfig) -> ShadowLog:
    before = learned_before(settings)
    return ShadowLog(settings, before, StateFiles(settings.state_dir), lambda: NOW_S)


def test_an_estimate_is_that_of_the_submission_also_after_a_restart(config: Callable[..., SlurmConfig]) -> None:
    """Nobody looked while jobs like it ended: what they say was not known when it came."""
    settings = config()
    early = [ended(at, 10.0, submit_s=NOW_S - 9000.0) for at in range(1, 6)]
    late = [ended(at, 5000.0, submit_s=NOW_S - 6000.0) for at in range(6, 11)]
    StateFiles(settings.state_dir).add(ENDED, [*early, *late])
    job = waiting(50, 1, submit_s=NOW_S - 8000.0)
    seen = snapshot(job)
    watcher = watcher_of(settings)

    watcher.note(Memory(), seen, groups(seen))

    known = next(known for _, known, _ in watcher.learned.expectations(["50"]))
    assert known is not None
    assert known.run_s == pytest.approx(10.0, rel=0.01)
    assert known.from_jobs == 5


def test_a_job_that_was_never_seen_is_learned_from_with_what_was_expected_when_it_came(
    config: Callable[..., SlurmConfig],
) -> None:
    watcher = watcher_of(config())
    watcher.learn(ended(at, 30.0, submit_s=NOW_S - 9000.0 + 100.0 * at) for at in range(1, 6))
    first = snapshot(waiting(50))
    (group,) = groups(first)
    watcher.note(Memory(), first, (group,))
    short = waiting(60, submit_s=NOW_S + 1.0, start_s=NOW_S + 1.0)
    came = LearnedJobs(QSSF, LearnedTimes())
    came.hear([ended(at, 30.0, submit_s=NOW_S - 9000.0 + 100.0 * at) for at in range(1, 6)], (short,), (group,))

    then = snapshot(waiting(50), over(short, NOW_S + 9.0), at_s=NOW_S + 10.0)
    watcher.note(recall(Memory(), first.jobs, NOW_S), then, (group,))

    assert watcher.learned.history(group).expected_gpu_s[-1] == expected(came, short)


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., SlurmConfig]:
    def make(**told: Any) -> SlurmConfig:
        given = {
            "partitions": "gpu", "state_dir": str(tmp_path / "state"), "admin_socket": str(tmp_path / "s.sock"),
            "policy": "qssf", "min_run_s": 0, "turn_s": 0.1,
        }  # fmt: skip
        return load_config(SlurmConfig, (), {**given, **told})

    return make


FULL = (running(1, ("gn1", 4)), running(2, ("gn2", 4)))


def engine_over(config: SlurmConfig, *, has_accounting: bool, mode: Mode = Mode.RUN) -> tuple[Engine, FakeSlurm]:
    """Two wait: the first is of a kind that took long, though its limit is short; the other's took no time at all."""
    day_s = NOW_S - 86_400
    before = [ended(at, 3000.0, name="train", submit_s=day_s) for at in range(100, 120)]
    before += [ended(at, 5.0, name="test", submit_s=day_s) for at in range(120, 140)]
    before += [ended(99, 5.0, submit_s=NOW_S - 90 * 86_400)]
    slurm = FakeSlurm(
        snapshot(*FULL, waiting(3, 4, name="train", limit_s=3000.0), waiting(4, 4, name="test", limit_s=86_400.0)),
        traits_told=TRAITS if not has_accounting else type(TRAITS)(has_accounting=True, version="22.05.8"),
        ended=tuple(before),
    )
    return Engine(config, mode, slurm, now_s=lambda: slurm.seen.at_s), slurm


def order(slurm: FakeSlurm) -> list[str]:
    there = (one for one in slurm.seen.jobs if not one.held)
    return [one.job_id for one in sorted(there, key=lambda one: -one.priority)]


def test_qssf_goes_by_what_slurmdbd_knows_of_jobs_like_these(config: Callable[..., SlurmConfig]) -> None:
    one, slurm = engine_over(config(), has_accounting=True)

    asyncio.run(one.turn())

    assert order(slurm) == ["4", "3"]


def test_without_slurmdbd_it_goes_by_time_limits_and_says_why(
    config: Callable[..., SlurmConfig], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, slurm = engine_over(config(), has_accounting=False)

    asyncio.run(one.turn())

    assert order(slurm) == ["3", "4"]
    assert "earlier jobs are not known: Slurm keeps no accounts in slurmdbd" in caplog.messages


def test_a_shadow_has_its_expected_gain_at_once_and_keeps_no_second_copy_of_history(
    config: Callable[..., SlurmConfig],
) -> None:
    one, _ = engine_over(config(), has_accounting=True, mode=Mode.SHADOW)

    asyncio.run(one.turn())
    told = asyncio.run(one.status({}))

    assert isinstance(told, dict)
    assert told["ended"] == 40  # that of three months ago is left out
    assert told["gain"].jobs == 40
    assert StateFiles(config().state_dir).ended() == {}


def test_no_gain_is_promised_where_run_would_order_one_users_jobs_alone(
    config: Callable[..., SlurmConfig], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = config(order_by="nice")
    watcher = watcher_of(settings)
    watcher.learn(ended(at, 10.0) for at in range(20))
    seen = snapshot(*FULL)

    watcher.expect(seen, groups(seen), owner="ann")

    assert watcher.gain is None
    assert watcher.why_no_gain == "order_by = nice would order the jobs of ann alone, which is not simulated"
    assert "no gain is expected" in caplog.messages
    watcher.expect(seen, groups(seen))
    assert watcher.gain is not None, "root and SlurmUser order all jobs"


def test_gittins_keeps_from_turn_to_turn_what_it_learned_of_the_partition(config: Callable[..., SlurmConfig]) -> None:
    settings = config(policy="gittins", policy_settings="first_fit_jobs=3")
    watcher = watcher_of(settings)
    watcher.learn([ended(1, 100.0), ended(2, 200.0), ended(3, 300.0), replace(ended(4, 9.0), partition="other")])
    seen = snapshot(*FULL, waiting(5, 4))
    (group,) = groups(seen)
    watcher.note(Memory(), seen, (group,))

    def samples_of_a_turn() -> list[float]:
        slurm_domain = SlurmDomain(
            seen, recall(Memory(), seen.jobs, NOW_S), group, rules_of(settings), TRAITS, may_preempt=False,
            estimator=watcher.learned.estimator, history=watcher.learned.history(group),
        )  # fmt: skip
        order = slurm_domain.domain.rules.order
        assert isinstance(order, Gittins)
        return [float(sample) for sample in order.distribution.samples]

    assert samples_of_a_turn() == [100.0, 200.0, 300.0]
    assert samples_of_a_turn() == [100.0, 200.0, 300.0]


def test_a_turn_of_the_engine_goes_by_what_gittins_learned(config: Callable[..., SlurmConfig]) -> None:
    """All past jobs took as long: who has had part of that is nearer to its end, though it has had more service."""
    settings = config(policy="gittins", policy_settings="first_fit_jobs=3; limits_gpu_s=; delta=best")
    day_s = NOW_S - 86_400
    past = [ended(at, 1000.0, submit_s=day_s) for at in range(100, 140)]
    slurm = FakeSlurm(
        snapshot(*FULL, waiting(3, 4), waiting(4, 4)), ended=tuple(past),
        traits_told=type(TRAITS)(has_accounting=True, version="22.05.8"),
    )  # fmt: skip
    memory = Memory(at_s=NOW_S - 1, jobs={"3": Past(since_s=NOW_S - 500, executed_s=100.0, first_start_s=NOW_S - 900)})
    StateFiles(settings.state_dir).keep(MEMORY, memory)
    one = Engine(settings, Mode.RUN, slurm, now_s=lambda: slurm.seen.at_s)

    asyncio.run(one.turn())

    assert order(slurm) == ["3", "4"]


def cut_of(watcher: ShadowLog, seen: Snapshot) -> Cut:
    (group,) = groups(seen)
    watcher.note(Memory(), seen, (group,))
    order = watcher.learned.history(group).order
    assert isinstance(order, Qssf)
    return order.cut


def test_the_guard_of_qssf_learns_from_sacct_which_jobs_are_short(config: Callable[..., SlurmConfig]) -> None:
    settings = config()
    watcher = watcher_of(settings)
    seen = snapshot(*FULL)
    assert cut_of(watcher, seen).short_gpu_s == 0.0

    watcher.learn(
        ended(at, 1000.0 if at % 2 else 10.0, name="train" if at % 2 else "test", submit_s=2000.0 * at)
        for at in range(1, 121)
    )

    cut = cut_of(watcher, seen)
    history = watcher.learned.history(groups(seen)[0])
    assert (cut.jobs, history.ended_jobs) == (114, 120)
    pairs = list(zip(history.expected_gpu_s, history.ended_gpu_s, strict=True))[: cut.jobs]
    short = [took for gpu_s, took in pairs if gpu_s <= cut.short_gpu_s]
    assert short.count(10.0) > 50, "nearly all that were short"
    assert sum(short) <= 0.2 * sum(took for _, took in pairs)


def test_the_guard_of_qssf_learns_from_jobs_that_end_while_it_looks(config: Callable[..., SlurmConfig]) -> None:
    settings = config()
    watcher = watcher_of(settings)
    watcher.learn(
        ended(at, 1000.0 if at % 2 else 10.0, name="train" if at % 2 else "test", submit_s=2000.0 * at)
        for at in range(1, 31)
    )
    jobs = [running(at, ("gn1", 1), name="train", since_s=10.0) for at in (200, 201)]
    first, then = snapshot(*jobs), snapshot(*(over(job, NOW_S + 990.0) for job in jobs), at_s=NOW_S + 1000.0)
    (group,) = groups(first)

    watcher.note(Memory(), first, (group,))
    watcher.learned.history(group)
    watcher.note(recall(Memory(), first.jobs, first.at_s), then, (group,))

    history = watcher.learned.history(group)
    assert history.ended_gpu_s[-2:] == [1000.0, 1000.0]
    assert history.expected_gpu_s[-2:] == pytest.approx([1000.0, 1000.0], rel=0.3)
