"""What changes when a co-located job comes or ends."""

from dataclasses import replace

import pytest

from farside.group_time import ReadCost, Reloading, WorkProfile
from farside.scheduler.sharing.colocation.grouping import GroupingRules, decide
from farside.scheduler.sharing.colocation.regroup import Cluster, Regrouping, RegroupRules, RunningGroup
from tests.colocation.draws import drawn

RULES = Regrouping(GroupingRules(memory_bytes=1000), decide)


def job(name: str, work_machine_s: float, net_s: float, floor_bytes: int = 0) -> WorkProfile:
    return WorkProfile(job=name, work_machine_s=work_machine_s, net_s=net_s, floor_bytes=floor_bytes)


def cluster(groups: dict[int, tuple[int, str]], waiting: str, jobs: list[WorkProfile], machines: int = 20) -> Cluster:
    running = tuple(
        RunningGroup(number=number, machines=held, jobs=tuple(names.split()))
        for number, (held, names) in groups.items()
    )
    return Cluster(
        machines=machines,
        groups=running,
        waiting=tuple(waiting.split()),
        profiles={one.job: one for one in jobs},
        next_number=9,
    )


PAIR = [job("a", 100, 10), job("b", 100, 10)]


def test_a_job_that_comes_to_an_empty_cluster_gets_machines() -> None:
    change = RULES.arrived(cluster({}, "a", PAIR), ["a"])

    assert [group.jobs for group in change.cluster.groups] == [("a",)]
    assert change.cluster.waiting == ()


def test_a_job_joins_the_group_that_it_makes_busiest_and_nobody_moves() -> None:
    jobs = [*PAIR, job("c", 100, 0.1), job("n", 10, 10)]
    before = cluster({1: (10, "c"), 2: (10, "n")}, "a", jobs)

    change = RULES.arrived(before, ["a"])

    assert [group.jobs for group in change.cluster.groups] == [("c",), ("n", "a")]
    assert change.moved == ()


def test_a_job_that_makes_nothing_busier_waits() -> None:
    jobs = [job("c", 100, 0), job("d", 100, 0), job("a", 100, 0)]

    change = RULES.arrived(cluster({1: (20, "c d")}, "a", jobs), ["a"])

    assert change.cluster.waiting == ("a",)


def test_a_job_waits_where_a_group_gets_busier_by_no_more_than_times_may_be_wrong() -> None:
    jobs = [job("x", 97, 10), job("y", 97, 10), job("s", 6, 0)]
    before = cluster({1: (10, "x y")}, "s", jobs, machines=10)  # 97 % busy, and with s all of it
    careful = Regrouping(GroupingRules(), decide, RegroupRules(noise=0.05))

    assert RULES.arrived(before, ["s"]).cluster.waiting == ()
    assert careful.arrived(before, ["s"]).cluster.waiting == ("s",)
    assert careful.arrived(cluster({1: (10, "x")}, "s y", jobs, machines=10), ["s", "y"]).cluster.waiting == ("s",)


def test_a_job_that_comes_waits_where_others_wait() -> None:
    before = cluster({1: (20, "n")}, "b a", [*PAIR, job("n", 1, 10)])

    change = RULES.arrived(before, ["a"])

    assert change.cluster == before


def test_no_job_joins_where_memory_is_short() -> None:
    jobs = [job("n", 10, 10, 600), job("a", 100, 10, 600)]

    change = RULES.arrived(cluster({1: (20, "n")}, "a", jobs), ["a"])

    assert change.cluster.waiting == ("a",)


def test_a_job_like_the_one_that_ended_takes_its_place() -> None:
    jobs = [*PAIR, job("x", 300, 1), job("y", 103, 10.2)]
    before = cluster({1: (10, "a"), 2: (10, "")}, "x y", jobs)

    change = RULES.ended(before, 2, job("b", 100, 10))

    assert [group.jobs for group in change.cluster.groups] == [("a",), ("y",)]
    assert change.cluster.waiting == ("x",)
    assert change.moved == ()
    assert change.why == "y is like b"


@pytest.mark.parametrize("most", [1, 2, 3])
def test_several_jobs_take_the_place_of_one_where_that_is_allowed(most: int) -> None:
    jobs = [*PAIR, job("x", 60, 5), job("y", 20, 2.5), job("z", 20, 2.5)]
    rules = Regrouping(GroupingRules(), decide, RegroupRules(alike_max=most, least_rise=9.0))

    change = rules.ended(cluster({1: (10, "a"), 2: (10, "")}, "x y z", jobs), 2, job("b", 100, 10))

    assert (change.why == "x, y, z is like b") == (most == 3)


