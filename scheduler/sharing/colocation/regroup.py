"""What changes when a co-located job arrives or ends: as few jobs as possible change their machines. PURE."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from farside.group_time import WorkProfile
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.grouping import Grouping, GroupingRules
from farside.scheduler.sharing.colocation.work import Work, balanced_machines

OLDEST_TRIED = 24
# Single steps are looked for at the group whose job has ended and at those that could do most more, each with so many
# others, and so often.
_IDLEST, _PARTNERS, _MOST_STEPS = 3, 24, 6
# So many other groups join one by one the one whose job has ended to be regrouped; then half as many more each time.
_ONE_BY_ONE = 8
_LEAST_STEP = 1e-6

Decide = Callable[[Sequence[WorkProfile], int, GroupingRules, int], Grouping]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegroupRules:
    """When something changes.

    Attributes:
        like: How far a job's time and ratio may be from those of the one whose place it takes.
        alike_max: How many jobs together may take the place of one, from 1 to 3.
        near_best: How far from the best a grouping or a place may be for it not to matter.
        least_gain: How much more work must be done for each job that moves, as a share of what is done of a running job
            on average.
        least_join: How much more work must be done for a job that waits to join a group, as a share of all machines'.
        network_worth: What a second on the network counts as, in shares of the machines on which all jobs together
            compute for as long as they communicate: 1, and both count alike; 0, and only busy machines count.
        noise: How wrong times may be, as a share: a group that gets busier by less may not do so at all.
    """

    like: float = 0.05
    alike_max: int = 1
    near_best: float = 0.05
    least_gain: float = 0.4
    least_join: float = 0.01
    network_worth: float = 1.0
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
        filled = self._filled(cluster, self.work(cluster))
        return Change(cluster=filled, why=f"{', '.join(jobs)} came")

    def ended(self, cluster: Cluster, number: int, job: WorkProfile) -> Change:
        """A job of a group has ended; the group is still there, perhaps with no job."""
        group = next(group for group in cluster.groups if group.number == number)
        takers = self._alike(cluster, group, job)
        if takers and not cluster.required - set(takers):
            return Change(cluster=_joined(cluster, number, takers), why=f"{', '.join(takers)} is like {job.job}")
        work = self.work(cluster)
        filled = self._filled(_without_empty(cluster), work)
        return self._regrouped(cluster, group, filled, work) or Change(cluster=filled, why="nobody moves")

    def work(self, cluster: Cluster) -> Work:
        """What groups are judged by while these jobs run and wait."""
        jobs = [*(job for group in cluster.groups for job in group.jobs), *cluster.waiting]
        machines = balanced_machines(cluster.of(jobs), cluster.machines)
        return Work(self._rules, cluster.profiles, self._events.network_worth * machines)

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

    def _filled(self, cluster: Cluster, work: Work) -> Cluster:
        """Jobs that wait get free machines; then the first that has a place in a group joins it. Nobody moves.

        One, since each job more in a group makes all of its jobs slower: the place of one that has ended is filled. The
        first, since those that compute much would always go before those that communicate much, of which the rest would
        consist when nobody waits any more. It joins where most work is done then.
        """
        if cluster.free and cluster.waiting:
            grouping = self._asked(cluster, cluster.waiting, cluster.free)
            cluster = _adopted(cluster, frozenset(), grouping)
        least = {group.number: self._least(cluster, work, group) for group in cluster.groups}
        # A group does as much more at most as it has idle.
        open_ = [group for group in cluster.groups if work.idle(group) > least[group.number]]
        for job in cluster.waiting[:OLDEST_TRIED]:
            rises = [(work.rise(group, job, least[group.number]), -group.number) for group in open_]
            rise, number = max(rises, default=(0.0, 0))
            if rise > 0:
                return _joined(cluster, -number, (job,))
        return cluster

    def _least(self, cluster: Cluster, work: Work, group: RunningGroup) -> float:
        """How much more work must be done for a job to join a group."""
        return max(self._events.least_join * cluster.machines, self._events.noise * work.most(group.machines))

    def _asked(self, cluster: Cluster, jobs: Sequence[str], machines: int) -> Grouping:
        ordered = sorted(jobs, key=lambda job: job not in cluster.required)
        required = sum(job in cluster.required for job in jobs)
        return self._decide(cluster.of(ordered), machines, self._rules, required)

    def _regrouped(self, cluster: Cluster, group: RunningGroup, filled: Cluster, work: Work) -> Change | None:
        """Where most work is done, less what each job that moves must bring; None if that is where nobody moves.

        Each job that moves stops, starts and repeats iterations, so it has to bring `least_gain`. A job that has waited
        too long is grouped in any case.
        """
        was, running = work.all(filled), sum(len(one.jobs) for one in filled.groups)
        each = self._events.least_gain * was / max(1, running)
        is_owed = any(job in cluster.required for job in filled.waiting)
        # Where nobody waits, whatever changes moves one job at least.
        paid = 0.0 if cluster.waiting else each
        if cluster.fixed & set(group.jobs) or (was + paid >= work.most_of(filled) and not is_owed):
            return None
        after = filled if is_owed else _Steps(cluster, filled, work, each).taken(group.number)
        least = -math.inf if is_owed else _worth(cluster, after, work, each)
        after = self._grouped(cluster, group, work, each, least) or after
        if after is filled or (not is_owed and work.all(after) <= (1 + self._events.noise) * was):
            return None
        why = f"{work.told(after)} busy instead of {work.told(filled)}"
        return Change(cluster=after, moved=_moved(cluster, after), why=why)

    def _grouped(self, cluster: Cluster, group: RunningGroup, work: Work, each: float, least: float) -> Cluster | None:
        """The best new grouping of those that wait and of one group, of that and another, and so on.

        None: none is worth more than `least`. Groups join one by one, those of few jobs first: so the looks grow with
        their number, not with their subsets. No more than a bounded number join, and of those that wait only the first.
        """
        others = [one for one in cluster.groups if one is not group and not cluster.fixed & set(one.jobs)]
        joining = sorted(others, key=lambda one: (len(one.jobs), one.number))
        was, found = work.all(cluster), None
        for count in _counts(len(joining)):
            taking = [group, *joining[:count]]
            idle = cluster.free + sum(map(work.idle, taking))
            if was + idle - (0.0 if cluster.waiting else each) <= least:
                continue  # all of their machines, and as many networks, would not be enough
            jobs = [job for one in taking for job in one.jobs]
            grouping = self._asked(
                cluster,
                (*jobs, *_first(cluster, OLDEST_TRIED + len(jobs))),
                cluster.free + sum(one.machines for one in taking),
            )
            after = _adopted(cluster, frozenset(one.number for one in taking), grouping)
            if (worth := _worth(cluster, after, work, each)) > least:
                least, found = worth, after
            if work.all(after) >= (1 - self._events.near_best) * work.most_of(after):
                break  # nothing that follows is better by as much as would count
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Groups in the place of others, and what that is worth; a job that waits may change places with one that runs."""

    gain: float
    old: tuple[RunningGroup, ...] = ()
    new: tuple[RunningGroup, ...] = ()
    pauses: str = ""
    starts: str = ""


