"""Groups of co-located jobs: their entries of the log, and what follows from these. PURE.

A plan is a whole state: which jobs each node has from here on. That a job is stopped, and started elsewhere, follows
from the plan and from where the job is (plan.py); so whoever takes over reads the last plan and goes on with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import Struct, field, structs

from farside.agent.messages import ProcessorUse, SpilledInput, work_s
from farside.group_time import Bound, TimeInTurns, WorkProfile, time_in_turns


class PlannedGroup(Struct, frozen=True, kw_only=True):
    """The jobs that a node, or several together, have from here on; each job has a worker on each of the nodes.

    ``node``: the first, on which the synchroniser of several is; ``beside``: the others, in the order of workers.
    ``epoch``: of a group of several nodes, the same as long as these are: no two such groups have one. ``predicted_s``,
    ``bound``: of an iteration in turns [harmony §IV-B2], null while one of the jobs has not been measured.
    """

    node: str
    jobs: tuple[str, ...]
    predicted_s: float | None = None
    bound: Bound | None = None
    beside: tuple[str, ...] = ()
    epoch: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes, in the order of workers."""
        return (self.node, *self.beside)


class GroupsPlanned(Struct, frozen=True, kw_only=True):
    """Decided: all groups from here on.

    ``measuring``: those of their jobs whose times nobody knows yet. ``waiting``: measured jobs that were left out.
    """

    groups: tuple[PlannedGroup, ...]
    measuring: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    reason: str


class TaskTimed(Struct, frozen=True, kw_only=True):
    """Told: a node says what an iteration of a job takes there, in seconds without waiting for turns.

    ``iteration_s``: with all waiting; 0: not known. ``machines``: nodes of that start. ``spill``: null: its input is in
    memory; ``comp_s`` has the waiting for what is not in it. ``processor``: null: not known, or the version before
    has written this; ``comp_s`` has in it what others' updates took of the processors.
    """

    node: str
    job_id: str
    start: int
    comp_s: float
    net_s: float
    iteration_s: float = 0.0
    machines: int = 1
    spill: SpilledInput | None = None
    processor: ProcessorUse | None = None


Event = GroupsPlanned | TaskTimed


class JobTimes(Struct, frozen=True, kw_only=True):
    """What is known of an iteration of a job, and of which start.

    ``machines``: nodes of that start; ``others``: the last times on other numbers. ``spill``, ``processor``: as in
    `TaskTimed`.
    """

    start: int
    comp_s: float
    net_s: float
    iteration_s: float = 0.0
    machines: int = 1
    spill: SpilledInput | None = None
    others: "tuple[JobTimes, ...]" = ()
    processor: ProcessorUse | None = None

    @property
    def all(self) -> "tuple[JobTimes, ...]":
        """On each number of nodes, the newest first."""
        return (self, *self.others)

    def on(self, machines: int) -> "JobTimes | None":
        """The times on this number of nodes; None: it has not run on it."""
        return next((one for one in self.all if one.machines == machines), None)

    def then(self, newest: "JobTimes") -> "JobTimes":
        """With newer times in the place of those on the same number of nodes."""
        others = (one for one in self.all if one.machines != newest.machines)
        return structs.replace(newest, others=tuple(structs.replace(one, others=()) for one in others))

    def knows(self, machines: int) -> bool:
        """Whether the times hold for this number of nodes: those of one node say nothing of the network of several."""
        return any((one.machines > 1) == (machines > 1) for one in self.all)

    @property
    def work_s(self) -> float:
        """Computing without waiting, for input or for processors."""
        return work_s(self.comp_s, self.spill, self.processor)

    @property
    def updates_s(self) -> float:
        """Seconds in which its updates would take all processors of a node; 0 where that is not known."""
        return 0.0 if self.processor is None else self.processor.updates_s(self.net_s)

    @property
    def leaves_processor(self) -> bool:
        """Whether a processor is known to be idle while it computes."""
        return self.processor is not None and self.processor.leaves_processor(self.comp_s)

    def shares(self) -> tuple[float, float]:
        """Machine seconds that nodes share among them, and seconds that each repeats [harmony §IV-B2 eq. 2].

        Both follow from two numbers of nodes, the newest and the most unlike it; from one alone nothing is repeated.
        """
        far = max(self.others, key=lambda one: abs(1 / one.machines - 1 / self.machines), default=None)
        if far is not None:
            work_s = (far.work_s - self.work_s) / (1 / far.machines - 1 / self.machines)
            update_s = self.work_s - work_s / self.machines
            if work_s > 0 and update_s > 0:
                return work_s, update_s
        return self.machines * self.work_s, 0.0


def with_reading(profile: WorkProfile, spill: SpilledInput | None, machines: int) -> WorkProfile:
    """A job's profile with what it reads back, which was seen on each of this number of nodes [harmony §IV-C]."""
    way = None if spill is None else spill.reloading
    if spill is None or way is None:
        return profile
    input_bytes = machines * spill.input_bytes
    return replace(profile, input_bytes=input_bytes, kept_bytes=spill.kept_bytes, reloading=way)


