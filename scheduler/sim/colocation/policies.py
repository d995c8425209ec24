"""What the simulator compares: jobs alone, jobs that share without turns, and groups by the rules. PURE."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, Protocol

from farside.group_time import (
    ReadCost,
    Reloading,
    WorkProfile,
    group_time,
)
from farside.scheduler.sharing.colocation.aging import with_owed
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.grouping import GroupingRules, decide
from farside.scheduler.sharing.colocation.printed import decide_printed
from farside.scheduler.sharing.colocation.regroup import Change, Decide, Regrouping, RegroupRules
from farside.scheduler.sim.colocation.exhaustive import exhaustive
from farside.scheduler.sim.colocation.naive import shared_iterations_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `--set` changes.

    Attributes:
        subset: All jobs, or the three quarters that compute or communicate most.
        arrival_mean_s: Mean time between submissions; 0: as the table says, or all at once.
        error: Each job's times are taken to be wrong by up to this share, each its own.
        common_error: All computing is taken to be longer by this share, and all communicating shorter.
        isolated_machines: Machines of a job under `isolated`.
        naive_jobs: Jobs that share machines under `naive` and `subtasks`.
        naive_machines: Machines that they share.
        move_iterations: Iterations that a job repeats when it changes its machines.
        cpu_weight: Weight of busy processors in the score; the network has the rest.
        memory_bytes: Memory of a machine.
        spills: Whether input that does not fit lies on the disk, for the policies that group.
        disk_bytes_s: Bytes a second that a machine reads back from its disk; 0: reading takes no time.
        peer_bytes_s: Bytes a second that it reads back from other machines' memory, by the network; 0: it has none.
        age_limit_s: A job that has waited longer gets a place when the next job comes or ends.
        min_run_s: A job that started less long ago is not moved.
        group_count: `sums` or the paper's `l6`.
        additions: Whether the additions to Algorithm 1 are used.
        alike_max: How many jobs together may take the place of one that has ended, from 1 to 3.
        least_gain: How much more work must be done for each job that moves, as a share of what is done of a running job
            on average.
        network_worth: What a second on the network counts as, in shares of the machines on which all jobs together
            compute for as long as they communicate.
    """

    subset: Literal["all", "comp", "comm"] = "all"
    arrival_mean_s: float = 0.0
    error: float = 0.0
    common_error: float = 0.0
    isolated_machines: int = field(default=10, metadata={"least": 1})
    naive_jobs: int = field(default=2, metadata={"least": 1})
    naive_machines: int = field(default=10, metadata={"least": 1})
    move_iterations: float = 2.0
    cpu_weight: float = 1.0
    memory_bytes: float = 32e9
    spills: bool = True
    disk_bytes_s: float = 0.0
    peer_bytes_s: float = 0.0
    age_limit_s: float = 8 * 3600.0
    min_run_s: float = 0.0
    group_count: Literal["sums", "l6"] = "sums"
    additions: bool = True
    alike_max: int = field(default=1, metadata={"least": 1})
    least_gain: float = 0.4
    network_worth: float = 1.0

    def __post_init__(self) -> None:
        if self.cpu_weight > 1:
            raise ValueError(f"cpu_weight must be from 0 to 1, is {self.cpu_weight:g}")
        if min(self.isolated_machines, self.naive_jobs, self.naive_machines) < 1:
            raise ValueError("isolated_machines, naive_jobs and naive_machines must be at least 1")
        if self.error >= 1 or self.common_error >= 1:
            raise ValueError("error and common_error must be below 1")
        if self.alike_max not in (1, 2, 3):
            raise ValueError("alike_max must be 1, 2 or 3")
        if self.peer_bytes_s and not self.disk_bytes_s:
            raise ValueError("peer_bytes_s needs disk_bytes_s: nobody reads from a peer if the disk takes no time")

    @property
    def rules(self) -> GroupingRules:
        """The part of it that decides on groups."""
        return GroupingRules(
            cpu_weight=self.cpu_weight, memory_bytes=int(min(self.memory_bytes, 2.0**62)), spills=self.spills,
            group_count=self.group_count, additions=self.additions, reloading=self.reloading,
        )  # fmt: skip

    @property
    def reloading(self) -> Reloading | None:
        """Where input that does not fit is read from; None: that takes no time."""
        if not self.disk_bytes_s:
            return None
        peer = ReadCost(bytes_s=self.peer_bytes_s) if self.peer_bytes_s else None
        # The peer is reached by the network of the updates.
        net_bytes_s = self.peer_bytes_s or math.inf
        return Reloading(disk=ReadCost(bytes_s=self.disk_bytes_s), peer=peer, net_bytes_s=net_bytes_s)

    @property
    def events(self) -> RegroupRules:
        """The part of it that says when something changes."""
        return RegroupRules(alike_max=self.alike_max, least_gain=self.least_gain, network_worth=self.network_worth)


# Who waits goes by submission; or by what is left, the shortest first.
Order = Literal["submitted", "shortest"]


class Policy(Protocol):
    """Says what runs where, and how fast it then is."""

    order: Order
    takes_turns: bool

    def arrived(self, cluster: Cluster, jobs: Sequence[str]) -> Change:
        """Jobs have come, and wait."""
        ...

    def ended(self, cluster: Cluster, number: int, job: WorkProfile) -> Change:
        """A job of a group has ended."""
        ...

    def iterations_s(self, jobs: Sequence[WorkProfile], machines: int) -> Mapping[str, float]:
        """Seconds of an iteration of each job of a group."""
        ...

    def has_room(self, jobs: Sequence[WorkProfile], machines: int) -> bool:
        """Whether jobs survive together."""
        ...


