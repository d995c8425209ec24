"""Groups of jobs on a virtual clock: exact between events, which are submissions and ends of jobs. PURE."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from farside.group_time import WorkProfile
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.regroup import Change
from farside.scheduler.sim.colocation.policies import Policy, Settings
from farside.scheduler.sim.colocation.table import TableJob

_ROUNDING = 1e-9
# A job's rest is compared with others' as if it were alone on so many machines, since groups are not known before.
_REST_MACHINES = 10


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A group, whenever its jobs or machines change.

    Attributes:
        at_s: Since when it is so.
        machines: How many it has.
        jobs: Which run in it.
        predicted_s: Its iteration by the model and the profiles that are believed; null: the model does not apply.
        simulated_s: Its slowest job's iteration.
    """

    at_s: float
    machines: int
    jobs: tuple[str, ...]
    predicted_s: float | None
    simulated_s: float


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a job; it has failed if memory did not allow it where it was put."""

    job: str
    submit_s: float
    start_s: float | None
    end_s: float
    moves: int
    is_failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one policy.

    Attributes:
        jobs: In the order in which they ended.
        groups: Each group whenever it changed.
        makespan_s: From the first submission to the last end.
        busy_cpu: Share of all machines' processors that computed, on average.
        busy_net: Share of all machines' network that was in use.
        running: Jobs that ran, on average.
        group_count: Groups, on average.
    """

    jobs: Sequence[JobRecord]
    groups: Sequence[GroupRecord]
    makespan_s: float
    busy_cpu: float
    busy_net: float
    running: float
    group_count: float

    @property
    def jct_s(self) -> float:
        """Mean time from submission to end, of those that did not fail."""
        times = [job.end_s - job.submit_s for job in self.jobs if not job.is_failed]
        return sum(times) / len(times) if times else 0.0

    @property
    def moves(self) -> float:
        """Changes of machines a job."""
        return sum(job.moves for job in self.jobs) / len(self.jobs)

    @property
    def failed(self) -> int:
        """Jobs that failed."""
        return sum(job.is_failed for job in self.jobs)


def simulate(
    jobs: Sequence[TableJob], machines: int, policy: Policy, settings: Settings, taken: Mapping[str, WorkProfile]
) -> Outcome:
    """Plays jobs under a policy.

    Args:
        jobs: In the order of their submission.
        machines: How many there are.
        policy: What runs where.
        settings: What a move costs, and when it may be.
        taken: By job, the profile that decisions go by.
    """
    return _Run(jobs, machines, policy, settings, taken).outcome()


@dataclass(slots=True)
class _Live:
    """A job: iterations that are left, and what has happened to it."""

    job: TableJob
    profile: WorkProfile
    left: float
    waits_since_s: float
    order: int
    start_s: float | None = None
    begun_s: float = -math.inf
    moves: int = 0
    iteration_s: float = math.inf


@dataclass(slots=True)
class _Sums:
    cpu: float = 0.0
    net: float = 0.0
    running: float = 0.0
    groups: float = 0.0
    of: dict[RunningGroup, tuple[float, float]] = field(default_factory=dict)


