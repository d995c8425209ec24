"""Placement of jobs' tasks on Aggregators: which tensor is aggregated where. PURE.

A job is placed whole. Its tasks go, largest first, each to the Aggregator that it fills best, of those on which nobody
would lose too much by the job; a new one is allocated where none has room [autops §4.3.3.2, Pseudocode 3].

As printed, the pseudocode tests only the last job on an Aggregator, never the new one, and counts a task once a cycle
though it runs several times: `printed.py` is that form. Here every job is tested, and a task counts as often as it
runs. Whether the new job may go to an Aggregator depends on its iteration alone, so that is found once a job.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from farside.scheduler.sharing.aggregation.cycle import Demand, Limits, best_cycle_s, runs, shared_iteration_s, work_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What is known of a job: one iteration alone, and what its tasks cost in one.

    Attributes:
        job: Its name, which is unique.
        iteration_s: Seconds of an iteration with Aggregators of its own: the paper's D_j.
        tasks_s: CPU seconds of each task in an iteration: the paper's e_t. A task is a tensor, or a run of its chunks.
        servers: Parameter servers that its user would have asked for; it never causes more new Aggregators than that.
    """

    job: str
    iteration_s: float
    tasks_s: tuple[float, ...]
    servers: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.iteration_s < float("inf"):
            raise ValueError(f"job {self.job}: iteration_s must be above 0")
        if not self.tasks_s or not all(0 <= task_s < float("inf") for task_s in self.tasks_s):
            raise ValueError(f"job {self.job}: tasks_s must be times of 0 seconds and more, at least one")
        if self.servers < 1:
            raise ValueError(f"job {self.job}: servers must be at least 1")

    @property
    def cpu_s(self) -> float:
        """CPU seconds of one iteration."""
        return sum(self.tasks_s)


@dataclass(slots=True)
class Aggregator:
    """What one Aggregator has: its cycle, and by job the numbers of its tasks."""

    number: int
    cycle_s: float
    tasks: dict[str, list[int]] = field(default_factory=dict)
    demands: dict[str, Demand] = field(default_factory=dict)

    def copy(self) -> "Aggregator":
        """Another one with the same content."""
        return Aggregator(
            self.number, self.cycle_s, {job: list(own) for job, own in self.tasks.items()}, dict(self.demands)
        )

    def load(self, tolerance: float) -> float:
        """Share of one core that its tasks take."""
        return work_s(self.cycle_s, self.demands.values(), tolerance) / self.cycle_s


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a job has no place."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Room:
    """An Aggregator that may take tasks of the job: its cycle with it, and CPU seconds a cycle that are free."""

    number: int
    cycle_s: float
    free_s: float


class Chooser(Protocol):
    """Finds a place for one task after the other of a job."""

    def take(self, task_s: float) -> int | None:
        """The number of the Aggregator that the task goes to; None: it fits nowhere."""


class Rooms:
    """The Aggregators that may take a job's tasks, so ordered that the best fit is found without looking at all."""

    def __init__(self, rooms: Iterable[_Room], iteration_s: float, tolerance: float) -> None:
        self._iteration_s, self._tolerance = iteration_s, tolerance
        # By the runs of the job in a cycle, on which a task's need depends: (free, number), least free first.
        self._by_runs: dict[int, list[tuple[float, int]]] = {}
        for room in rooms:
            self.add(room)

    def add(self, room: _Room) -> None:
        """One more."""
        times = runs(room.cycle_s, self._iteration_s, self._tolerance)
        insort(self._by_runs.setdefault(times, []), (room.free_s, room.number))

    def take(self, task_s: float) -> int | None:
        """The number of the Aggregator that the task fills best, with the room taken; None: it fits nowhere."""
        found: tuple[float, int, int, int] | None = None
        for times, rooms in self._by_runs.items():
            at = bisect_left(rooms, (times * task_s, -1))
            if at < len(rooms):
                left, number = rooms[at][0] - times * task_s, rooms[at][1]
                if found is None or (left, number) < found[:2]:
                    found = (left, number, times, at)
        if found is None:
            return None
        left, number, times, at = found
        del self._by_runs[times][at]
        insort(self._by_runs[times], (left, number))
        return number


