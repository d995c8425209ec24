"""What changes when a co-located job comes or ends."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from farside.group_time import ReadCost, Reloading, WorkProfile
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.grouping import Grouping, GroupingRules, decide, grouping_of
from farside.scheduler.sharing.colocation.regroup import Regrouping, RegroupRules
from farside.scheduler.sharing.colocation.work import Work, balanced_machines
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


def test_the_first_that_has_a_place_joins_though_one_behind_it_would_keep_more_busy() -> None:
    jobs = [job("n", 40, 10), job("none", 1000, 10, 2000), job("first", 40, 10), job("second", 160, 1)]
    before = cluster({1: (20, "n")}, "none first second", jobs)

    change = RULES.arrived(before, ["none", "first", "second"])

    assert [group.jobs for group in change.cluster.groups] == [("n", "first")]
    work = RULES.work(before)
    assert work.of(RunningGroup(number=1, machines=20, jobs=("n", "second"))) > work.all(change.cluster)


@pytest.mark.parametrize(("worth", "waits"), [(0.0, True), (1.0, False)])
def test_a_job_that_communicates_joins_where_machines_are_busy_and_the_network_is_not(
    worth: float, waits: bool
) -> None:
    jobs = [job("c1", 400, 1), job("c2", 400, 1), job("talks", 30, 12)]
    rules = Regrouping(GroupingRules(), decide, RegroupRules(network_worth=worth))

    change = rules.arrived(cluster({1: (20, "c1 c2")}, "talks", jobs), ["talks"])

    assert (change.cluster.waiting == ("talks",)) == waits


def test_a_network_counts_as_the_machines_on_which_all_jobs_compute_as_long_as_they_communicate() -> None:
    jobs = [job("a", 60, 2), job("b", 20, 8), job("c", 20, 0)]

    assert balanced_machines(jobs, 100) == pytest.approx(10)
    assert balanced_machines(jobs, 4) == 4
    assert balanced_machines([replace(one, machines_most=3) for one in jobs], 100) == 3
    assert balanced_machines([jobs[2]], 100) == 100


def test_a_network_counts_alike_in_all_groups_but_for_those_that_may_not_have_as_many_machines() -> None:
    jobs = [job("a", 10, 10), replace(job("b", 10, 10), net_alone_s=10, machines_most=1)]
    work = Work(GroupingRules(), {one.job: one for one in jobs}, 5.0)

    assert work.of(RunningGroup(number=1, machines=10, jobs=("a",))) == pytest.approx((10 * 1 + 5 * 10) / 11)
    assert work.of(RunningGroup(number=1, machines=1, jobs=("a",))) == pytest.approx(1)
    assert work.of(RunningGroup(number=1, machines=1, jobs=("b",))) == pytest.approx((1 * 10 + 1 * 10) / 20)
    assert work.of(RunningGroup(number=1, machines=10, jobs=())) == 0


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
    rules = Regrouping(GroupingRules(), decide, RegroupRules(alike_max=most, least_gain=99.0))

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

    work = RULES.work(before)
    assert work.all(change.cluster) > 1.08 * work.all(before)
    assert change.moved
    staying = {name: group.number for group in change.cluster.groups for name in group.jobs}
    assert set(change.moved) == {
        name for group in before.groups for name in group.jobs if staying.get(name) != group.number
    }


def test_nobody_moves_for_a_small_gain_nor_soon_after_a_start() -> None:
    _, before = bad_groups()
    careful = Regrouping(GroupingRules(), decide, RegroupRules(least_gain=99.0))

    assert careful.ended(before, 1, job("c3", 200, 1)).moved == ()
    assert RULES.ended(replace(before, fixed=frozenset({"c1", "n1"})), 1, job("c3", 200, 1)).moved == ()


def lopsided() -> Cluster:
    """Jobs that only compute, jobs that only communicate, and a group that is busy all the time."""
    jobs = [job("c1", 200, 1), job("c2", 200, 1), job("n1", 10, 20), job("n2", 10, 20), *PAIR]
    return cluster({1: (10, "c1 c2"), 2: (10, "n1 n2"), 3: (10, "a b")}, "", jobs, machines=30)


def test_two_jobs_change_places_where_that_is_all_that_is_missing() -> None:
    change = RULES.ended(lopsided(), 1, job("x", 50, 2))

    assert set(change.moved) == {"c1", "n1"}
    assert [(group.number, group.machines) for group in change.cluster.groups] == [(1, 10), (2, 10), (3, 10)]
    assert RULES.work(lopsided()).told(change.cluster) == "30.0 machines and 3.0 networks"
    assert change.why == "30.0 machines and 3.0 networks busy instead of 20.5 machines and 2.0 networks"


@pytest.mark.parametrize(("share", "moves"), [(1.3, 2), (1.5, 0)])
def test_each_job_that_moves_must_keep_more_machines_busy(share: float, moves: int) -> None:
    """A network counts as 10 machines: 19 more than 41 after two moves, for each 1.39 times what is done of a job."""
    before = lopsided()
    rules = Regrouping(GroupingRules(), decide, RegroupRules(least_gain=share))

    assert RULES.work(before).all(before) == pytest.approx(41)
    assert len(rules.ended(before, 1, job("x", 50, 2)).moved) == moves


def test_jobs_that_move_keep_more_busy_than_times_may_be_wrong() -> None:
    before = lopsided()

    assert Regrouping(GroupingRules(), decide, RegroupRules(noise=0.4)).ended(before, 1, job("x", 50, 2)).moved
    assert not Regrouping(GroupingRules(), decide, RegroupRules(noise=0.5)).ended(before, 1, job("x", 50, 2)).moved


def test_free_machines_go_to_one_job_and_the_others_stay() -> None:
    jobs = [job("a", 300, 2), job("b", 60, 10), job("c", 60, 10)]

    change = RULES.ended(cluster({1: (5, "a"), 2: (5, "b c"), 3: (10, "")}, "", jobs), 3, job("x", 50, 2))

    assert change.moved == ("a",)
    assert {group.jobs: group.machines for group in change.cluster.groups} == {("b", "c"): 5, ("a",): 15}


def test_a_step_that_memory_does_not_allow_is_not_taken() -> None:
    before = lopsided()
    heavy = {name: replace(one, floor_bytes=600 * name.startswith("c")) for name, one in before.profiles.items()}
    apart = cluster({1: (10, "c1"), 2: (10, "c2"), 3: (10, "a b")}, "", [*heavy.values()], machines=30)

    change = RULES.ended(apart, 1, job("x", 50, 2))

    assert not any({"c1", "c2"} <= set(group.jobs) for group in change.cluster.groups)


def nobody(jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules, required: int = 0) -> Grouping:
    """An answer that no grouping is worth anything."""
    return Grouping(free=machines)


def single_steps(before: Cluster) -> list[Cluster]:
    """All that comes of it if a job moves to another group, or two of two groups change places."""
    found = list[Cluster]()
    for one, other in itertools.permutations(before.groups, 2):
        for gives, takes in itertools.product(one.jobs, ("", *other.jobs)):
            new = {
                one.number: [*(job for job in one.jobs if job != gives), *([takes] if takes else [])],
                other.number: [*(job for job in other.jobs if job != takes), gives],
            }
            groups = [replace(group, jobs=tuple(new.get(group.number, group.jobs))) for group in before.groups]
            found.append(replace(before, groups=tuple(group for group in groups if group.jobs)))
    return found


def test_no_other_single_step_is_worth_more_once_all_are_taken() -> None:
    """What is cut off since it can't be worth enough would be found here."""
    rules, moves = Regrouping(GroupingRules(), nobody), 0
    for seed in range(40):
        jobs = drawn(10, seed)
        before = cluster({1: (14, "j0 j1 j2"), 2: (9, "j3 j4 j5"), 3: (5, "j6 j7 j8")}, "", jobs, machines=28)
        work = rules.work(before)
        each = RegroupRules().least_gain * work.all(before) / len(before.profiles.keys() - {"j9"})
        number = {job: group.number for group in before.groups for job in group.jobs}

        def worth(after: Cluster, number: dict[str, int] = number, each: float = each, work: Work = work) -> float:
            moved = sum(number[job] != group.number for group in after.groups for job in group.jobs)
            return work.all(after) - each * moved

        change = rules.ended(before, 1 + seed % 3, jobs[9])

        moves += len(change.moved)
        assert max(map(worth, single_steps(change.cluster))) <= worth(change.cluster) + 1e-5
    assert moves > 20