class Colocation(Struct, kw_only=True):
    """All of it at one entry of the log.

    Attributes:
        jobs: Co-located jobs that are not over, in the order of submission, with the memory that each asks for.
        workers: Of these, those that may have a worker on each of several nodes: on how many, fewest and most.
        groups: Of the last plan.
        measuring, waiting, reason: As in that.
        planned_s: When it was made.
        times: By job. Of one that is over until the next plan, which is made without it.
        epoch: The greatest that a group of several nodes has had.
        alone_since_s: By node whose executor has gone away, since when.
    """

    jobs: dict[str, int] = field(default_factory=dict)
    workers: dict[str, tuple[int, int]] = field(default_factory=dict)
    groups: tuple[PlannedGroup, ...] = ()
    measuring: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    reason: str = ""
    planned_s: float = 0.0
    times: dict[str, JobTimes] = field(default_factory=dict)
    epoch: int = 0
    alone_since_s: dict[str, float] = field(default_factory=dict)

    @property
    def nodes_of(self) -> dict[str, tuple[str, ...]]:
        """By job of a group, its nodes."""
        return {job: group.nodes for group in self.groups for job in group.jobs}

    def group_of(self, job_id: str) -> PlannedGroup | None:
        """A job's group."""
        return next((group for group in self.groups if job_id in group.jobs), None)

    def workers_of(self, job_id: str) -> tuple[int, int]:
        """On how many nodes a job may run, fewest and most."""
        return self.workers.get(job_id, (1, 1))

    def knows(self, job_id: str, machines: int) -> bool:
        """Whether a job was measured, so that its times on this number of nodes are known."""
        times = self.times.get(job_id)
        return times is not None and times.knows(machines)

    def profile(self, job_id: str) -> WorkProfile | None:
        """What an iteration of a job needs; None: nobody knows.

        One that was measured on one node alone stays there: what it takes on the network of several nobody knows. On
        one node it takes no time there, unless it was measured there.
        """
        times = self.times.get(job_id)
        if times is None:
            return None
        (work_machine_s, update_s), (least, most) = times.shares(), self.workers_of(job_id)
        alone = times.on(1)
        several = next((one for one in times.all if one.machines > 1), None)
        net_alone_s, net_cpu_alone_s = (alone.net_s, alone.updates_s) if alone is not None else (0.0, 0.0)
        profile = WorkProfile(
            job=job_id,
            work_machine_s=work_machine_s,
            update_s=update_s,
            # On one node: Aggregators that are elsewhere, which its program has named.
            net_s=several.net_s if several is not None else net_alone_s,
            net_alone_s=net_alone_s,
            net_cpu_s=several.updates_s if several is not None else net_cpu_alone_s,
            net_cpu_alone_s=net_cpu_alone_s,
            leaves_processor=times.leaves_processor,
            floor_bytes=self.jobs.get(job_id, 0),
            machines_least=least,
            machines_most=most if several is not None else 1,
        )
        return with_reading(profile, times.spill, times.machines)

    def spills(self, job_id: str) -> bool:
        """Whether a job was seen not to have all of its input in memory: it needs nodes with a place for that."""
        times = self.times.get(job_id)
        return times is not None and any(one.spill is not None and one.spill.spilled > 0 for one in times.all)

    def time_of(self, jobs: Sequence[str], machines: int) -> TimeInTurns | None:
        """An iteration of jobs on this number of nodes; None: one of them was not measured."""
        profiles = [profile for job in jobs if self.knows(job, machines) and (profile := self.profile(job)) is not None]
        return time_in_turns(profiles, machines) if len(profiles) == len(jobs) else None

    def submitted(self, job_id: str, memory_bytes: int, workers: tuple[int, int] = (1, 1)) -> None:
        """A job has come."""
        self.jobs[job_id] = memory_bytes
        if workers != (1, 1):
            self.workers[job_id] = workers

    def ended(self, job_id: str) -> None:
        """A job is over."""
        self.jobs.pop(job_id, None)
        self.workers.pop(job_id, None)

    def executor_told(self, node: str, at_s: float, *, is_there: bool) -> None:
        """A node says whether its executor answers."""
        if is_there:
            self.alone_since_s.pop(node, None)
        else:
            self.alone_since_s.setdefault(node, at_s)

    def take(self, event: Event, at_s: float, starts: Mapping[str, int]) -> str:
        """Moves on by one entry; returns why it does not fit, empty where it does.

        ``starts``: of the jobs that the entry names, as far as they are known, the number of their latest start.
        """
        if isinstance(event, TaskTimed):
            # A report may be late: of a job that has ended, or of the start before.
            if event.job_id in self.jobs and event.start == starts.get(event.job_id):
                newest = JobTimes(
                    start=event.start, comp_s=event.comp_s, net_s=event.net_s, iteration_s=event.iteration_s,
                    machines=event.machines, spill=event.spill, processor=event.processor,
                )  # fmt: skip
                known = self.times.get(event.job_id)
                self.times[event.job_id] = newest if known is None else known.then(newest)
            return ""
        named = [job for group in event.groups for job in group.jobs]
        if len(named) != len(set(named)):
            return "a job is in two groups"
        nodes = [node for group in event.groups for node in group.nodes]
        if len(nodes) != len(set(nodes)):
            return "a node has two groups"
        stranger = next((job for job in named if job not in self.jobs), None)
        if stranger is not None:
            return f"job {stranger} is not co-located, or is over"
        self.groups, self.measuring, self.waiting = event.groups, event.measuring, event.waiting
        self.reason, self.planned_s = event.reason, at_s
        self.epoch = max([self.epoch, *(group.epoch for group in event.groups)])
        self.times = {job: times for job, times in self.times.items() if job in self.jobs}
        return ""
