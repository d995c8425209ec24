"""Groups of co-located jobs: their entries of the log, and what follows from these. PURE.

A plan is a whole state: which jobs each node has from here on. That a job is stopped, and started elsewhere, follows
from the plan and from where the job is (plan.py); so whoever takes over reads the last plan and goes on with it.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from farside.group_time import Bound, GroupTime, WorkProfile, group_time


class PlannedGroup(Struct, frozen=True, kw_only=True):
    """The jobs that one node has from here on. ``predicted_s``, ``bound``: of an iteration [harmony §IV-B2 eq. 1].

    Both are null while one of the jobs has not been measured.
    """

    node: str
    jobs: tuple[str, ...]
    predicted_s: float | None = None
    bound: Bound | None = None


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

    ``iteration_s``: with all waiting; 0: not known.
    """

    node: str
    job_id: str
    start: int
    comp_s: float
    net_s: float
    iteration_s: float = 0.0


Event = GroupsPlanned | TaskTimed


class JobTimes(Struct, frozen=True, kw_only=True):
    """What is known of an iteration of a job, and of which start."""

    start: int
    comp_s: float
    net_s: float
    iteration_s: float = 0.0


class Colocation(Struct, kw_only=True):
    """All of it at one entry of the log.

    Attributes:
        jobs: Co-located jobs that are not over, in the order of submission, with the memory that each asks for.
        groups: Of the last plan.
        measuring, waiting, reason: As in that.
        planned_s: When it was made.
        times: By job. Of one that is over until the next plan, which is made without it.
    """

    jobs: dict[str, int] = field(default_factory=dict)
    groups: tuple[PlannedGroup, ...] = ()
    measuring: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    reason: str = ""
    planned_s: float = 0.0
    times: dict[str, JobTimes] = field(default_factory=dict)

    @property
    def node_of(self) -> dict[str, str]:
        """By job of a group, its node."""
        return {job: group.node for group in self.groups for job in group.jobs}

    def group_of(self, job_id: str) -> PlannedGroup | None:
        """A job's group."""
        return next((group for group in self.groups if job_id in group.jobs), None)

    def profile(self, job_id: str) -> WorkProfile | None:
        """What an iteration of a job needs on its one node; None: nobody knows."""
        times = self.times.get(job_id)
        if times is None:
            return None
        return WorkProfile(
            job=job_id,
            work_machine_s=times.comp_s,
            # Measured on one node, with Aggregators that are elsewhere: it is the time on the network of one node.
            net_s=times.net_s,
            net_alone_s=times.net_s,
            floor_bytes=self.jobs.get(job_id, 0),
            machines_most=1,
        )

    def time_of(self, jobs: Sequence[str]) -> GroupTime | None:
        """An iteration of jobs on one node; None: one of them was not measured."""
        profiles = [profile for job in jobs if (profile := self.profile(job)) is not None]
        return group_time(profiles, 1) if len(profiles) == len(jobs) else None

    def submitted(self, job_id: str, memory_bytes: int) -> None:
        """A job has come."""
        self.jobs[job_id] = memory_bytes

    def ended(self, job_id: str) -> None:
        """A job is over."""
        self.jobs.pop(job_id, None)

    def take(self, event: Event, at_s: float, starts: Mapping[str, int]) -> str:
        """Moves on by one entry; returns why it does not fit, empty where it does.

        ``starts``: of the jobs that the entry names, as far as they are known, the number of their latest start.
        """
        if isinstance(event, TaskTimed):
            # A report may be late: of a job that has ended, or of the start before.
            if event.job_id in self.jobs and event.start == starts.get(event.job_id):
                self.times[event.job_id] = JobTimes(
                    start=event.start, comp_s=event.comp_s, net_s=event.net_s, iteration_s=event.iteration_s
                )
            return ""
        named = [job for group in event.groups for job in group.jobs]
        if len(named) != len(set(named)):
            return "a job is in two groups"
        if len({group.node for group in event.groups}) != len(event.groups):
            return "a node has two groups"
        stranger = next((job for job in named if job not in self.jobs), None)
        if stranger is not None:
            return f"job {stranger} is not co-located, or is over"
        self.groups, self.measuring, self.waiting = event.groups, event.measuring, event.waiting
        self.reason, self.planned_s = event.reason, at_s
        self.times = {job: times for job, times in self.times.items() if job in self.jobs}
        return ""