def test_machines_of_a_group_without_jobs_are_given_again() -> None:
    jobs = [*PAIR, job("x", 500, 1)]

    change = RULES.ended(cluster({1: (10, "a"), 2: (10, "")}, "x", jobs), 2, job("b", 100, 10))

    assert sum(group.machines for group in change.cluster.groups) + change.cluster.free == 20
    assert not change.cluster.waiting


def bad_groups() -> tuple[list[WorkProfile], Cluster]:
    """Two groups of jobs that only compute and of jobs that only communicate; one of the first has ended."""
    jobs = [job("c1", 200, 1), job("c2", 200, 1), job("n1", 10, 20), job("n2", 10, 20)]
    return jobs, cluster({1: (10, "c1 c2"), 2: (10, "n1 n2")}, "", jobs)


def test_jobs_move_where_that_makes_machines_much_busier() -> None:
    _, before = bad_groups()

    change = RULES.ended(before, 1, job("c3", 200, 1))

    assert RULES.busy(change.cluster) > 1.08 * RULES.busy(before)
    assert change.moved
    staying = {name: group.number for group in change.cluster.groups for name in group.jobs}
    assert set(change.moved) == {
        name for group in before.groups for name in group.jobs if staying.get(name) != group.number
    }


def test_nobody_moves_for_a_small_gain_nor_soon_after_a_start() -> None:
    _, before = bad_groups()
    careful = Regrouping(GroupingRules(), decide, RegroupRules(least_rise=9.0))

    assert careful.ended(before, 1, job("c3", 200, 1)).moved == ()
    assert RULES.ended(replace(before, fixed=frozenset({"c1", "n1"})), 1, job("c3", 200, 1)).moved == ()


def test_who_has_waited_too_long_is_in_the_next_grouping() -> None:
    jobs = [job("c1", 400, 1), job("c2", 400, 1), job("old", 400, 1)]
    before = cluster({1: (20, "c1 c2")}, "old", jobs)
    assert RULES.ended(before, 1, job("c3", 1, 1)).cluster.waiting == ("old",)

    change = RULES.ended(replace(before, required=frozenset({"old"})), 1, job("c3", 1, 1))

    assert "old" in {name for group in change.cluster.groups for name in group.jobs}


@pytest.mark.parametrize("seed", range(5))
def test_machines_and_jobs_are_kept_whatever_happens(seed: int) -> None:
    jobs = drawn(24, seed)
    state = Cluster(machines=30, profiles={one.job: one for one in jobs}, waiting=tuple(one.job for one in jobs))
    rules = Regrouping(GroupingRules(), decide)
    state = rules.arrived(state, state.waiting).cluster
    left = {one.job for one in jobs}
    while any(group.jobs for group in state.groups):
        group = state.groups[0]
        ended = group.jobs[0]
        left.remove(ended)
        shrunk = tuple(replace(one, jobs=tuple(name for name in one.jobs if name != ended)) for one in state.groups)
        state = rules.ended(replace(state, groups=shrunk), group.number, state.profiles[ended]).cluster
        placed = [name for one in state.groups for name in one.jobs]
        assert sorted([*placed, *state.waiting]) == sorted(left)
        assert state.free >= 0
        assert len({one.number for one in state.groups}) == len(state.groups)
    assert not left


def test_a_job_that_reads_back_is_not_like_one_that_computes_as_long_and_reads_nothing() -> None:
    way = Reloading(disk=ReadCost(bytes_s=1e8))
    a, b, c = (job(name, 100, 10) for name in "abc")
    reads = replace(b, input_bytes=10**10, kept_bytes=0.0, reloading=way)
    before = cluster({1: (10, "x"), 2: (10, "")}, "b c", [job("x", 10, 10), reads, c])

    change = RULES.ended(before, 2, a)
    other = RULES.ended(replace(before, profiles={**before.profiles, "b": b}), 2, a)

    assert change.why == "c is like a"
    assert other.why == "b is like a"


def test_a_job_whose_updates_take_processors_is_not_like_one_that_only_computes_as_long() -> None:
    a, b, c = (job(name, 100, 10) for name in "abc")
    before = cluster({1: (10, "x"), 2: (10, "")}, "b c", [job("x", 10, 10), replace(b, net_cpu_s=5.0), c])

    assert RULES.ended(before, 2, a).why == "c is like a"
    assert RULES.ended(before, 2, replace(a, net_cpu_s=5.0)).why == "b is like a"