_NO_STEP = _Step(gain=_LEAST_STEP)
# Seconds of computing and of communicating in an iteration, and what is owed for moves.
_Needs = tuple[float, float, float]
_NOTHING: _Needs = (0.0, 0.0, 0.0)


class _Steps:
    """Small changes to running groups, the best first, as long as what moves for each is worth it."""

    def __init__(self, before: Cluster, filled: Cluster, work: Work, each: float) -> None:
        """``before``: where moves are counted from; ``each``: how much more must be done for each job that moves."""
        self._was = {job: group.number for group in before.groups for job in group.jobs}
        self._cluster, self._work, self._each = filled, work, each
        # The best step between two groups stays what it is until one of them changes.
        self._between_known = dict[tuple[RunningGroup, RunningGroup], _Step]()
        self._sums = dict[RunningGroup, _Needs]()

    def taken(self, number: int) -> Cluster:
        """The cluster after changes at the group of this number and at those that could do most more."""
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
        """Groups that may change, those that could do most more first."""
        groups = [group for group in self._cluster.groups if not self._cluster.fixed & set(group.jobs)]
        return sorted(groups, key=lambda group: (-self._idle(group), group.number))

    def _owes(self, job: str, group: RunningGroup) -> float:
        """What a job must bring since it has moved to the group."""
        return self._each * (self._was.get(job, group.number) != group.number)

    def _value(self, group: RunningGroup) -> float:
        """What a group does, less what those of its jobs must bring that have moved."""
        if not group.jobs:
            return 0.0
        return self._work.with_room(group) - sum(self._owes(job, group) for job in group.jobs)

    def _most(self, machines: int, summed: _Needs, leaving: _Needs, coming: _Needs) -> float:
        """What the value of a group is at most once a job has gone and another one has come."""
        comp_s = summed[0] - leaving[0] + coming[0]
        comm_s = summed[1] - leaving[1] + coming[1]
        return self._work.at_most(comp_s, comm_s, machines) - (summed[2] - leaving[2] + coming[2])

    def _needs(self, job: str, group: RunningGroup) -> _Needs:
        """What a job needs in a group, and what it owes there."""
        return (*self._work.times_s(job, group.machines), self._owes(job, group))

    def _summed(self, group: RunningGroup) -> _Needs:
        """What the jobs of a group need, and what those of them owe that have moved."""
        if group not in self._sums:
            needs = [self._needs(job, group) for job in group.jobs]
            comp_s, comm_s, owed = (sum([need[at] for need in needs]) for at in range(3))
            self._sums[group] = comp_s, comm_s, owed
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
            # All machines and both networks can be busy at most.
            if own + self._idle(other) > best.gain:
                best = max(best, self._best_between(centre, other), key=_gain)
        if own > best.gain:
            best = max(best, self._best_pause(centre, best), key=_gain)
        return max((best, *self._with_free(centre, others)), key=_gain)

    def _best_pause(self, group: RunningGroup, best: _Step) -> _Step:
        """A job waits, and one that waits takes its place, if that is better than another step."""
        summed, was = self._summed(group), self._value(group)
        coming = [(job, self._needs(job, group)) for job in self._cluster.waiting[:OLDEST_TRIED]]
        for job in group.jobs:
            needs = self._needs(job, group)
            for starts, its_needs in coming:
                paused = self._each * ((job in self._was) - (starts in self._was))
                if self._most(group.machines, summed, needs, its_needs) - was - paused > best.gain:
                    new = _changed(group, job, starts)
                    gain = self._value(new) - was - paused
                    best = max(best, _Step(gain=gain, old=(group,), new=(new,), pauses=job, starts=starts), key=_gain)
        return best

    def _idle(self, group: RunningGroup) -> float:
        """What the value can rise by at most."""
        return self._work.most(group.machines) - self._value(group)

    def _best_between(self, one: RunningGroup, other: RunningGroup) -> _Step:
        """A job moves from one to the other, or two change places."""
        if (one, other) in self._between_known:
            return self._between_known[one, other]
        best, was = _NO_STEP, self._value(one) + self._value(other)
        summed, its_sums = self._summed(one), self._summed(other)
        giving = [
            ("", _NOTHING, _NOTHING),
            *((job, self._needs(job, one), self._needs(job, other)) for job in one.jobs),
        ]
        for takes in ("", *other.jobs):
            comes = self._needs(takes, one) if takes else _NOTHING
            leaves = self._needs(takes, other) if takes else _NOTHING
            for gives, here, there in giving:
                most = self._most(one.machines, summed, here, comes) - was
                most += self._most(other.machines, its_sums, leaves, there)
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


def _worth(before: Cluster, after: Cluster, work: Work, each: float) -> float:
    """What is done after a change, less what each job that moves must bring."""
    return work.all(after) - each * len(_moved(before, after))


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