class Placement:
    """Aggregators, and the tasks on each. Numbers of new ones grow and are never used again."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.profiles: dict[str, Profile] = {}
        self.aggregators: dict[int, Aggregator] = {}
        self._next_number = 0
        self._before: dict[int, Aggregator | None] = {}
        self._trial: dict[int, Aggregator | None] | None = None

    # ---- what there is

    def shared_iterations_s(self) -> Mapping[str, float]:
        """Seconds of each job's iteration as it is now: the longest on any of its Aggregators, the paper's d_j."""
        found = {job: profile.iteration_s for job, profile in self.profiles.items()}
        for aggregator in self.aggregators.values():
            for job, demand in aggregator.demands.items():
                here_s = shared_iteration_s(aggregator.cycle_s, demand.iteration_s, self.limits.period_tolerance)
                found[job] = max(found[job], here_s)
        return found

    def losses(self) -> Mapping[str, float]:
        """Share of its speed that each job loses: the paper's L_j."""
        shared_s = self.shared_iterations_s()
        return {job: 1 - profile.iteration_s / shared_s[job] for job, profile in self.profiles.items()}

    def loads(self) -> Mapping[int, float]:
        """Share of its capacity that each Aggregator's work takes: the paper's W_n / C_n, where a capacity is 1."""
        shared_s = self.shared_iterations_s()
        found = {}
        for number, aggregator in self.aggregators.items():
            held = [Demand(shared_s[job], demand.cpu_s) for job, demand in aggregator.demands.items()]
            busy_s = work_s(aggregator.cycle_s, held, self.limits.period_tolerance)
            found[number] = busy_s / (aggregator.cycle_s * self.limits.capacity)
        return found

    def holders(self, job: str) -> list[int]:
        """The Aggregators that have tasks of a job, in the order of their numbers."""
        return [number for number, each in sorted(self.aggregators.items()) if job in each.tasks]

    def load(self, number: int) -> float:
        """Share of one core that an Aggregator's tasks take, if all its jobs run as often as it has room for."""
        return self.aggregators[number].load(self.limits.period_tolerance)

    def record(self) -> Mapping[int, Aggregator | None]:
        """Starts to note changes: each Aggregator as it was before its first one, None for one that is new."""
        self._before = {}
        return self._before

    def undo(self, before: Mapping[int, Aggregator | None], profiles: Mapping[str, Profile]) -> None:
        """Takes back what was noted since `record`, with the jobs that there were then."""
        self.profiles = dict(profiles)
        for number, was in before.items():
            if was is None:
                self.aggregators.pop(number, None)
            else:
                self.aggregators[number] = was

    # ---- jobs

    def add(
        self, profile: Profile, *, new_max: int | None = None, forbidden: Collection[int] = (), near: int | None = None
    ) -> Refused | None:
        """Place a job.

        Args:
            profile: The job.
            new_max: Aggregators that may be allocated; None: as many as the job would have had servers.
            forbidden: Aggregators that it may not have.
            near: One on the node of all its members: it takes the whole job where it can.

        Returns:
            None; why not, and then nothing has changed.
        """
        allowed = min(profile.servers, profile.servers if new_max is None else new_max)
        order = largest_first(profile)
        rooms = list(self._rooms(profile, forbidden))
        owners = self._all_at(profile, [room for room in rooms if room.number == near])
        # The first job keeps the group that it would have had alone; from the second on they are filled.
        if owners is None and self.aggregators:
            choice = Rooms(rooms, profile.iteration_s, self.limits.period_tolerance)
            owners = self._best_fit(profile, order, choice, allowed)
        if owners is None:
            owners = self._group(profile, order, allowed)
        if owners is None:
            return self._why_not(profile, allowed)
        self.profiles[profile.job] = profile
        self._next_number = max(self._next_number, max(owners) + 1)
        self._give(profile, owners)
        return None

    def restore(self, profile: Profile, owners: Sequence[int]) -> None:
        """Puts a job where it is already, whatever that costs: a placement made anew from a record. Then `settle`.

        Args:
            profile: The job, as it is known by now.
            owners: For each of its tasks the number of its Aggregator.
        """
        self.profiles[profile.job] = profile
        for number, tasks in _by_owner(owners).items():
            cpu_s = sum(profile.tasks_s[task] for task in tasks)
            aggregator = self.aggregators.setdefault(number, Aggregator(number, profile.iteration_s))
            aggregator.tasks[profile.job] = tasks
            aggregator.demands[profile.job] = Demand(profile.iteration_s, cpu_s)

    def settle(self, next_number: int) -> None:
        """All were restored: cycles follow from the jobs, and numbers of new Aggregators begin with this one.

        Where no cycle is fair to all any more, as jobs have changed, it is the longest that there may be.
        """
        self._next_number = next_number
        for aggregator in self.aggregators.values():
            demands = list(aggregator.demands.values())
            longest_s = max(each.iteration_s for each in demands)
            fair_s = best_cycle_s(demands, self.limits)
            aggregator.cycle_s = longest_s * self.limits.cycle_multiple if fair_s is None else fair_s

    @property
    def next_number(self) -> int:
        """The number of the first new Aggregator."""
        return self._next_number

    def remove(self, job: str) -> tuple[int, ...]:
        """A job has ended. Returns the Aggregators that are empty now, which are gone."""
        del self.profiles[job]
        emptied = []
        for number in self.holders(job):
            self._take(number, job)
            if not self.aggregators[number].tasks:
                self._drop(number)
                emptied.append(number)
        return tuple(emptied)

    def leave(self, job: str) -> tuple[int, ...]:
        """A job has ended, and Aggregators that the others can do without go with it; returns all that are gone."""
        return (*self.remove(job), *self.recycle())

    def recycle(self) -> tuple[int, ...]:
        """Give back Aggregators whose tasks fit on others, from the least loaded on [autops §4.3.3.3].

        Returns the numbers of those that are gone.
        """
        gone = []
        while len(self.aggregators) > 1:
            number = min(self.aggregators, key=lambda each: (self.load(each), -each))
            if not self._empty(number):
                break
            gone.append(number)
        return tuple(gone)

    def owners(self, job: str) -> tuple[int, ...]:
        """For each task of a job the number of its Aggregator."""
        found = [0] * len(self.profiles[job].tasks_s)
        for number, aggregator in self.aggregators.items():
            for task in aggregator.tasks.get(job, ()):
                found[task] = number
        return tuple(found)

    # ---- how

    def _rooms(self, profile: Profile, forbidden: Collection[int]) -> Iterator[_Room]:
        """The Aggregators on which neither the job nor anybody else would lose too much, with what is free there."""
        limits, new = self.limits, Demand(profile.iteration_s, 0.0)
        for number, aggregator in self.aggregators.items():
            if number in forbidden:
                continue
            demands = list(aggregator.demands.values())
            if profile.job not in aggregator.demands:
                demands.append(new)
            cycle_s = best_cycle_s(demands, limits, kept_s=max(aggregator.cycle_s, profile.iteration_s))
            if cycle_s is not None:
                free_s = limits.capacity * cycle_s - work_s(cycle_s, demands, limits.period_tolerance)
                own = aggregator.demands.get(profile.job, new)
                own_s = limits.job_capacity * cycle_s - work_s(cycle_s, (own,), limits.period_tolerance)
                yield _Room(number, cycle_s, min(free_s, own_s))

    def _chooser(self, profile: Profile, leaving: int) -> "Chooser":
        """Who finds a place for each of the tasks that leave an Aggregator."""
        return Rooms(self._rooms(profile, (leaving,)), profile.iteration_s, self.limits.period_tolerance)

    def _cycle_s(self, demands: Sequence[Demand], kept_s: float) -> float:
        """The cycle of an Aggregator with these jobs, which had ``kept_s`` so far."""
        cycle_s = best_cycle_s(demands, self.limits, kept_s)
        # None: only where jobs were restored that do not fit each other any more.
        return kept_s if cycle_s is None else cycle_s

    def _all_at(self, profile: Profile, rooms: Sequence[_Room]) -> list[int] | None:
        for room in rooms:
            if runs(room.cycle_s, profile.iteration_s, self.limits.period_tolerance) * profile.cpu_s <= room.free_s:
                return [room.number] * len(profile.tasks_s)
        return None

    def _best_fit(self, profile: Profile, order: Iterable[int], rooms: Rooms, allowed: int) -> list[int] | None:
        owners = [0] * len(profile.tasks_s)
        number, iteration_s = self._next_number, profile.iteration_s
        for task in order:
            owner = rooms.take(profile.tasks_s[task])
            if owner is None and number < self._next_number + allowed:
                rooms.add(_Room(number, iteration_s, self.limits.alone_capacity * iteration_s))
                number += 1
                owner = rooms.take(profile.tasks_s[task])
            if owner is None:
                return None
            owners[task] = owner
        return owners

    def _group(self, profile: Profile, order: Iterable[int], servers: int) -> list[int] | None:
        """New Aggregators for the whole job, each task to the least loaded: as it would be with servers of its own."""
        if servers == 0:
            return None
        held_s, owners = [0.0] * servers, [0] * len(profile.tasks_s)
        for task in order:
            least = min(range(servers), key=held_s.__getitem__)
            held_s[least] += profile.tasks_s[task]
            if held_s[least] > self.limits.alone_capacity * profile.iteration_s:
                return None
            owners[task] = self._next_number + least
        return owners

    def _why_not(self, profile: Profile, allowed: int) -> Refused:
        capacity_s = self.limits.alone_capacity * profile.iteration_s
        largest_s = max(profile.tasks_s)
        if largest_s > capacity_s:
            return Refused(
                f"job {profile.job}: its largest task takes {largest_s:.6g} CPU seconds an iteration of "
                f"{profile.iteration_s:.6g} s, and an Aggregator gives a job {capacity_s:.6g}; no number helps"
            )
        if allowed < profile.servers:
            return Refused(
                f"job {profile.job}: no room on the Aggregators there are, and {allowed} of its "
                f"{profile.servers} servers can be had"
            )
        needed = max(profile.servers + 1, -int(-profile.cpu_s // capacity_s))
        return Refused(
            f"job {profile.job}: its tasks take {profile.cpu_s:.6g} CPU seconds an iteration of "
            f"{profile.iteration_s:.6g} s, too much for servers={profile.servers}; ask for servers={needed}"
        )

    def _give(self, profile: Profile, owners: Sequence[int]) -> None:
        """Tasks to their new Aggregators, and a new cycle for each of these."""
        self._add_tasks(profile, _by_owner(owners))

    def _add_tasks(self, profile: Profile, added: Mapping[int, Sequence[int]]) -> None:
        for number, tasks in added.items():
            self._note(number)
            aggregator = self.aggregators.get(number)
            if aggregator is None:
                aggregator = self.aggregators[number] = Aggregator(number, profile.iteration_s)
            aggregator.tasks.setdefault(profile.job, []).extend(tasks)
            cpu_s = sum(profile.tasks_s[task] for task in aggregator.tasks[profile.job])
            kept_s = max(aggregator.cycle_s, profile.iteration_s)
            aggregator.demands[profile.job] = Demand(profile.iteration_s, cpu_s)
            aggregator.cycle_s = self._cycle_s(list(aggregator.demands.values()), kept_s)

    def _take(self, number: int, job: str) -> list[int]:
        """A job's tasks from one Aggregator, whose cycle becomes shorter if nobody loses too much by that."""
        self._note(number)
        aggregator = self.aggregators[number]
        del aggregator.demands[job]
        tasks = aggregator.tasks.pop(job)
        if aggregator.demands:
            aggregator.cycle_s = self._cycle_s(list(aggregator.demands.values()), aggregator.cycle_s)
        return tasks

    def _drop(self, number: int) -> None:
        self._note(number)
        del self.aggregators[number]

    def _empty(self, number: int) -> bool:
        """Everything on one Aggregator to the others, without a new one; False: it does not fit, and nothing moved."""
        self._trial = {}
        jobs = sorted(self.aggregators[number].demands.items(), key=lambda item: (-item[1].cpu_s, item[0]))
        for job, _ in jobs:
            profile, tasks = self.profiles[job], self.aggregators[number].tasks[job]
            rooms = self._chooser(profile, number)
            added: dict[int, list[int]] = {}
            for task in largest_first(profile, tasks):
                owner = rooms.take(profile.tasks_s[task])
                if owner is None:
                    trial, self._trial = self._trial, None
                    self.undo(trial, self.profiles)
                    return False
                added.setdefault(owner, []).append(task)
            self._take(number, job)
            self._add_tasks(profile, added)
        self._drop(number)
        self._trial = None
        return True

    def _note(self, number: int) -> None:
        for noted in (self._before, self._trial):
            if noted is not None and number not in noted:
                was = self.aggregators.get(number)
                noted[number] = was.copy() if was is not None else None


def _by_owner(owners: Iterable[int]) -> dict[int, list[int]]:
    """By Aggregator its tasks."""
    found: dict[int, list[int]] = {}
    for task, owner in enumerate(owners):
        found.setdefault(owner, []).append(task)
    return found


def largest_first(profile: Profile, tasks: Iterable[int] | None = None) -> list[int]:
    """A job's tasks, or some of them, in the order in which they are placed."""
    chosen = range(len(profile.tasks_s)) if tasks is None else tasks
    return sorted(chosen, key=lambda task: (-profile.tasks_s[task], task))
