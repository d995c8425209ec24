"""How much groups of co-located jobs get done: what they are judged by. PURE.

A job needs processors and its group's network. Machines alone are kept busy by the jobs that compute most, in few large
groups; those that communicate most are then left over, end last, and keep few machines busy. So a second on a network
counts, too: as many machine seconds as make all communicating of the jobs that are there worth all their computing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from farside.group_time import GroupTime, WorkProfile
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.grouping import GroupingRules

_NO_ROOM = -1e9


def balanced_machines(jobs: Sequence[WorkProfile], machines: int) -> float:
    """On how many machines all these jobs together compute for as long as they communicate, as far as they may run.

    Args:
        jobs: Those that run and wait.
        machines: How many there are; where no job communicates, the answer is as many as one may have.
    """
    most = min(machines, max([job.machines_most for job in jobs], default=machines))
    net_s = sum([job.comm_s(min(most, job.machines_most)) for job in jobs])
    work_machine_s = sum([job.work_machine_s for job in jobs])
    return min(float(most), work_machine_s / net_s) if net_s > 0 else float(most)


class Work:
    """How much of their jobs groups do in a second, in machine seconds.

    It is the paper's utilisation of the cluster, with one difference: a busy network counts as much in a small group as
    in a large one, since a job is on it for as long. [harmony §IV-B2 eq. 4; ours, see docs/papers.md]
    """

    def __init__(self, rules: GroupingRules, profiles: Mapping[str, WorkProfile], network: float) -> None:
        """``network``: machine seconds that a second on a network counts as; no more than machines of the group."""
        self._rules, self._profiles, self._network = rules, profiles, network
        self._known = dict[tuple[int, tuple[str, ...]], float]()
        self._with_room = dict[tuple[int, tuple[str, ...]], float]()
        self._times = dict[tuple[str, int], tuple[float, float]]()

    def of(self, group: RunningGroup) -> float:
        """What a group does."""
        key = group.machines, group.jobs
        if key not in self._known:
            time, most = self._time(group), [self._profiles[job].machines_most for job in group.jobs]
            network = min([self._network, *most])
            self._known[key] = self._weighted(time.busy_cpu, time.busy_net, group.machines, network)
        return self._known[key]

    def most(self, machines: int) -> float:
        """What a group does at most: its machines and its network are busy all the time."""
        return machines + self._network

    def idle(self, group: RunningGroup) -> float:
        """How much more a group does at most with other jobs."""
        return self.most(group.machines) - self.of(group)

    def all(self, cluster: Cluster) -> float:
        """What all groups do."""
        return sum(map(self.of, cluster.groups))

    def most_of(self, cluster: Cluster) -> float:
        """What as many groups do at most."""
        return cluster.machines + self._network * len(cluster.groups)

    def told(self, cluster: Cluster) -> str:
        """How many machines and networks of groups are busy, in words."""
        times = [(group.machines, self._time(group)) for group in cluster.groups]
        machines = sum([held * time.busy_cpu for held, time in times])
        return f"{machines:.1f} machines and {sum([time.busy_net for _, time in times]):.1f} networks"

    def with_room(self, group: RunningGroup) -> float:
        """What a group does; less than any other one where there is no room for its jobs together."""
        key = group.machines, group.jobs
        if key not in self._with_room:
            jobs = [self._profiles[job] for job in group.jobs]
            self._with_room[key] = self.of(group) if self._rules.has_room(jobs, group.machines) else _NO_ROOM
        return self._with_room[key]

    def rise(self, group: RunningGroup, job: str, least: float) -> float:
        """How much more a group does with a job more; 0 where that is not more than ``least``."""
        was = self.of(group)
        times = [self.times_s(one, group.machines) for one in (*group.jobs, job)]
        comp_s, comm_s = sum([comp for comp, _ in times]), sum([comm for _, comm in times])
        if self.at_most(comp_s, comm_s, group.machines) - was <= least:
            return 0.0
        rise = self.with_room(replace(group, jobs=(*group.jobs, job))) - was
        return rise if rise > least else 0.0

    def at_most(self, comp_s: float, comm_s: float, machines: int) -> float:
        """What jobs do at most that together compute and communicate for so long."""
        longest_s = comp_s if comp_s > comm_s else comm_s
        return max(0.0, self._weighted(comp_s, comm_s, machines, self._network) / longest_s) if longest_s > 0 else 0.0

    def times_s(self, job: str, machines: int) -> tuple[float, float]:
        """Seconds in which a job computes and communicates in an iteration."""
        if (job, machines) not in self._times:
            profile = self._profiles[job]
            self._times[job, machines] = profile.comp_s(machines), profile.comm_s(machines)
        return self._times[job, machines]

    def _time(self, group: RunningGroup) -> GroupTime:
        return self._rules.time([self._profiles[job] for job in group.jobs], group.machines)

    def _weighted(self, cpu: float, net: float, machines: int, network: float) -> float:
        weight = self._rules.cpu_weight
        return machines * (weight * cpu + (1 - weight) * net) + network * net
