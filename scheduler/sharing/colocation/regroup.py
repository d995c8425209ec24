"""What changes when a co-located job arrives or ends: as few jobs as possible change their machines. PURE."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from farside.group_time import WorkProfile
from farside.scheduler.sharing.colocation.grouping import Grouping, GroupingRules

OLDEST_TRIED = 24

Decide = Callable[[Sequence[WorkProfile], int, GroupingRules, int], Grouping]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupRules:
    """When something changes.

    Attributes:
        like: How far a job's time and ratio may be from those of the one whose place it takes.
        alike_max: How many jobs together may take the place of one, from 1 to 3.
        near_best: How far the grouping that moves fewer jobs may be from the best.
        least_rise: How much busier machines must become for jobs to move, as a share of those that are busy.
        least_join: How many more machines, as a share of all, must be busy for a job that waits to join a group.
        noise: How wrong times may be, as a share: a group whose machines get busier by less may not do so at all.
    """

    like: float = 0.05
    alike_max: int = 1
    near_best: float = 0.05
    least_rise: float = 0.1
    least_join: float = 0.01
    noise: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGroup:
    """Jobs that run together; the number stays while the machines do."""

    number: int
    machines: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What runs where, and what waits.

    Attributes:
        machines: All there are.
        groups: What runs.
        waiting: Jobs that wait, in the order in which they are admitted.
        profiles: Of all these jobs.
        required: Of those that wait, the ones that have waited too long to be left out again.
        fixed: Running jobs that must not be moved: they started a short time ago.
        next_number: Of the next group.
    """

    machines: int
    groups: tuple[RunningGroup, ...] = ()
    waiting: tuple[str, ...] = ()
    profiles: Mapping[str, WorkProfile] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    next_number: int = 1

    @property
    def free(self) -> int:
        """Machines without a group."""
        return self.machines - sum(group.machines for group in self.groups)

    def of(self, jobs: Sequence[str]) -> list[WorkProfile]:
        """Profiles of jobs."""
        return [self.profiles[job] for job in jobs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What follows from an event.

    Attributes:
        cluster: What runs and waits then.
        moved: Jobs that ran before, and that have other machines now, or wait.
        why: The rule that decided, in words.
    """

    cluster: Cluster
    moved: tuple[str, ...] = ()
    why: str = ""


class Regrouping:
    """The rules for events [harmony §IV-B4], by one way to decide and its rules."""

    def __init__(self, rules: GroupingRules, decide: Decide, events: RegroupRules | None = None) -> None:
        self._rules, self._decide, self._events = rules, decide, events or RegroupRules()

    def arrived(self, cluster: Cluster, jobs: Sequence[str]) -> Change:
        """Jobs have come and wait.

        Where others wait already, the jobs that run were preferred to them, and these wait as they do.
        """
        if not cluster.free and len(cluster.waiting) > len(jobs):
            return Change(cluster=cluster, why=f"{', '.join(jobs)} waits behind others")
        return Change(cluster=self._filled(cluster), why=f"{', '.join(jobs)} came")

    def ended(self, cluster: Cluster, number: int, job: WorkProfile) -> Change:
        """A job of a group has ended; the group is still there, perhaps with no job."""
        group = next(group for group in cluster.groups if group.number == number)
        takers = self._alike(cluster, group, job)
        if takers and not cluster.required - set(takers):
            return Change(cluster=_joined(cluster, number, takers), why=f"{', '.join(takers)} is like {job.job}")
        filled = self._filled(_without_empty(cluster))
        return self._regrouped(cluster, number, filled) or Change(cluster=filled, why="nobody moves")

    def busy(self, cluster: Cluster) -> float:
        """Machines that are busy, by the weight of processors beside the network."""
        return sum(self._busy(cluster.of(group.jobs), group.machines) for group in cluster.groups)

    def _busy(self, jobs: Sequence[WorkProfile], machines: int) -> float:
        if not jobs:
            return 0.0
        time, weight = self._rules.time(jobs, machines), self._rules.cpu_weight
        return machines * (weight * time.busy_cpu + (1 - weight) * time.busy_net)

    def _alike(self, cluster: Cluster, group: RunningGroup, job: WorkProfile) -> tuple[str, ...]:
        """Waiting jobs that together need nearly what the ended one needed.

        In time, in ratio, of the disk, and of the processors for updates.
        """
        oldest = cluster.waiting[:OLDEST_TRIED]
        comp_s = np.array([one.comp_s(group.machines) for one in cluster.of(cluster.waiting)])
        net_s = np.array([one.comm_s(group.machines) for one in cluster.of(cluster.waiting)])
        disk_s = np.array([one.disk_s(group.machines) for one in cluster.of(cluster.waiting)])
        updates_s = np.array([one.comm_cpu_s(group.machines) for one in cluster.of(cluster.waiting)])
        others = cluster.of(group.jobs)
        for count in range(1, self._events.alike_max + 1):
            many = len(cluster.waiting) if count == 1 else len(oldest)
            sets = np.array(list(itertools.combinations(range(many), count)), dtype=int).reshape(-1, count)
            comp, net = comp_s[sets].sum(axis=1), net_s[sets].sum(axis=1)
            was_comp, was_net = job.comp_s(group.machines), job.comm_s(group.machines)
            reads_more = np.abs(disk_s[sets].sum(axis=1) - job.disk_s(group.machines))
            talks_more = np.abs(updates_s[sets].sum(axis=1) - job.comm_cpu_s(group.machines))
            near_s = self._events.like * (was_comp + was_net)
            is_as_long = np.abs(comp + net - was_comp - was_net) <= near_s
            is_as_long &= (reads_more <= near_s) & (talks_more <= near_s)
            is_like = is_as_long & (np.abs(comp * was_net - was_comp * net) <= self._events.like * was_comp * net)
            for found in sets[is_like].tolist():
                takers = tuple(cluster.waiting[place] for place in found)
                if self._rules.has_room([*others, *cluster.of(takers)], group.machines):
                    return takers
        return ()

    def _filled(self, cluster: Cluster) -> Cluster:
        """Who waits gets free machines; then one joins the group where that makes most machines busy. Nobody moves.

        One, since each job more in a group makes all of its jobs slower: the place of one that has ended is filled.
        """
        if cluster.free and cluster.waiting:
            grouping = self._asked(cluster, cluster.waiting, cluster.free)
            cluster = _adopted(cluster, frozenset(), grouping)
        rises = [
            (
                self._busy(with_it, group.machines) - self._busy(cluster.of(group.jobs), group.machines),
                -group.number,
                -place,
            )
            for group in cluster.groups
            for place, job in enumerate(cluster.waiting[:OLDEST_TRIED])
            if self._rules.has_room(with_it := cluster.of((*group.jobs, job)), group.machines)
        ]
        sizes = {-group.number: group.machines for group in cluster.groups}
        clear = [one for one in rises if one[0] > self._least(cluster, sizes[one[1]])]
        if not clear:
            return cluster
        _, number, place = max(clear)
        return _joined(cluster, -number, (cluster.waiting[-place],))

    def _least(self, cluster: Cluster, machines: int) -> float:
        """How many more machines must be busy for a job to join a group with this number of machines."""
        return max(self._events.least_join * cluster.machines, self._events.noise * machines)

    def _asked(self, cluster: Cluster, jobs: Sequence[str], machines: int) -> Grouping:
        ordered = sorted(jobs, key=lambda job: job not in cluster.required)
        required = sum(job in cluster.required for job in jobs)
        return self._decide(cluster.of(ordered), machines, self._rules, required)

    def _regrouped(self, cluster: Cluster, number: int, filled: Cluster) -> Change | None:
        """The grouping that moves fewest jobs of those nearly the best; None if moving nobody is nearly as good.

        Groups join one by one, those of few jobs first: so the looks grow with their number, not with their subsets.
        """
        least = (1 + self._events.least_rise) * self.busy(filled)
        is_owed = any(job in cluster.required for job in filled.waiting)
        if least >= cluster.machines and not is_owed:
            return None
        others = [group for group in cluster.groups if group.number != number and not cluster.fixed & set(group.jobs)]
        joining = sorted(others, key=lambda group: (len(group.jobs), group.number))
        group = next(group for group in cluster.groups if group.number == number)
        if cluster.fixed & set(group.jobs):
            return None
        options = list[tuple[float, Cluster]]()
        for count in range(len(joining) + 1):
            taking = [group, *joining[:count]]
            numbers = frozenset(one.number for one in taking)
            jobs = [job for one in taking for job in one.jobs]
            grouping = self._asked(
                cluster, (*jobs, *cluster.waiting), cluster.free + sum(one.machines for one in taking)
            )
            after = _adopted(cluster, numbers, grouping)
            options.append((self.busy(after), after))
            if options[-1][0] >= (1 - self._events.near_best) * cluster.machines:
                break  # nothing that follows is better by as much as would count
        most = max(busy for busy, _ in options)
        near = [option for option in options if option[0] >= (1 - self._events.near_best) * most]
        busy, after = min(near, key=lambda option: len(_moved(cluster, option[1])))
        if busy < least and not is_owed:
            return None
        moved = _moved(cluster, after)
        return Change(cluster=after, moved=moved, why=f"{busy:.1f} machines busy instead of {self.busy(filled):.1f}")


def _joined(cluster: Cluster, number: int, jobs: Sequence[str]) -> Cluster:
    """Jobs that wait join a group."""
    groups = tuple(
        replace(group, jobs=(*group.jobs, *jobs)) if group.number == number else group for group in cluster.groups
    )
    return replace(cluster, groups=groups, waiting=tuple(job for job in cluster.waiting if job not in jobs))


def _without_empty(cluster: Cluster) -> Cluster:
    return replace(cluster, groups=tuple(group for group in cluster.groups if group.jobs))


def _adopted(cluster: Cluster, replaced: frozenset[int], grouping: Grouping) -> Cluster:
    """New groups in the place of some: each has the number of an old one with as many machines, if it shares most jobs.

    Jobs of the old groups that are in no new one wait, before all others.
    """
    old = [group for group in cluster.groups if group.number in replaced]
    pairs = sorted(
        ((len(set(group.jobs) & set(new.jobs)), -group.number, place)
        for group in old for place, new in enumerate(grouping.groups)),
        reverse=True,
    )  # fmt: skip
    heirs = dict[int, RunningGroup]()
    for shared, number, place in pairs:
        if shared and place not in heirs and all(-number != heir.number for heir in heirs.values()):
            heirs[place] = next(group for group in old if group.number == -number)
    numbers, groups = itertools.count(cluster.next_number), list[RunningGroup]()
    for place, new in enumerate(grouping.groups):
        heir = heirs.get(place)
        is_same = heir is not None and heir.machines == new.machines
        number = heir.number if heir is not None and is_same else next(numbers)
        groups.append(RunningGroup(number=number, machines=new.machines, jobs=new.jobs))
    placed = {job for group in groups for job in group.jobs}
    paused = [job for group in old for job in group.jobs if job not in placed]
    return replace(
        cluster,
        groups=(*(group for group in cluster.groups if group.number not in replaced), *groups),
        waiting=(*paused, *(job for job in cluster.waiting if job not in placed)),
        next_number=next(numbers),
    )


def _moved(before: Cluster, after: Cluster) -> tuple[str, ...]:
    now = {job: group.number for group in after.groups for job in group.jobs}
    return tuple(job for group in before.groups for job in group.jobs if now.get(job) != group.number)
