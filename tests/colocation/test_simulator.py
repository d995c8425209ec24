"""Co-located jobs on a virtual clock."""

import random
import re
from dataclasses import replace

import pytest

from farside.errors import ConfigError
from farside.group_time import WorkProfile, group_time
from farside.scheduler.sim.colocation.cluster import Outcome
from farside.scheduler.sim.colocation.compare import NAMES, believed, played, prepared
from farside.scheduler.sim.colocation.naive import shared_iterations_s
from farside.scheduler.sim.colocation.policies import Settings
from farside.scheduler.sim.colocation.table import TableJob, drawn_jobs, heaviest, mistaken, read_table

HEADER = "job,work_machine_s,net_s,iterations\n"


def play(name: str, jobs: list[TableJob], machines: int = 20, settings: Settings | None = None) -> Outcome:
    settings = settings or Settings()
    rng = random.Random(1)
    kept = prepared(jobs, settings, rng)
    return played(name, kept, machines, settings, believed(kept, settings, rng), rng)


def few(count: int = 16) -> list[TableJob]:
    jobs = drawn_jobs(random.Random(3))[:count]
    return [replace(job, iterations=max(1, job.iterations // 20)) for job in jobs]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "exhaustive"])
def test_every_policy_ends_every_job_once(name: str) -> None:
    jobs = [replace(job, input_bytes=0) for job in few()]

    outcome = play(name, jobs, 30)

    assert sorted(job.job for job in outcome.jobs) == sorted(job.job for job in jobs)
    assert outcome.failed == 0
    assert max(job.end_s for job in outcome.jobs) == pytest.approx(outcome.makespan_s)


@pytest.mark.parametrize("name", ["isolated", "naive", "subtasks", "harmony"])
def test_what_is_computed_is_what_the_jobs_need_and_what_moves_repeat(name: str) -> None:
    jobs = [replace(job, input_bytes=0) for job in few()]

    outcome = play(name, jobs, 30)

    moves = {job.job: job.moves for job in outcome.jobs}
    needed = sum(job.work_machine_s * (job.iterations + 2 * moves[job.job]) for job in jobs)
    assert outcome.busy_cpu * 30 * outcome.makespan_s == pytest.approx(needed)


def test_groups_and_predictions_are_recorded_whenever_they_change() -> None:
    jobs = few()

    outcome = play("harmony", jobs, 30)

    by_name = {job.job: job.profile for job in jobs}
    assert {name for group in outcome.groups for name in group.jobs} == set(by_name)
    for group in outcome.groups:
        expected = group_time([by_name[name] for name in group.jobs], group.machines).iteration_s
        assert group.predicted_s == pytest.approx(expected)
        assert group.simulated_s == pytest.approx(expected)
    assert [group.at_s for group in outcome.groups] == sorted(group.at_s for group in outcome.groups)


def test_nothing_is_predicted_where_nobody_takes_turns() -> None:
    assert all(group.predicted_s is None for group in play("naive", few()).groups)


def test_wrong_profiles_change_the_prediction_and_not_the_time() -> None:
    outcome = play("harmony", few(), settings=Settings(error=0.3))

    assert any(group.predicted_s != pytest.approx(group.simulated_s) for group in outcome.groups)


def test_few_jobs_are_grouped_by_looking_at_all_groupings_and_many_are_refused() -> None:
    assert play("exhaustive", few(6), 8).failed == 0
    with pytest.raises(ConfigError, match="16 jobs on 20 machines are too many"):
        play("exhaustive", few())


def test_a_balanced_pair_without_turns_loses_what_turns_gain() -> None:
    pair = [WorkProfile(job=name, work_machine_s=100.0, net_s=10.0) for name in "ab"]

    shared = shared_iterations_s(pair, 10, random.Random(1))

    assert group_time(pair, 10).iteration_s == 20
    assert all(25 < iteration_s <= 40 for iteration_s in shared.values())


def test_a_job_alone_takes_its_own_time_without_turns() -> None:
    alone = WorkProfile(job="a", work_machine_s=100.0, net_s=10.0)

    assert shared_iterations_s([alone], 10, random.Random(1))["a"] == pytest.approx(20, rel=0.02)


def test_jobs_whose_input_does_not_fit_fail_where_nothing_is_spilled() -> None:
    jobs = [TableJob(job=f"j{n}", work_machine_s=10, net_s=1, iterations=5, input_bytes=200 * 10**9) for n in range(4)]

    outcome = play("naive", jobs, 20)

    assert outcome.failed == 2
    assert play("isolated", jobs, 20).failed == 0


def test_a_job_larger_than_any_machine_fails_and_the_others_end() -> None:
    jobs = [
        TableJob(job=f"j{n}", work_machine_s=10, net_s=1, iterations=5, floor_bytes=n * 20 * 10**9) for n in range(4)
    ]

    outcome = play("harmony", jobs, 20)

    assert {job.job for job in outcome.jobs if job.is_failed} == {"j2", "j3"}


@pytest.mark.parametrize(("name", "first"), [("harmony", "a"), ("harmony-shortest", "b")])
def test_who_of_those_submitted_together_starts_first_is_as_the_policy_says(name: str, first: str) -> None:
    jobs = [TableJob(job=job, work_machine_s=100, net_s=0.1, iterations=10) for job in "abc"]
    jobs[1] = replace(jobs[1], iterations=5)

    outcome = play(name, jobs, 1)

    assert [job.job for job in outcome.jobs if job.start_s == 0] == [first]


def test_jobs_come_one_after_another_where_arrivals_are_drawn() -> None:
    outcome = play("harmony", few(), settings=Settings(arrival_mean_s=100.0))

    times = sorted(job.submit_s for job in outcome.jobs)
    assert times[0] == 0
    assert len(set(times)) == 16


def test_subsets_are_the_three_quarters_that_compute_or_communicate_most() -> None:
    jobs = drawn_jobs(random.Random(1))
    comp, comm = heaviest(jobs, "comp"), heaviest(jobs, "comm")

    ratio = {job.job: job.work_machine_s / job.net_s for job in jobs}
    assert len(comp) == len(comm) == 60
    assert min(ratio[job.job] for job in comp) == sorted(ratio.values())[20]
    assert max(ratio[job.job] for job in comm) == sorted(ratio.values())[59]


def test_mistakes_are_each_its_own_or_common_to_all() -> None:
    profile = WorkProfile(job="a", work_machine_s=100.0, net_s=10.0)
    rng = random.Random(1)

    own = [mistaken(profile, rng, error=0.1, common_error=0.0).work_machine_s for _ in range(50)]
    common = mistaken(profile, rng, error=0.0, common_error=0.1)

    assert 90 <= min(own) < 95
    assert 105 < max(own) <= 110
    assert [common.work_machine_s, common.net_s] == pytest.approx([110.0, 9.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column job, work_machine_s, net_s, iterations"),
        ("job,work_machines,net_s,iterations\n", "no column is called 'work_machines'.*work_machine_s"),
        (HEADER, "no job is in it"),
        (HEADER + "a,1,1\n", "line 2: 3 values"),
        (HEADER + "a,1,1,5\n\na,1,1,5\n", "line 4: job 'a' is there already"),
        (HEADER + "a,0,1,5\n", r"line 2: work_machine_s is '0'; give a number above 0, up to 1e\+15"),
        (HEADER + "a,1e300,1,5\n", r"line 2: work_machine_s is '1e300'; give a number above 0, up to 1e\+15"),
        (HEADER + "a,1,1e16,5\n", r"line 2: net_s is '1e16'; give a number from 0, up to 1e\+15"),
        (HEADER + "a,1,-1,5\n", "line 2: net_s is '-1'"),
        (HEADER + "a,1,nan,5\n", "line 2: net_s is 'nan'"),
        (HEADER + "a,1,1,2.5\n", "line 2: iterations is '2.5'.*whole"),
        (HEADER + ",1,1,5\n", "line 2: job ''"),
        ("job,job,work_machine_s,net_s,iterations\n", "two columns are called 'job'"),
        (HEADER + '"a,1,1,5\n', "line 2: 1 values"),
    ],
)
def test_a_bad_table_gets_one_line_that_names_the_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_table(text.splitlines(keepends=True), "jobs.csv")

    line = f"{caught.value} {caught.value.hint}"
    assert "\n" not in line
    assert line.startswith("jobs.csv: ")
    assert re.search(message, line), line


def test_a_table_is_read_in_the_order_of_submission() -> None:
    text = "submit_s,job,net_s,work_machine_s,iterations,app\n5,late,1,2,3,nmf\n0,early,1,2,3,lda\n"

    jobs = read_table(text.splitlines(), "jobs.csv")

    assert [(job.job, job.app, job.submit_s) for job in jobs] == [("early", "lda", 0.0), ("late", "nmf", 5.0)]


def test_input_that_does_not_fit_takes_the_time_of_a_slow_disk_and_a_peer_shortens_it() -> None:
    jobs = [TableJob(job=f"j{n}", work_machine_s=10, net_s=1, iterations=50, input_bytes=400 * 10**9) for n in range(4)]
    disk = Settings(disk_bytes_s=20e6)

    free, slow, helped = (
        play("harmony", jobs, 8, settings) for settings in (Settings(), disk, replace(disk, peer_bytes_s=100e6))
    )

    assert free.makespan_s < helped.makespan_s < slow.makespan_s
    for outcome in (slow, helped):
        assert any(group.simulated_s > 2 * 10 / group.machines for group in outcome.groups)
        for group in outcome.groups:
            assert group.predicted_s == pytest.approx(group.simulated_s)


def test_a_peer_without_a_disk_is_refused() -> None:
    with pytest.raises(ValueError, match="peer_bytes_s needs disk_bytes_s"):
        Settings(peer_bytes_s=1e9)