class _Run:
    """Time goes from event to event. What ends at a moment ends before anything begins at it."""

    def __init__(
        self,
        jobs: Sequence[TableJob],
        machines: int,
        policy: Policy,
        settings: Settings,
        taken: Mapping[str, WorkProfile],
    ) -> None:
        self._policy, self._settings, self._machines = policy, settings, machines
        self._live = {
            job.job: _Live(job, job.profile, float(job.iterations), job.submit_s, order)
            for order, job in enumerate(jobs)
        }
        self._coming = list(reversed(jobs))
        self._cluster = Cluster(machines=machines, profiles=taken)
        self._now_s = jobs[0].submit_s
        self._sums = _Sums()
        self._ended, self._groups = list[JobRecord](), list[GroupRecord]()

    def outcome(self) -> Outcome:
        began_s = self._now_s
        while self._coming or self._cluster.groups or self._cluster.waiting:
            name, at_s = self._next_end()
            if self._coming and self._coming[-1].submit_s < at_s:
                self._pass(self._coming[-1].submit_s)
                self._arrive()
            elif name:
                self._pass(at_s)
                self._end(name)
            else:
                # Nothing runs and nothing comes: no machine has the memory for those that wait.
                for waiting in self._cluster.waiting:
                    self._record(waiting, is_failed=True)
                self._cluster = replace(self._cluster, waiting=())
        span_s = self._now_s - began_s
        whole = span_s * self._machines or 1.0
        return Outcome(
            jobs=self._ended, groups=self._groups, makespan_s=span_s, busy_cpu=self._sums.cpu / whole,
            busy_net=self._sums.net / whole, running=self._sums.running / (span_s or 1.0),
            group_count=self._sums.groups / (span_s or 1.0),
        )  # fmt: skip

    def _next_end(self) -> tuple[str, float]:
        best, at_s = "", math.inf
        for group in self._cluster.groups:
            for name in group.jobs:
                live = self._live[name]
                if (ends_s := self._now_s + live.left * live.iteration_s) < at_s:
                    best, at_s = name, ends_s
        return best, at_s

    def _pass(self, at_s: float) -> None:
        passed_s = at_s - self._now_s
        self._now_s = at_s
        for group in self._cluster.groups:
            cpu, net = self._sums.of[group]
            self._sums.cpu += passed_s * cpu
            self._sums.net += passed_s * net
            self._sums.running += passed_s * len(group.jobs)
            for name in group.jobs:
                self._live[name].left -= passed_s / self._live[name].iteration_s
        self._sums.groups += passed_s * len(self._cluster.groups)

    def _arrive(self) -> None:
        new = list[str]()
        while self._coming and self._coming[-1].submit_s <= self._now_s:
            new.append(self._coming.pop().job)
        self._cluster = replace(self._cluster, waiting=(*self._cluster.waiting, *new))
        self._adopt(self._policy.arrived(self._ready(), new))

    def _end(self, name: str) -> None:
        number = next(group.number for group in self._cluster.groups if name in group.jobs)
        groups = tuple(
            replace(group, jobs=tuple(job for job in group.jobs if job != name)) for group in self._cluster.groups
        )
        profile = self._cluster.profiles[name]
        self._record(name)
        self._cluster = replace(self._cluster, groups=groups)
        self._adopt(self._policy.ended(self._ready(), number, profile))

    def _record(self, name: str, *, is_failed: bool = False) -> None:
        live = self._live.pop(name)
        self._ended.append(
            JobRecord(
                job=name, submit_s=live.job.submit_s, start_s=live.start_s, end_s=self._now_s, moves=live.moves,
                is_failed=is_failed,
            )
        )  # fmt: skip

    def _ready(self) -> Cluster:
        """The cluster with those that wait in their order, and who may not wait or move."""
        limit_s = self._now_s - self._settings.age_limit_s
        running = [name for group in self._cluster.groups for name in group.jobs]
        return replace(
            self._cluster,
            waiting=tuple(sorted(self._cluster.waiting, key=self._rank)),
            required=frozenset(name for name in self._cluster.waiting if self._live[name].waits_since_s < limit_s),
            fixed=frozenset(
                name for name in running if self._live[name].begun_s > self._now_s - self._settings.min_run_s
            ),
        )

    def _rank(self, name: str) -> tuple[float, ...]:
        live = self._live[name]
        if self._policy.order == "shortest":
            return live.left * self._cluster.profiles[name].iteration_s(_REST_MACHINES), live.order
        return float(live.start_s is None), live.job.submit_s, live.order

    def _adopt(self, change: Change) -> None:
        """A change takes place: who moves repeats iterations, who has no room fails, all have their new speeds."""
        before = {group for group in self._cluster.groups if group in self._sums.of}
        was_running = {name for group in self._cluster.groups for name in group.jobs}
        self._cluster = change.cluster
        for name in change.moved:
            self._live[name].moves += 1
            self._live[name].left += self._settings.move_iterations
        placed = {name: group for group in self._cluster.groups for name in group.jobs}
        for name in placed.keys() - (was_running - set(change.moved)):
            self._live[name].begun_s = self._now_s
            if self._live[name].start_s is None:
                self._live[name].start_s = self._now_s
        for name in was_running - placed.keys():
            self._live[name].waits_since_s = self._now_s
        self._kill(placed.keys() - was_running)
        for group in self._cluster.groups:
            if group not in before:
                self._speed(group)
        self._sums.of = {group: self._sums.of[group] for group in self._cluster.groups}

    def _kill(self, new: set[str]) -> None:
        """Ends the newest jobs of groups whose memory does not hold all."""
        groups = list[RunningGroup]()
        for group in self._cluster.groups:
            jobs = list(group.jobs)
            while jobs and not self._policy.has_room([self._live[name].profile for name in jobs], group.machines):
                victim = next((name for name in reversed(jobs) if name in new), jobs[-1])
                jobs.remove(victim)
                self._record(victim, is_failed=True)
            groups.append(replace(group, jobs=tuple(jobs)))
        self._cluster = replace(self._cluster, groups=tuple(group for group in groups if group.jobs))

    def _speed(self, group: RunningGroup) -> None:
        profiles = [self._live[name].profile for name in group.jobs]
        speeds = self._policy.iterations_s(profiles, group.machines)
        for name in group.jobs:
            self._live[name].iteration_s = speeds[name]
        cpu = sum(profile.comp_s(group.machines) / speeds[profile.job] for profile in profiles)
        net = sum(profile.comm_s(group.machines) / speeds[profile.job] for profile in profiles)
        self._sums.of[group] = (group.machines * cpu, group.machines * net)
        believed = [self._cluster.profiles[name] for name in group.jobs]
        self._groups.append(
            GroupRecord(
                at_s=self._now_s, machines=group.machines, jobs=group.jobs,
                predicted_s=max(self._policy.iterations_s(believed, group.machines).values())
                if self._policy.takes_turns else None, simulated_s=max(speeds.values()),
            )
        )  # fmt: skip
