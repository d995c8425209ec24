"""Which jobs run together: the corrected Algorithm 1, what it is made of, and the printed one."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.group_time import ReadCost, Reloading, WorkProfile, group_time
from farside.scheduler.sharing.colocation.balance import cut, swap
from farside.scheduler.sharing.colocation.grouping import Grouping, GroupingRules, balanced_count, decide, grouping_of
from farside.scheduler.sharing.colocation.machines import GroupNeeds, by_gain, by_ratio
from farside.scheduler.sharing.colocation.printed import decide_printed
from farside.scheduler.sim.colocation.exhaustive import exhaustive
from tests.colocation.draws import drawn, profiles, updating


def check(jobs: list[WorkProfile], machines: int, rules: GroupingRules, found: Grouping) -> None:
    """What holds of every answer."""
    by_name = {job.job: job for job in jobs}
    placed = [name for group in found.groups for name in group.jobs]
    assert len(set(placed)) == len(placed)
    assert set(placed) | found.left_out.keys() == by_name.keys()
    assert not set(placed) & found.left_out.keys()
    assert all(group.machines >= 1 and group.jobs for group in found.groups)
    assert found.free + sum(group.machines for group in found.groups) == machines
    for group in found.groups:
        members = [by_name[name] for name in group.jobs]
        assert group.time.iteration_s == pytest.approx(group_time(members, group.machines).iteration_s)
        assert rules.has_room(members, group.machines)


@settings(max_examples=40)
@given(profiles, st.integers(1, 24), st.sampled_from([0.5, 0.7, 1.0]))
def test_an_answer_is_whole_and_never_worse_than_one_group_of_its_jobs(
    jobs: list[WorkProfile], machines: int, weight: float
) -> None:
    rules = GroupingRules(cpu_weight=weight)

    found = decide(jobs, machines, rules)

    check(jobs, machines, rules, found)
    placed = {name for group in found.groups for name in group.jobs}
    together = grouping_of([[job for job in jobs if job.job in placed]], [machines], machines, rules)
    assert found.score >= together.score * (1 - 0.011)


@settings(max_examples=15)
@given(st.integers(0, 1000), st.randoms(use_true_random=False))
def test_names_of_jobs_do_not_matter(seed: int, rng: random.Random) -> None:
    jobs = drawn(20, seed)
    names = [f"x{number}" for number in range(20)]
    rng.shuffle(names)

    found = decide(jobs, 30, GroupingRules())
    renamed = decide([replace(job, job=name) for job, name in zip(jobs, names, strict=True)], 30, GroupingRules())

    to = dict(zip((job.job for job in jobs), names, strict=True))
    assert [tuple(to[name] for name in group.jobs) for group in found.groups] == [
        group.jobs for group in renamed.groups
    ]
    assert renamed.score == found.score


def test_no_job_and_no_machine_are_answered() -> None:
    assert decide([], 3, GroupingRules()).free == 3
    assert decide(drawn(2, 1), 0, GroupingRules()).left_out == {"j0": "no machine is free", "j1": "no machine is free"}


def test_exchanges_bring_groups_nearer_to_their_balance_and_keep_their_sizes() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        lean_s = rng.normal(size=12)
        groups = cut(rng.uniform(size=12), 3)
        after = swap(groups, lean_s, exchanges=48)
        distance = [sum(abs(lean_s[group].sum()) for group in one) for one in (groups, after)]
        assert sorted(job for group in after for job in group) == list(range(12))
        assert [len(group) for group in after] == [4, 4, 4]
        assert distance[1] <= distance[0]


def test_no_exchange_of_two_jobs_is_left_that_would_help() -> None:
    lean_s = np.random.default_rng(2).normal(size=9)
    groups = swap(cut(lean_s, 2), lean_s, exchanges=100)
    sums = [lean_s[group].sum() for group in groups]

    for one in groups[0]:
        for other in groups[1]:
            change = lean_s[other] - lean_s[one]
            assert abs(sums[0] + change) + abs(sums[1] - change) >= (abs(sums[0]) + abs(sums[1])) * (1 - 1e-8)


@given(st.lists(st.floats(0.1, 1000.0), min_size=1, max_size=8), st.integers(0, 60))
def test_machines_by_ratio_are_those_of_one_at_a_time(works: list[float], more: int) -> None:
    needs = [GroupNeeds([WorkProfile(job="a", work_machine_s=work, net_s=1.0)]) for work in works]
    expected = [1] * len(works)
    for _ in range(more):
        quotients = [work / held for work, held in zip(works, expected, strict=True)]
        expected[quotients.index(max(quotients))] += 1

    given_ = by_ratio(needs, len(works) + more)

    assert sum(given_) == len(works) + more
    assert max(work / held for work, held in zip(works, given_, strict=True)) == pytest.approx(
        max(work / held for work, held in zip(works, expected, strict=True))
    )


def test_machines_that_make_nothing_busier_stay_free() -> None:
    network_bound = GroupNeeds([WorkProfile(job=name, work_machine_s=4.0, net_s=10.0) for name in "abc"])

    given_ = by_gain([network_bound], 50, 1.0)

    assert given_ == [1]
    assert network_bound.busy(50, 1.0) < network_bound.busy(1, 1.0)


def test_needs_say_what_the_equation_says() -> None:
    for seed in range(20):
        jobs = drawn(5, seed)
        for machines in (1, 2, 7, 40):
            time = group_time(jobs, machines)
            expected = (time.comp_s, time.comm_s, time.iteration_s)
            assert GroupNeeds(jobs).terms_s(machines) == pytest.approx(expected)


def test_the_gap_to_looking_at_all_groupings_is_small() -> None:
    rules = GroupingRules(cpu_weight=0.7)
    gaps = []
    for seed in range(12):
        jobs = drawn(7, seed)
        best = exhaustive(jobs, 16, rules)
        check(jobs, 16, rules, best)
        gaps.append(1 - decide(jobs, 16, rules).score / best.score)

    assert min(gaps) >= -1e-9, "the rule found more than there is"
    assert sum(gaps) / len(gaps) < 0.025
    assert max(gaps) < 0.07


def test_the_printed_algorithm_stops_early() -> None:
    jobs = drawn(80, 1)

    printed, corrected = (rule(jobs, 100, GroupingRules()) for rule in (decide_printed, decide))

    assert sum(len(group.jobs) for group in printed.groups) < 10
    assert printed.score < 0.7
    assert corrected.score > 0.98
    assert set(printed.left_out.values()) == {"the algorithm stopped before it"}


def test_the_printed_balance_is_another_one() -> None:
    work, net = np.array([160.0, 16.0, 16.0]), np.array([1.0, 8.0, 8.0])

    assert balanced_count(work, net, 16) == 2
    assert balanced_count(work, net, 16, "l6") == 1


def test_hundreds_of_jobs_keep_all_machines_busy() -> None:
    jobs = drawn(400, 3, net_sigma=1.2)

    found = decide(jobs, 500, GroupingRules())

    check(jobs, 500, GroupingRules(), found)
    assert found.score > 0.97


def test_jobs_without_room_are_left_out_with_the_reason_and_groups_fit_the_memory() -> None:
    jobs = [replace(job, floor_bytes=12 * 10**9) for job in drawn(12, 4)]
    jobs[3] = replace(jobs[3], floor_bytes=64 * 10**9)
    rules = GroupingRules(memory_bytes=32 * 10**9)

    found = decide(jobs, 40, rules)

    check(jobs, 40, rules, found)
    assert found.left_out["j3"] == "a machine has less memory than it needs"
    assert max(len(group.jobs) for group in found.groups) == 2


def test_input_that_cannot_be_spilled_needs_machines_enough() -> None:
    jobs = [replace(job, input_bytes=100 * 10**9) for job in drawn(6, 5)]
    rules = GroupingRules(memory_bytes=32 * 10**9, spills=False)

    found = decide(jobs, 40, rules)

    check(jobs, 40, rules, found)
    assert all(len(group.jobs) * 100 / group.machines <= 32 for group in found.groups)


@settings(max_examples=40)
@given(profiles, st.integers(1, 12), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=8, max_size=8))
def test_a_job_runs_on_so_many_machines_as_it_can(
    jobs: list[WorkProfile], machines: int, bounds: list[tuple[int, int]]
) -> None:
    bounded = [
        replace(job, machines_least=least, machines_most=least + more)
        for job, (least, more) in zip(jobs, bounds, strict=False)
    ]

    found = decide(bounded, machines, GroupingRules())

    check(bounded, machines, GroupingRules(), found)
    for job in bounded:
        if job.machines_least > machines:
            assert found.left_out[job.job] == f"it needs {job.machines_least} machines"
    assert found.groups or all(job.machines_least > machines for job in bounded[:1])


def test_jobs_of_one_machine_each_leave_the_others_free() -> None:
    jobs = [replace(job, machines_most=1) for job in drawn(3, 7)]

    found = decide(jobs, 5, GroupingRules())

    assert [group.machines for group in found.groups] == [1, 1, 1]
    assert found.free == 2


def test_who_may_not_be_left_out_is_in() -> None:
    jobs = drawn(60, 6)
    few = decide(jobs, 60, GroupingRules())

    more = decide(jobs, 60, GroupingRules(), 50)

    assert sum(len(group.jobs) for group in few.groups) < 50
    assert not set(more.left_out) & {job.job for job in jobs[:50]}


@given(updating, st.integers(1, 60))
def test_needs_have_the_processor_time_of_updates_as_the_equation(jobs: list[WorkProfile], machines: int) -> None:
    time = group_time(jobs, machines)

    assert GroupNeeds(jobs).terms_s(machines) == pytest.approx((time.comp_s, time.comm_s, time.iteration_s))


def test_algorithm_1_as_printed_knows_nothing_of_the_processor_time_of_updates() -> None:
    jobs = drawn(12, 3)
    busy = [replace(job, net_cpu_s=job.net_s) for job in jobs]

    assert decide_printed(busy, 40, GroupingRules()) == decide_printed(jobs, 40, GroupingRules())
    assert decide(busy, 40, GroupingRules()).busy_cpu < decide(jobs, 40, GroupingRules()).busy_cpu


SLOW = Reloading(disk=ReadCost(bytes_s=1e8))


def spilled(job: WorkProfile, read_bytes: float) -> WorkProfile:
    """The job as it was seen on one machine, where it read so much back from a slow disk."""
    return replace(job, input_bytes=10**10, kept_bytes=10**10 - read_bytes, reloading=SLOW)


def test_a_job_that_waits_for_its_disk_keeps_no_machine_busy_and_one_that_reads_little_does() -> None:
    rules = GroupingRules()
    job = WorkProfile(job="a", work_machine_s=10.0, net_s=1.0, machines_most=1)

    in_memory, little, much = (
        decide([one], 1, rules) for one in (job, spilled(job, 5e8), spilled(job, 4e9))
    )  # fmt: skip

    assert in_memory.score == little.score == pytest.approx(1.0)
    assert much.score == pytest.approx(10.0 / 40.0)
    assert much.groups[0].time.bound == "disk"


@settings(max_examples=15)
@given(profiles, st.integers(1, 8), st.lists(st.floats(0, 1e10), min_size=1, max_size=8))
def test_an_answer_is_whole_and_as_long_as_its_groups_read_where_jobs_read_back(
    jobs: list[WorkProfile], machines: int, read_bytes: list[float]
) -> None:
    reading = [spilled(job, read_bytes[number % len(read_bytes)]) for number, job in enumerate(jobs)]
    rules = GroupingRules()

    found = decide(reading, machines, rules)

    check(reading, machines, rules, found)
    assert found.score <= 1 + 1e-9
    for group in found.groups:
        assert group.time.iteration_s >= group.time.disk_s


_disks = st.builds(
    lambda bytes_s, cpu_s_byte: Reloading(disk=ReadCost(bytes_s=bytes_s, cpu_s_byte=cpu_s_byte)),
    st.floats(1e6, 1e9), st.floats(0.0, 1e-8),
)  # fmt: skip
_inputs = st.lists(
    st.none() | st.tuples(st.integers(0, 10**11), st.floats(0.0, 1e11), _disks), min_size=8, max_size=8
)  # fmt: skip


@given(profiles, st.integers(1, 60), _inputs)
def test_needs_have_what_disks_are_read_as_the_equation_has_it(
    jobs: list[WorkProfile], machines: int, inputs: list[tuple[int, float, Reloading] | None]
) -> None:
    reading = [
        job if one is None else replace(job, input_bytes=one[0], kept_bytes=one[1], reloading=one[2])
        for job, one in zip(jobs, inputs, strict=False)
    ]
    time = group_time(reading, machines)

    assert not GroupingRules().chooses_reads(reading)
    assert GroupNeeds(reading).terms_s(machines) == pytest.approx((time.comp_s, time.comm_s, time.iteration_s))


def test_what_does_not_fit_costs_time_in_decisions_too() -> None:
    # Two machines: beside each other on one, the jobs' input does not fit, and comes from a slow disk.
    jobs = [
        WorkProfile(job=name, work_machine_s=4.0, net_s=4.0, net_alone_s=4.0, input_bytes=10**10, machines_most=1)
        for name in "ab"
    ]
    free = GroupingRules(memory_bytes=10**10)
    slow = replace(free, reloading=SLOW)

    (together,), apart = decide(jobs, 1, free).groups, decide(jobs, 1, slow)

    assert {*together.jobs} == {"a", "b"}
    assert [group.jobs for group in apart.groups] == [("a",)]
    assert slow.time(jobs, 1).iteration_s == pytest.approx(100.0)
