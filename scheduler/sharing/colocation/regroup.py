"""What changes when a co-located job arrives or ends: as few jobs as possible change their machines. PURE."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from farside.group_time import WorkProfile
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.grouping import Grouping, GroupingRules

OLDEST_TRIED = 24
# Single steps are looked for at the group whose job has ended and at those with most idle machines, each with so many
# others, and so often.
_IDLEST, _PARTNERS, _MOST_STEPS = 3, 24, 12
# So many other groups join one by one the one whose job has ended to be regrouped; then half as many more each time.
_ONE_BY_ONE = 8
_LEAST_STEP = 1e-6
_NO_ROOM = -1e9

Decide = Callable[[Sequence[WorkProfile], int, GroupingRules, int], Grouping]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupRules:
    """When something changes.

    Attributes:
        like: How far a job's time and ratio may be from those of the one whose place it takes.
        alike_max: How many jobs together may take the place of one, from 1 to 3.
        near_best: How far from the best a grouping or a place may be for it not to matter.
        least_gain: How many more machines must be busy for each job that moves, as a share of those that a running job
            keeps busy on average.
        least_join: How many more machines, as a share of all, must be busy for a job that waits to join a group.
        noise: How wrong times may be, as a share: a group whose machines get busier by less may not do so at all.
    """

    like: float = 0.05
    alike_max: int = 1
    near_best: float = 0.05
    least_gain: float = 1 / 3
    least_join: float = 0.01
    noise: float = 0.0


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
        filled = self._filled(cluster, _Busy(self._rules, cluster.profiles))
        return Change(cluster=filled, why=f"{', '.join(jobs)} came")

    def ended(self, cluster: Cluster, number: int, job: WorkProfile) -> Change:
        """A job of a group has ended; the group is still there, perhaps with no job."""
        group = next(group for group in cluster.groups if group.number == number)
        takers = self._alike(cluster, group, job)
        if takers and not cluster.required - set(takers):
            return Change(cluster=_joined(cluster, number, takers), why=f"{', '.join(takers)} is like {job.job}")
        busy = _Busy(self._rules, cluster.profiles)
        filled = self._filled(_without_empty(cluster), busy)
        return self._regrouped(cluster, group, filled, busy) or Change(cluster=filled, why="nobody moves")

    def busy(self, cluster: Cluster) -> float:
        """Machines that are busy, by the weight of processors beside the network."""
        return _Busy(self._rules, cluster.profiles).all(cluster)

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

    def _filled(self, cluster: Cluster, busy: "_Busy") -> Cluster:
        """Who waits gets free machines; then one joins the group where that makes most machines busy. Nobody moves.

        One, since each job more in a group makes all of its jobs slower: the place of one that has ended is filled.
        """
        if cluster.free and cluster.waiting:
            grouping = self._asked(cluster, cluster.waiting, cluster.free)
            cluster = _adopted(cluster, frozenset(), grouping)
        most, found = 0.0, list[tuple[float, int, int]]()
        for group in cluster.groups if cluster.waiting else ():
            least, idle = self._least(cluster, group.machines), group.machines - busy.of(group)
            # A group's machines get busier by those at most that are idle.
            for place, job in enumerate(cluster.waiting[:OLDEST_TRIED] if idle > least and idle >= most else ()):
                with_it = replace(group, jobs=(*group.jobs, job))
                if (rise := busy.with_room(with_it) - busy.of(group)) > least:
                    most = max(most, rise)
                    found.append((rise, -group.number, -place))
        if not found:
            return cluster
        _, number, place = max(found)
        return _joined(cluster, -number, (cluster.waiting[-place],))

    def _least(self, cluster: Cluster, machines: int) -> float:
        """How many more machines must be busy for a job to join a group with this number of machines."""
        return max(self._events.least_join * cluster.machines, self._events.noise * machines)

    def _asked(self, cluster: Cluster, jobs: Sequence[str], machines: int) -> Grouping:
        ordered = sorted(jobs, key=lambda job: job not in cluster.required)
        required = sum(job in cluster.required for job in jobs)
        return self._decide(cluster.of(ordered), machines, self._rules, required)

    def _regrouped(self, cluster: Cluster, group: RunningGroup, filled: Cluster, busy: "_Busy") -> Change | None:
        """Where most machines are busy, less what each job that moves must bring; None if that is where nobody moves.

        Each job that moves stops, starts and repeats iterations, so it has to bring `least_gain`. A job that has waited
        too long is grouped in any case.
        """
        was, running = busy.all(filled), sum(len(one.jobs) for one in filled.groups)
        each = self._events.least_gain * was / max(1, running)
        is_owed = any(job in cluster.required for job in filled.waiting)
        # Where nobody waits, whatever changes moves one job at least.
        paid = 0.0 if cluster.waiting else each
        if cluster.fixed & set(group.jobs) or (was + paid >= cluster.machines and not is_owed):
            return None
        after = filled if is_owed else _Steps(cluster, filled, busy, each).taken(group.number)
        least = -math.inf if is_owed else _worth(cluster, after, busy, each)
        after = self._grouped(cluster, group, busy, each, least) or after
        after_busy = busy.all(after)
        if after is filled or (not is_owed and after_busy <= (1 + self._events.noise) * was):
            return None
        moved = _moved(cluster, after)
        return Change(cluster=after, moved=moved, why=f"{after_busy:.1f} machines busy instead of {was:.1f}")

    def _grouped(
        self, cluster: Cluster, group: RunningGroup, busy: "_Busy", each: float, least: float
    ) -> Cluster | None:
        """The best new grouping of those that wait and of one group, of that and another, and so on.

        None: none is worth more than `least`. Groups join one by one, those of few jobs first: so the looks grow with
        their number, not with their subsets. No more than a bounded number join, and of those that wait only the first.
        """
        others = [one for one in cluster.groups if one is not group and not cluster.fixed & set(one.jobs)]
        joining = sorted(others, key=lambda one: (len(one.jobs), one.number))
        was, found = busy.all(cluster), None
        for count in _counts(len(joining)):
            taking = [group, *joining[:count]]
            idle = cluster.free + sum(one.machines - busy.of(one) for one in taking)
            if was + idle - (0.0 if cluster.waiting else each) <= least:
                continue  # all of their machines would not be enough
            jobs = [job for one in taking for job in one.jobs]
            grouping = self._asked(
                cluster,
                (*jobs, *_first(cluster, OLDEST_TRIED + len(jobs))),
                cluster.free + sum(one.machines for one in taking),
            )
            after = _adopted(cluster, frozenset(one.number for one in taking), grouping)
            if (worth := _worth(cluster, after, busy, each)) > least:
                least, found = worth, after
            if busy.all(after) >= (1 - self._events.near_best) * cluster.machines:
                break  # nothing that follows is better by as much as would count
        return found


class _Busy:
    """How many machines groups of some jobs keep busy, by the weight of processors beside the network."""

    def __init__(self, rules: GroupingRules, profiles: Mapping[str, WorkProfile]) -> None:
        self._rules, self._profiles = rules, profiles
        self._known = dict[tuple[int, tuple[str, ...]], float]()
        self._with_room = dict[tuple[int, tuple[str, ...]], float]()
        self._times = dict[tuple[str, int], tuple[float, float]]()

    def of(self, group: RunningGroup) -> float:
        """Machines of the group that are busy."""
        key = group.machines, group.jobs
        if key not in self._known:
            jobs = [self._profiles[job] for job in group.jobs]
            time = self._rules.time(jobs, group.machines)
            self._known[key] = group.machines * self._weighted(time.busy_cpu, time.busy_net)
        return self._known[key]

    def all(self, cluster: Cluster) -> float:
        """Machines of the cluster that are busy."""
        return sum(map(self.of, cluster.groups))

    def with_room(self, group: RunningGroup) -> float:
        """Machines of the group that are busy; fewer than any other number of them where there is no room."""
        key = group.machines, group.jobs
        if key not in self._with_room:
            jobs = [self._profiles[job] for job in group.jobs]
            self._with_room[key] = self.of(group) if self._rules.has_room(jobs, group.machines) else _NO_ROOM
        return self._with_room[key]

    def at_most(self, comp_s: float, comm_s: float, machines: int) -> float:
        """Machines that are busy at most where jobs together compute and communicate for so long."""
        longest_s = max(comp_s, comm_s)
        return machines * max(0.0, self._weighted(comp_s, comm_s)) / longest_s if longest_s > 0 else 0.0

    def times_s(self, job: str, machines: int) -> tuple[float, float]:
        """Seconds in which a job computes and communicates in an iteration."""
        if (job, machines) not in self._times:
            profile = self._profiles[job]
            self._times[job, machines] = profile.comp_s(machines), profile.comm_s(machines)
        return self._times[job, machines]

    def _weighted(self, cpu: float, net: float) -> float:
        return self._rules.cpu_weight * cpu + (1 - self._rules.cpu_weight) * net


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Groups in the place of others, and what that is worth; a job that waits may change places with one that runs."""

    gain: float
    old: tuple[RunningGroup, ...] = ()
    new: tuple[RunningGroup, ...] = ()
    pauses: str = ""
    starts: str = ""


