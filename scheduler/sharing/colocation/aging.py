"""A place for a co-located job that has waited too long: others wait in its stead where nothing is free. PURE.

The rules for arrivals and ends put a job where it keeps most machines busy. One that keeps none busier, that needs more
machines than are ever free at once, or that nobody has measured, could wait for ever by these alone.
"""

from collections.abc import Iterator, Set
from dataclasses import replace

from farside.group_time import WorkProfile
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.grouping import GroupingRules
from farside.scheduler.sharing.colocation.regroup import Change


def admitted(cluster: Cluster, job: str, rules: GroupingRules, unmeasured: Set[str] = frozenset()) -> Change | None:
    """A waiting job gets a place, and as few jobs as possible wait in its stead; None: nobody may make room for it.

    It gets machines of its own, as few as it can run on, or joins the smallest group that has room. Jobs that are
    ``fixed`` do not give way.

    Args:
        cluster: What runs where; of profiles only memory and numbers of machines count.
        job: Who gets a place.
        rules: What memory there is.
        unmeasured: Running jobs whose times nobody knows yet: none of them is left in the group that it joins.

    Returns:
        The change; ``moved`` are those that wait now. [harmony §IV-B3; ours, see docs/papers.md]
    """
    profile = cluster.profiles[job]
    options = [*_alone(cluster, profile, rules), *_beside(cluster, profile, rules, unmeasured)]
    return min(options, key=lambda change: len(change.moved), default=None)


def with_owed(before: Cluster, change: Change, rules: GroupingRules) -> Change:
    """A change after which nobody who has waited too long still waits, as far as those that ran before make room."""
    ran = {name for group in before.groups for name in group.jobs}
    cluster, moved = change.cluster, list(change.moved)
    for job in [name for name in cluster.waiting if name in cluster.required]:
        came = {name for group in cluster.groups for name in group.jobs} - ran
        found = admitted(replace(cluster, fixed=cluster.fixed | came), job, rules)
        if found is not None:
            cluster = replace(found.cluster, fixed=cluster.fixed)
            moved += [name for name in found.moved if name not in moved]
            change = replace(change, why=f"{change.why}; {found.why}")
    return replace(change, cluster=cluster, moved=tuple(moved))


def _alone(cluster: Cluster, job: WorkProfile, rules: GroupingRules) -> Iterator[Change]:
    """Machines that are free, and those of the groups with fewest jobs."""
    held = job.machines_least
    if not rules.has_room([job], held):
        return
    taken = list[RunningGroup]()
    for group in sorted(_yielding(cluster), key=lambda one: (len(one.jobs), one.number)):
        if _machines(taken) + cluster.free >= held:
            break
        taken.append(group)
    if _machines(taken) + cluster.free < held:
        return
    # A small group that was taken before a large one may not be needed beside that.
    for group in reversed(taken):
        rest = [one for one in taken if one is not group]
        taken = rest if _machines(rest) + cluster.free >= held else taken
    own = RunningGroup(number=cluster.next_number, machines=held, jobs=(job.job,))
    left = tuple(group for group in cluster.groups if group not in taken)
    after = replace(cluster, groups=(*left, own), next_number=cluster.next_number + 1)
    yield _change(after, job.job, [name for group in taken for name in group.jobs])


def _beside(cluster: Cluster, job: WorkProfile, rules: GroupingRules, unmeasured: Set[str]) -> Iterator[Change]:
    """A place in each group, the smallest first; where memory is short, those that need most of it give way."""
    for group in sorted(cluster.groups, key=lambda one: (len(one.jobs), one.number)):
        leaving = [name for name in group.jobs if name in unmeasured]
        staying = [name for name in group.jobs if name not in unmeasured]
        by_memory = sorted(staying, key=lambda name: cluster.profiles[name].floor_bytes)
        may_go = [name for name in by_memory if name not in cluster.fixed]
        while may_go and not rules.has_room([job, *cluster.of(staying)], group.machines):
            leaving.append(may_go.pop())
            staying.remove(leaving[-1])
        if cluster.fixed & set(leaving) or not rules.has_room([job, *cluster.of(staying)], group.machines):
            continue
        joined = replace(group, jobs=(*staying, job.job))
        groups = tuple(joined if one is group else one for one in cluster.groups)
        yield _change(replace(cluster, groups=groups), job.job, leaving)


def _yielding(cluster: Cluster) -> list[RunningGroup]:
    """Groups of which every job may give way."""
    return [group for group in cluster.groups if not cluster.fixed & set(group.jobs)]


def _machines(groups: list[RunningGroup]) -> int:
    return sum(group.machines for group in groups)


def _change(after: Cluster, job: str, leaving: list[str]) -> Change:
    waiting = (*leaving, *(name for name in after.waiting if name != job))
    why = f"{job} has waited too long" + (f", and {', '.join(leaving)} waits in its stead" if leaving else "")
    return Change(cluster=replace(after, waiting=waiting), moved=tuple(leaving), why=why)