def test_nothing_is_regrouped_where_too_few_machines_are_idle_for_a_move() -> None:
    asked = list[int]()

    def answer(jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules, required: int = 0) -> Grouping:
        asked.append(machines)
        return Grouping(free=machines)

    jobs = [*PAIR, job("c", 97, 10), job("d", 97, 10)]
    before = cluster({1: (10, "a b"), 2: (10, "c d")}, "", jobs)
    Regrouping(GroupingRules(), answer).ended(before, 2, job("x", 5, 0))

    assert RULES.work(before).told(before) == "19.7 machines and 2.0 networks"
    assert not asked


def test_regroupings_are_few_and_of_few_jobs_however_many_there_are() -> None:
    asked = list[int]()

    def answer(jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules, required: int = 0) -> Grouping:
        asked.append(len(jobs))
        return Grouping(free=machines)

    names = [f"r{number}" for number in range(60)]
    jobs = [*(job(name, 60, 20) for name in names), *(job(f"w{number}", 1, 20) for number in range(500))]
    groups = {at + 1: (10, f"{names[2 * at]} {names[2 * at + 1]}") for at in range(30)}
    before = cluster(groups, " ".join(f"w{number}" for number in range(500)), jobs, machines=300)
    Regrouping(GroupingRules(), answer, RegroupRules(least_join=1.0)).ended(before, 1, job("x", 500, 2))

    running = [2 * groups for groups in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 19)]
    assert asked == [2 * count + 24 for count in running]


def test_a_new_group_keeps_the_machines_of_one_with_as_many_that_shares_fewer_jobs() -> None:
    jobs = [job(name, 20, 2) for name in "abcdeo"]

    def answer(jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules, required: int = 0) -> Grouping:
        by_name = {one.job: one for one in jobs}
        if len(by_name) < 6:
            return Grouping(free=machines)
        return grouping_of([[by_name[name] for name in names] for names in ("cdeao", "b")], [10, 5], machines, rules)

    before = replace(
        cluster({1: (10, "a b"), 2: (5, "c d e")}, "o", jobs, machines=15), required=frozenset({"o"})
    )  # fmt: skip
    change = Regrouping(GroupingRules(), answer, RegroupRules(least_join=1.0)).ended(before, 1, job("x", 500, 2))

    assert change.cluster.groups[0] == RunningGroup(number=1, machines=10, jobs=("c", "d", "e", "a", "o"))
    assert set(change.moved) == {"b", "c", "d", "e"}


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