_NO_STEP = _Step(gain=_LEAST_STEP)


class _Steps:
    """Small changes to running groups, the best first, as long as what moves for each is worth it."""

    def __init__(self, before: Cluster, filled: Cluster, busy: _Busy, each: float) -> None:
        """``before``: where moves are counted from; ``each``: how many machines more a job must keep busy to move."""
        self._was = {job: group.number for group in before.groups for job in group.jobs}
        self._cluster, self._busy, self._each = filled, busy, each
        # The best step between two groups stays what it is until one of them changes.
        self._between_known = dict[tuple[RunningGroup, RunningGroup], _Step]()
        self._sums = dict[RunningGroup, tuple[float, float, float]]()

    def taken(self, number: int) -> Cluster:
        """The cluster after changes at the group of this number and at those with most idle machines."""
        for _ in range(_MOST_STEPS):
            idlest = self._idlest()
            centres = [group for group in idlest if group.number == number]
            centres += [group for group in idlest[:_IDLEST] if group.number != number]
            best = _NO_STEP
            for centre in centres:
                best = self._best_around(centre, idlest, best)
            if best is _NO_STEP:
                break
            self._take(best)
        return self._cluster

    def _idlest(self) -> list[RunningGroup]:
        """Groups that may change, those with most idle machines first."""
        groups = [group for group in self._cluster.groups if not self._cluster.fixed & set(group.jobs)]
        return sorted(groups, key=lambda group: (self._value(group) - group.machines, group.number))

    def _owes(self, job: str, group: RunningGroup) -> float:
        """How many machines a job must bring since it has moved to the group."""
        return self._each * (self._was.get(job, group.number) != group.number)

    def _value(self, group: RunningGroup) -> float:
        """Busy machines, less what those of its jobs must bring that have moved."""
        if not group.jobs:
            return 0.0
        return self._busy.with_room(group) - sum(self._owes(job, group) for job in group.jobs)

    def _most(self, group: RunningGroup, gives: str, takes: str) -> float:
        """What the value is at most once a job has gone and another one has come; none if its name is empty."""
        comp_s, comm_s, owed = self._summed(group)
        for job, sign in ((gives, -1), (takes, 1)):
            if job:
                comp, comm = self._busy.times_s(job, group.machines)
                comp_s, comm_s, owed = comp_s + sign * comp, comm_s + sign * comm, owed + sign * self._owes(job, group)
        return self._busy.at_most(comp_s, comm_s, group.machines) - owed

    def _summed(self, group: RunningGroup) -> tuple[float, float, float]:
        """Seconds in which jobs of a group compute and communicate, and what those of them owe that have moved."""
        if group not in self._sums:
            times = [self._busy.times_s(job, group.machines) for job in group.jobs]
            owed = sum(self._owes(job, group) for job in group.jobs)
            self._sums[group] = sum(comp for comp, _ in times), sum(comm for _, comm in times), owed
        return self._sums[group]

    def _take(self, step: _Step) -> None:
        cluster, new = self._cluster, {group.number: group for group in step.new}
        stay = [group for group in cluster.groups if group not in step.old or group.number in new]
        at_places = [new.pop(group.number, group) for group in stay]
        waiting = tuple(job for job in cluster.waiting if job != step.starts)
        self._cluster = replace(
            cluster,
            groups=tuple(group for group in (*at_places, *new.values()) if group.jobs),
            waiting=(step.pauses, *waiting) if step.pauses else waiting,
            next_number=max(cluster.next_number, *(group.number + 1 for group in step.new)),
        )

    def _best_around(self, centre: RunningGroup, idlest: Sequence[RunningGroup], best: _Step) -> _Step:
        """The best step that changes a group, if it is better than another one."""
        others = [group for group in idlest[: _PARTNERS + 1] if group is not centre]
        own = self._idle(centre)
        for other in others:
            # All machines of both can be busy at most.
            if own + self._idle(other) > best.gain:
                best = max(best, self._best_between(centre, other), key=_gain)
        for job in centre.jobs if own > best.gain else ():
            for starts in self._cluster.waiting[:OLDEST_TRIED]:
                paused = self._each * ((job in self._was) - (starts in self._was))
                if self._most(centre, job, starts) - self._value(centre) - paused > best.gain:
                    new = _changed(centre, job, starts)
                    gain = self._value(new) - self._value(centre) - paused
                    best = max(best, _Step(gain=gain, old=(centre,), new=(new,), pauses=job, starts=starts), key=_gain)
        return max((best, *self._with_free(centre, others)), key=_gain)

    def _idle(self, group: RunningGroup) -> float:
        """What the value can rise by at most."""
        return group.machines - self._value(group)

    def _best_between(self, one: RunningGroup, other: RunningGroup) -> _Step:
        """A job moves from one to the other, or two change places."""
        if (one, other) in self._between_known:
            return self._between_known[one, other]
        best, was = _NO_STEP, self._value(one) + self._value(other)
        for takes in ("", *other.jobs):
            for gives in ("", *one.jobs):
                most = self._most(one, gives, takes) + self._most(other, takes, gives) - was
                if most <= best.gain or not (takes or gives):
                    continue
                new = _changed(one, gives, takes), _changed(other, takes, gives)
                step = _Step(gain=sum(map(self._value, new)) - was, old=(one, other), new=new)
                best = max(best, step, key=_gain)
        self._between_known[one, other] = best
        return best

    def _with_free(self, centre: RunningGroup, others: Sequence[RunningGroup]) -> Iterator[_Step]:
        """A group gets machines that nobody has, which moves all its jobs; or one of the centre's jobs gets them."""
        free, number = self._cluster.free, self._cluster.next_number
        for held in sorted({free, (free + 1) // 2, (free + 3) // 4} - {0}):
            for group in (centre, *others):
                yield self._step((group,), (replace(group, number=number, machines=group.machines + held),))
            for job in centre.jobs if len(centre.jobs) > 1 else ():
                own = RunningGroup(number=number, machines=held, jobs=(job,))
                yield self._step((centre,), (_changed(centre, job, ""), own))

    def _step(self, old: tuple[RunningGroup, ...], new: tuple[RunningGroup, ...]) -> _Step:
        return _Step(gain=sum(map(self._value, new)) - sum(map(self._value, old)), old=old, new=new)


def _gain(step: _Step) -> float:
    return step.gain


def _changed(group: RunningGroup, gives: str, takes: str) -> RunningGroup:
    """The group once a job has gone and another one has come; none if its name is empty."""
    jobs = [job for job in group.jobs if job != gives]
    return replace(group, jobs=(*jobs, takes) if takes else tuple(jobs))


def _worth(before: Cluster, after: Cluster, busy: _Busy, each: float) -> float:
    """Machines that are busy after a change, less what each job that moves must bring."""
    return busy.all(after) - each * len(_moved(before, after))


def _counts(groups: int) -> list[int]:
    """Numbers of other groups that are regrouped together."""
    counts = list(range(min(groups, _ONE_BY_ONE) + 1))
    while (more := counts[-1] * 3 // 2) <= min(groups, _PARTNERS) and counts[-1] >= _ONE_BY_ONE:
        counts.append(more)
    return counts


def _first(cluster: Cluster, count: int) -> list[str]:
    """The first ``count`` jobs that wait, and all others that have waited too long."""
    return [job for at, job in enumerate(cluster.waiting) if at < count or job in cluster.required]


def _joined(cluster: Cluster, number: int, jobs: Sequence[str]) -> Cluster:
    """Jobs that wait join a group."""
    groups = tuple(
        replace(group, jobs=(*group.jobs, *jobs)) if group.number == number else group for group in cluster.groups
    )
    return replace(cluster, groups=groups, waiting=tuple(job for job in cluster.waiting if job not in jobs))


def _without_empty(cluster: Cluster) -> Cluster:
    return replace(cluster, groups=tuple(group for group in cluster.groups if group.jobs))


def _adopted(cluster: Cluster, replaced: frozenset[int], grouping: Grouping) -> Cluster:
    """New groups in the place of some: of an old one with as many machines each may have the number and the machines.

    Those that share most jobs find each other first. Jobs of the old groups that are in no new one wait, before all
    others.
    """
    old = [group for group in cluster.groups if group.number in replaced]
    pairs = sorted(
        ((len(set(group.jobs) & set(new.jobs)), -group.number, place)
        for group in old for place, new in enumerate(grouping.groups) if group.machines == new.machines),
        reverse=True,
    )  # fmt: skip
    heirs = dict[int, int]()
    for shared, minus_number, place in pairs:
        if shared and place not in heirs and -minus_number not in heirs.values():
            heirs[place] = -minus_number
    numbers, groups = itertools.count(cluster.next_number), list[RunningGroup]()
    for place, new in enumerate(grouping.groups):
        number = heirs[place] if place in heirs else next(numbers)
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
