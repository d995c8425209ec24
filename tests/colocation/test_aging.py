"""A job that has waited too long: which machines it gets, and who waits in its stead."""

import random
from dataclasses import replace

from farside.group_time import WorkProfile
from farside.scheduler.sharing.colocation.aging import admitted, with_owed
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.grouping import GroupingRules
from farside.scheduler.sharing.colocation.regroup import Change
from farside.scheduler.sim.colocation.policies import POLICIES, Settings

RULES = GroupingRules(memory_bytes=1000)


def job(name: str, least: int = 1, most: int = 99, floor_bytes: int = 0) -> WorkProfile:
    return WorkProfile(
        job=name, work_machine_s=100.0, net_s=0.0, floor_bytes=floor_bytes, machines_least=least, machines_most=most
    )


def cluster(groups: list[tuple[int, str]], waiting: WorkProfile, *profiles: WorkProfile, machines: int) -> Cluster:
    """Groups with their numbers of machines, numbered from 1; jobs have no needs but those of ``profiles``."""
    running = tuple(
        RunningGroup(number=number, machines=held, jobs=tuple(names.split()))
        for number, (held, names) in enumerate(groups, 1)
    )
    known = {name: job(name) for group in running for name in group.jobs}
    known |= {one.job: one for one in (*profiles, waiting)}
    return Cluster(
        machines=machines, groups=running, waiting=(waiting.job,), profiles=known, next_number=len(running) + 1,
        required=frozenset({waiting.job}),
    )  # fmt: skip


def after(change: Change | None) -> tuple[list[tuple[int, tuple[str, ...]]], tuple[str, ...]]:
    """Machines and jobs of each group, and who waits."""
    assert change is not None
    return [(group.machines, group.jobs) for group in change.cluster.groups], change.cluster.waiting


def test_free_machines_come_first_and_nobody_waits_for_it() -> None:
    change = admitted(cluster([(1, "a")], job("old", least=2), machines=3), "old", RULES)

    assert after(change) == ([(1, ("a",)), (2, ("old",))], ())


def test_it_joins_the_smallest_group_of_so_many_machines() -> None:
    change = admitted(cluster([(2, "a b"), (2, "c"), (1, "d")], job("old", least=2), machines=5), "old", RULES)

    assert after(change) == ([(2, ("a", "b")), (2, ("c", "old")), (1, ("d",))], ())


def test_the_groups_with_fewest_jobs_give_way_and_only_as_many_as_it_takes() -> None:
    change = admitted(
        cluster([(1, "a b c"), (1, "d"), (1, "e"), (1, "f g")], job("old", least=2), machines=4), "old", RULES
    )

    assert after(change) == ([(1, ("a", "b", "c")), (1, ("f", "g")), (2, ("old",))], ("d", "e"))


def test_a_small_group_is_left_alone_where_a_larger_one_is_enough_by_itself() -> None:
    needs = [job("b", floor_bytes=600), job("c", floor_bytes=300)]
    before = cluster([(1, "a"), (2, "b c")], job("old", least=2, floor_bytes=950), *needs, machines=3)

    change = admitted(before, "old", RULES)

    assert after(change) == ([(1, ("a",)), (2, ("old",))], ("b", "c"))


def test_where_memory_is_short_those_that_need_most_of_it_give_way() -> None:
    needs = [job("a", floor_bytes=300), job("b", floor_bytes=450), job("c", floor_bytes=250)]
    before = cluster([(1, "a b c")], job("old", floor_bytes=500), *needs, machines=1)

    change = admitted(before, "old", RULES)

    assert after(change) == ([(1, ("c", "old"))], ("b", "a"))


def test_who_is_being_measured_is_not_left_beside_it() -> None:
    before = cluster([(1, "a"), (1, "b c")], job("old"), machines=2)

    change = admitted(before, "old", RULES, frozenset({"a"}))

    assert after(change) == ([(1, ("a",)), (1, ("b", "c", "old"))], ())


def test_nobody_gives_way_who_must_not() -> None:
    before = replace(cluster([(1, "a"), (1, "b")], job("old", least=2), machines=2), fixed=frozenset({"a"}))

    assert admitted(before, "old", RULES) is None
    assert admitted(replace(before, machines=1, groups=()), "old", RULES) is None


def test_an_owed_job_is_admitted_after_a_change_and_nobody_that_just_came_gives_way() -> None:
    before = cluster([(1, "a")], job("old", floor_bytes=900), job("a", floor_bytes=500), machines=2)
    came = replace(before, groups=(*before.groups, RunningGroup(number=2, machines=1, jobs=("new",))))
    came = replace(came, profiles={**came.profiles, "new": job("new", floor_bytes=900)}, next_number=3)

    change = with_owed(before, Change(cluster=came, why="new came"), RULES)

    assert after(change) == ([(1, ("new",)), (1, ("old",))], ("a",))
    assert change.moved == ("a",)


def test_simulated_jobs_do_not_wait_past_the_bound_where_the_rule_for_ends_moves_nobody() -> None:
    before = cluster([(1, "a"), (1, "b")], job("old"), machines=2)
    before = replace(before, fixed=frozenset({"a", "b"}))  # they have started a short time ago
    ended = replace(job("c"), work_machine_s=5.0)

    aged, printed = (
        POLICIES[name](Settings(), random.Random(0)).ended(before, 1, ended) for name in ("harmony", "paper")
    )

    assert after(aged) == ([(1, ("a", "old")), (1, ("b",))], ())
    assert printed.cluster.waiting == ("old",)