class Grouped:
    """Groups by the rules; its jobs take turns."""

    takes_turns = True

    def __init__(
        self, settings: Settings, decide: Decide, order: Order = "submitted", *, has_aging: bool = True
    ) -> None:
        """``has_aging``: who has waited too long gets a place in any case."""
        self._rules, self._has_aging = settings.rules, has_aging
        self.order: Order = order
        self._regrouping = Regrouping(settings.rules, decide, settings.events)

    def arrived(self, cluster: Cluster, jobs: Sequence[str]) -> Change:
        """By the rule of arrivals."""
        return self._aged(cluster, self._regrouping.arrived(cluster, jobs))

    def ended(self, cluster: Cluster, number: int, job: WorkProfile) -> Change:
        """By the rules of ends."""
        return self._aged(cluster, self._regrouping.ended(cluster, number, job))

    def _aged(self, cluster: Cluster, change: Change) -> Change:
        return with_owed(cluster, change, self._rules) if self._has_aging else change

    def iterations_s(self, jobs: Sequence[WorkProfile], machines: int) -> Mapping[str, float]:
        """All as long as the group, with what it reads back where its input does not fit."""
        return dict.fromkeys((job.job for job in jobs), self._rules.time(jobs, machines).iteration_s)

    def has_room(self, jobs: Sequence[WorkProfile], machines: int) -> bool:
        """As the rules have it; the printed algorithm does not look."""
        return self._rules.has_room(jobs, machines)


class Slots:
    """Groups of one size with as many jobs at most; who waits takes the emptiest."""

    def __init__(
        self,
        rules: GroupingRules,
        *,
        jobs: int,
        machines: int,
        sharing: random.Random | None = None,
        order: Order = "submitted",
    ) -> None:
        self._rules, self._jobs, self.machines, self._sharing = rules, jobs, machines, sharing
        self._known = dict[tuple[str, ...], Mapping[str, float]]()
        self.takes_turns = sharing is None
        self.order: Order = order

    def arrived(self, cluster: Cluster, jobs: Sequence[str]) -> Change:
        """Whoever waits is put where there is room."""
        return Change(cluster=self._filled(cluster), why=f"{', '.join(jobs)} came")

    def ended(self, cluster: Cluster, number: int, job: WorkProfile) -> Change:
        """Whoever waits is put where there is room."""
        groups = tuple(group for group in cluster.groups if group.jobs)
        return Change(cluster=self._filled(replace(cluster, groups=groups)), why=f"{job.job} ended")

    def _filled(self, cluster: Cluster) -> Cluster:
        groups, waiting, number = list(cluster.groups), list(cluster.waiting), cluster.next_number
        free = cluster.free
        while waiting:
            if free >= self.machines:
                groups.append(RunningGroup(number=number, machines=self.machines, jobs=(waiting.pop(0),)))
                number, free = number + 1, free - self.machines
                continue
            place = min(range(len(groups)), key=lambda one: len(groups[one].jobs), default=None)
            if place is None or len(groups[place].jobs) >= self._jobs:
                break
            groups[place] = replace(groups[place], jobs=(*groups[place].jobs, waiting.pop(0)))
        return replace(cluster, groups=tuple(groups), waiting=tuple(waiting), next_number=number)

    def iterations_s(self, jobs: Sequence[WorkProfile], machines: int) -> Mapping[str, float]:
        """By equal shares, or by turns."""
        if self._sharing is None or len(jobs) == 1:
            return dict.fromkeys((job.job for job in jobs), group_time(jobs, machines).iteration_s)
        key = tuple(job.job for job in jobs)
        if key not in self._known:
            self._known[key] = shared_iterations_s(jobs, machines, self._sharing)
        return self._known[key]

    def has_room(self, jobs: Sequence[WorkProfile], machines: int) -> bool:
        """Whether their input fits beside each other: nothing here puts it on the disk."""
        return self._rules.has_room(jobs, machines)


def _isolated(settings: Settings, order: Order) -> Policy:
    return Slots(settings.rules, jobs=1, machines=settings.isolated_machines, order=order)


def _naive(settings: Settings, sharing: random.Random | None) -> Policy:
    rules = replace(settings.rules, spills=False)
    return Slots(rules, jobs=settings.naive_jobs, machines=settings.naive_machines, sharing=sharing)


# By name; chance is for what happens where nobody takes turns.
POLICIES: Mapping[str, Callable[[Settings, random.Random], Policy]] = MappingProxyType(
    {
        "isolated": lambda settings, rng: _isolated(settings, "submitted"),
        "isolated-shortest": lambda settings, rng: _isolated(settings, "shortest"),
        "naive": _naive,
        "subtasks": lambda settings, rng: _naive(settings, None),
        "harmony": lambda settings, rng: Grouped(settings, decide),
        "harmony-shortest": lambda settings, rng: Grouped(settings, decide, "shortest"),
        "paper": lambda settings, rng: Grouped(settings, decide_printed, has_aging=False),
        "exhaustive": lambda settings, rng: Grouped(settings, exhaustive),
    }
)
