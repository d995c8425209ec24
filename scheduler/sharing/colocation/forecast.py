"""How long co-located jobs take in all: in turns while nothing changes, by the rules when one ends. PURE."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from farside.group_time import GroupTime, group_time, iteration_in_turns_s
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.regroup import Regrouping

_ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A group while neither its jobs nor its machines change.

    Attributes:
        at_s: Since when.
        group: Which jobs, on how many machines.
        time: The terms of one iteration of it.
    """

    at_s: float
    group: RunningGroup
    time: GroupTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is to be expected.

    Attributes:
        ends_s: By job, when it ends; those that never get a machine are left out.
        stages: Groups in the order in which they begin.
        moves: Changes of machines, of all jobs.
    """

    ends_s: Mapping[str, float]
    stages: tuple[Stage, ...]
    moves: int

    @property
    def makespan_s(self) -> float:
        """Until all have ended."""
        return max(self.ends_s.values(), default=0.0)


def forecast(
    cluster: Cluster, iterations: Mapping[str, float], regrouping: Regrouping, *, start_s: Mapping[str, float]
) -> Forecast:
    """Plays the jobs of a cluster to their ends; each job does an iteration in each of its group's.

    Args:
        cluster: Its groups as they begin; jobs that wait get their turn.
        iterations: Of all jobs, how many are left.
        regrouping: The rules for ends.
        start_s: What a job loses when it moves, or gets machines later than others: the time of a start.
    """
    left, ends_s, stages, moves, now_s = dict(iterations), dict[str, float](), list[Stage](), 0, 0.0
    begun = set[RunningGroup]()
    while groups := [group for group in cluster.groups if group.jobs]:
        times = {group.number: group_time(cluster.of(group.jobs), group.machines) for group in groups}
        turns_s = {group.number: iteration_in_turns_s(cluster.of(group.jobs), group.machines) for group in groups}
        speeds_s = {job: turns_s[group.number] for group in groups for job in group.jobs}
        ending = min(speeds_s, key=lambda job: left[job] * speeds_s[job])
        passed_s = max(0.0, left[ending] * speeds_s[ending])
        if passed_s > _ROUNDING_S:  # else another job ends in the same moment
            stages += [Stage(at_s=now_s, group=one, time=times[one.number]) for one in groups if one not in begun]
            begun.update(groups)
        now_s += passed_s
        for job, iteration_s in speeds_s.items():
            left[job] -= passed_s / iteration_s
        ends_s[ending] = now_s
        change = regrouping.ended(*without(cluster, ending), cluster.profiles[ending])
        placed = {job: group for group in change.cluster.groups for job in group.jobs}
        moves += len(change.moved)
        for job in {*change.moved, *(placed.keys() - speeds_s.keys())} & placed.keys():
            after_s = iteration_in_turns_s(change.cluster.of(placed[job].jobs), placed[job].machines)
            left[job] += start_s.get(job, 0.0) / after_s
        cluster = change.cluster
    return Forecast(ends_s=ends_s, stages=tuple(stages), moves=moves)


def without(cluster: Cluster, job: str) -> tuple[Cluster, int]:
    """The cluster when a running job has ended, and the number of its group, which is still there."""
    number = next(group.number for group in cluster.groups if job in group.jobs)
    groups = tuple(
        replace(group, jobs=tuple(name for name in group.jobs if name != job)) if group.number == number else group
        for group in cluster.groups
    )
    return replace(cluster, groups=groups), number
