"""Equations 1 to 4: how long a group's iteration is, and how busy its machines are."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.group_time import (
    GroupTime,
    ReadCost,
    Reloading,
    WorkProfile,
    best_peer_bytes,
    group_time,
    iteration_in_turns_s,
    read_together,
    reloaded,
    reloading_s,
)
from farside.scheduler.sharing.colocation.grouping import busy_shares
from farside.scheduler.sim.colocation.subtasks import played_iterations_s
from tests.colocation.draws import drawn, on_one_machine, profiles, updating


def job(name: str, work_machine_s: float, net_s: float, **more: float) -> WorkProfile:
    return WorkProfile(job=name, work_machine_s=work_machine_s, net_s=net_s, **more)  # type: ignore[arg-type]


def test_the_iteration_is_as_long_as_the_scarcest_of_processors_network_and_longest_job() -> None:
    cpu = group_time([job("a", 40, 1), job("b", 40, 1)], 4)
    net = group_time([job("a", 4, 10), job("b", 4, 10)], 4)
    longest = group_time([job("a", 40, 9), job("b", 4, 1)], 4)

    assert (cpu.iteration_s, cpu.bound) == (20, "cpu")
    assert (net.iteration_s, net.bound) == (20, "network")
    assert (longest.iteration_s, longest.bound) == (19, "job")


def test_a_single_machine_has_no_network_and_the_update_does_not_shrink() -> None:
    one = job("a", 10, 5, update_s=1, net_alone_s=0.5)

    assert group_time([one], 1).iteration_s == 11.5
    assert group_time([one], 10).iteration_s == 7


@given(profiles, st.integers(2, 200))
def test_more_machines_never_make_an_iteration_longer(jobs: list[WorkProfile], machines: int) -> None:
    assert group_time(jobs, machines + 1).iteration_s <= group_time(jobs, machines).iteration_s


@given(profiles, st.integers(1, 200), st.floats(0.0, 50.0))
def test_longer_steps_never_make_an_iteration_shorter(jobs: list[WorkProfile], machines: int, more_s: float) -> None:
    before = group_time(jobs, machines).iteration_s
    for change in ("work_machine_s", "net_s", "update_s", "net_alone_s"):
        slower = replace(jobs[0], **{change: getattr(jobs[0], change) + more_s})
        assert group_time([slower, *jobs[1:]], machines).iteration_s >= before


@given(profiles, st.integers(1, 200), st.randoms(use_true_random=False))
def test_shares_are_at_most_one_and_do_not_depend_on_order_or_names(
    jobs: list[WorkProfile], machines: int, rng: random.Random
) -> None:
    other = [replace(one, job=f"other{number}") for number, one in enumerate(jobs)]
    rng.shuffle(other)
    time, again = group_time(jobs, machines), group_time(other, machines)

    assert 0 < time.busy_cpu <= 1 + 1e-12
    assert 0 < time.busy_net <= 1 + 1e-12
    assert again.iteration_s == pytest.approx(time.iteration_s)


def test_idle_machines_count_as_not_busy() -> None:
    time = group_time([job("a", 40, 1), job("b", 40, 1)], 4)

    assert busy_shares([(time, 4)], 8) == pytest.approx((0.5, 0.05))


@given(profiles, st.integers(1, 50))
@settings(max_examples=50)
def test_in_turns_no_group_is_quicker_than_the_equation_and_one_job_is_as_quick(
    jobs: list[WorkProfile], machines: int
) -> None:
    assert iteration_in_turns_s(jobs, machines) >= group_time(jobs, machines).iteration_s
    alone_s = iteration_in_turns_s(jobs[:1], machines)
    assert alone_s == pytest.approx(jobs[0].iteration_s(machines))


def test_a_job_that_computes_little_keeps_nobody_waiting_where_pulls_follow_pushes() -> None:
    # The Lasso and the MLR of `farside demo --scene colocation`, as they were measured alone.
    both = [job("mlr", 0.305, 0.207, net_alone_s=0.207), job("lasso", 0.03, 0.3, net_alone_s=0.3)]

    assert group_time(both, 1).iteration_s == pytest.approx(0.512)
    assert iteration_in_turns_s(both, 1) == pytest.approx(0.512)


def test_on_several_nodes_it_waits_for_one_that_computes_long_and_both_take_longer_than_by_the_equation() -> None:
    both = [job("mlr", 0.61, 0.207), job("lasso", 0.06, 0.3)]

    assert group_time(both, 2).iteration_s == pytest.approx(0.512)
    assert iteration_in_turns_s(both, 2) == pytest.approx(0.662)


@pytest.mark.parametrize("machines", [1, 10])
@pytest.mark.parametrize("seed", range(4))
def test_turns_are_as_long_as_the_nodes_queues_play_them(seed: int, machines: int) -> None:
    jobs = drawn(4, seed) if machines > 1 else on_one_machine(drawn(4, seed), 10)

    played_s = max(played_iterations_s(jobs, machines, random.Random(seed), spread=0.0).values())

    assert iteration_in_turns_s(jobs, machines) == pytest.approx(played_s, rel=0.02)


def test_processors_do_what_jobs_compute_and_what_their_updates_take() -> None:
    pair = [job(name, 28.0, 24.0, net_alone_s=24.0, net_cpu_s=4.0, net_cpu_alone_s=4.0) for name in "ab"]
    twice = [replace(one, work_machine_s=56.0) for one in pair]

    for found in (group_time(pair, 1), group_time(twice, 2)):
        assert (found.iteration_s, found.bound) == (64.0, "cpu")
    assert iteration_in_turns_s(pair, 1) == pytest.approx(64.0)
    assert group_time(pair, 1).busy_cpu == 56 / 64


def test_the_longest_job_waits_for_the_updates_of_the_others_and_not_for_its_own() -> None:
    longest = job("a", 30.0, 30.0, net_alone_s=30.0, net_cpu_alone_s=2.0)
    other = job("b", 5.0, 5.0, net_alone_s=5.0, net_cpu_alone_s=1.0)

    found = group_time([longest, other], 1)

    assert (found.iteration_s, found.bound) == (61.0, "job")
    assert iteration_in_turns_s([longest, other], 1) == pytest.approx(61.0)
    assert iteration_in_turns_s([longest], 1) == pytest.approx(60.0)


@given(updating, st.integers(1, 50), st.data())
def test_more_processor_time_of_updates_never_makes_an_iteration_shorter(
    jobs: list[WorkProfile], machines: int, data: st.DataObject
) -> None:
    at, more_s = data.draw(st.integers(0, len(jobs) - 1)), data.draw(st.floats(0.0, 50.0))
    one = jobs[at]
    busier = replace(one, net_cpu_s=one.net_cpu_s + more_s, net_cpu_alone_s=one.net_cpu_alone_s + more_s)

    before, after = (group_time([*jobs[:at], it, *jobs[at + 1 :]], machines) for it in (one, busier))

    assert after.iteration_s >= before.iteration_s * (1 - 1e-12)
    assert after.busy_cpu <= before.busy_cpu * (1 + 1e-12)
    assert iteration_in_turns_s(jobs, machines) >= group_time(jobs, machines).iteration_s


@given(updating, st.integers(1, 50))
def test_updates_that_take_no_processor_time_or_have_a_processor_of_their_own_leave_equation_1(
    jobs: list[WorkProfile], machines: int
) -> None:
    without = [replace(one, net_cpu_s=0.0, net_cpu_alone_s=0.0, leaves_processor=False) for one in jobs]
    beside = [replace(one, leaves_processor=True) for one in jobs]

    equation_1_s = max(
        sum(one.comp_s(machines) for one in jobs), sum(one.comm_s(machines) for one in jobs),
        *(one.iteration_s(machines) for one in jobs),
    )  # fmt: skip

    assert group_time(without, machines).iteration_s == group_time(beside, machines).iteration_s == equation_1_s
    assert iteration_in_turns_s(without, machines) == iteration_in_turns_s(beside, machines)


def test_one_that_computes_is_slowed_only_while_another_is_on_the_network() -> None:
    # Each computes for 10 s and talks for 2 s, 1 s of which its processors work: 1 s of each computing is beside that.
    pair = [job(name, 10.0, 2.0, net_alone_s=2.0, net_cpu_alone_s=1.0) for name in "ab"]

    assert iteration_in_turns_s(pair, 1) == pytest.approx(22.0)
    alone = [replace(pair[0], leaves_processor=True), pair[1]]
    assert iteration_in_turns_s(alone, 1) == pytest.approx(22.0)  # the other one leaves none


GB = 10.0**9
_costs = st.builds(ReadCost, bytes_s=st.floats(GB / 100, 10 * GB), cpu_s_byte=st.floats(0, 1 / GB))
_ways = st.builds(
    Reloading, disk=_costs, peer=_costs, net_bytes_s=st.one_of(st.just(float("inf")), st.floats(GB / 100, 10 * GB))
)
_times = st.builds(
    GroupTime, comp_s=st.floats(0.01, 50), comm_s=st.floats(0.01, 50), longest_s=st.floats(0.01, 60)
)  # fmt: skip


@given(_times, st.floats(0, 20 * GB), _ways, st.floats(0, 1))
def test_no_other_share_of_a_peer_is_better_by_more_than_1_percent_and_none_as_good_is_less(
    time: GroupTime, spilled_bytes: float, way: Reloading, share: float
) -> None:
    best = best_peer_bytes(time, spilled_bytes, way)
    best_s = reloading_s(time, spilled_bytes, best, way)

    assert 0 <= best <= spilled_bytes
    assert best_s <= 1.0100001 * reloading_s(time, spilled_bytes, share * spilled_bytes, way)
    assert best == 0 or reloading_s(time, spilled_bytes, 0.9 * best, way) >= best_s * (1 - 1e-9)


def test_a_group_that_communicates_reads_from_the_disk_and_one_that_computes_from_both() -> None:
    way = Reloading(disk=ReadCost(bytes_s=GB / 10), peer=ReadCost(bytes_s=GB), net_bytes_s=GB)
    computes = GroupTime(comp_s=10, comm_s=1, longest_s=8)
    communicates = GroupTime(comp_s=1, comm_s=10, longest_s=8)

    # 1 GB takes the disk 10 s, which both have anyway; of 2 GB the disk can't read all in that time.
    assert [best_peer_bytes(time, GB, way) for time in (computes, communicates)] == [0, 0]
    assert reloading_s(computes, 2 * GB, best_peer_bytes(computes, 2 * GB, way), way) == pytest.approx(10, rel=0.011)
    assert 10 < reloading_s(communicates, 2 * GB, best_peer_bytes(communicates, 2 * GB, way), way) < 11.2
    assert best_peer_bytes(computes, 2 * GB, Reloading(disk=way.disk)) == 0


@given(_times, st.floats(0, 20 * GB), _ways, st.floats(0, 1))
def test_the_terms_of_an_iteration_that_reads_back_are_as_long_as_its_seconds(
    time: GroupTime, spilled_bytes: float, way: Reloading, share: float
) -> None:
    peer_bytes = share * spilled_bytes

    found = reloaded(time, spilled_bytes, peer_bytes, way)

    assert found.iteration_s == pytest.approx(reloading_s(time, spilled_bytes, peer_bytes, way))
    assert (found.comp_s, found.comm_s, found.longest_s) == (time.comp_s, time.comm_s, time.longest_s)


@given(profiles, st.integers(1, 20), st.lists(st.floats(0, 20 * GB), min_size=1, max_size=8), _ways, st.booleans())
@settings(max_examples=50)
def test_reading_back_never_shortens_an_iteration_nor_makes_anything_busier_and_less_of_it_takes_no_longer(
    jobs: list[WorkProfile], machines: int, kept: list[float], way: Reloading, has_peer: bool
) -> None:
    way = way if has_peer else replace(way, peer=None)
    spilled = [
        replace(one, input_bytes=20 * 10**9 * machines, kept_bytes=kept[number % len(kept)], reloading=way)
        for number, one in enumerate(jobs)
    ]
    more = [replace(one, kept_bytes=one.kept_bytes / 2) for one in spilled]

    alone, reading, reading_more = (group_time(group, machines) for group in (jobs, spilled, more))

    assert alone.iteration_s <= reading.iteration_s
    assert reading.iteration_s <= 1.0100001 * reading_more.iteration_s
    assert reading.busy_cpu <= alone.busy_cpu + 1e-12
    assert reading.busy_net <= alone.busy_net + 1e-12
    assert reading.disk_s <= sum(one.disk_s(machines) for one in spilled) * (1 + 1e-9)


def test_what_a_job_reads_back_falls_with_the_machines_that_share_its_input() -> None:
    one = replace(
        job("a", 8, 1), input_bytes=8 * 10**9, kept_bytes=2e9, reloading=Reloading(disk=ReadCost(bytes_s=GB / 10))
    )

    times = {machines: group_time([one], machines) for machines in (1, 2, 4)}

    assert {machines: (time.disk_s, time.bound) for machines, time in times.items()} == {
        1: (pytest.approx(60.0), "disk"), 2: (pytest.approx(20.0), "disk"), 4: (0.0, "job"),
    }  # fmt: skip
    assert iteration_in_turns_s([one], 2) == pytest.approx(20.0)


def test_only_what_peers_have_comes_from_them() -> None:
    disk, peer = ReadCost(bytes_s=GB / 10), ReadCost(bytes_s=GB)
    time = GroupTime(comp_s=1.0, comm_s=0.0, longest_s=1.0)

    found = read_together(time, [(GB, Reloading(disk=disk)), (GB / 2, Reloading(disk=disk, peer=peer))])

    assert (found.disk_s, found.peer_s) == pytest.approx((10.0, 0.5))
    assert found.bound == "disk"
    assert read_together(time, []) == time


def test_unlike_jobs_read_for_as_long_as_each_reads_by_itself() -> None:
    # A kilobyte at 1 MB a second takes a millisecond, whatever the other one reads.
    slow, quick = ReadCost(bytes_s=1e6, cpu_s_byte=1.0), ReadCost(bytes_s=GB)
    time = GroupTime(comp_s=1.0, comm_s=0.0, longest_s=1.0)

    found = read_together(time, [(1e3, Reloading(disk=slow)), (GB / 2, Reloading(disk=quick))])

    assert found.disk_s == pytest.approx(0.501)
    assert found.read_cpu_s == pytest.approx(1e3)
