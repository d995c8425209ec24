"""The state of all jobs and nodes after an entry of the log. PURE.

One owner each: the scheduler process has one to decide by, the API one to answer from. Both follow the same log with
the same function (apply.py), so at the same entry they are the same.
"""

from collections.abc import Iterator, Mapping
from itertools import count, takewhile

from msgspec import Struct

from farside.scheduler.manager.aggregation.state import Aggregation
from farside.scheduler.manager.colocation.state import Colocation
from farside.scheduler.manager.model.event import Event, JobSubmitted, NodesReserved, NodesWanted
from farside.scheduler.manager.model.job_table import JobTable
from farside.scheduler.manager.model.preemption_times import PreemptionTimes
from farside.scheduler.manager.model.queue_quota import QueueCounts
from farside.scheduler.manager.model.record import (
    ACTIVE,
    Admission,
    LiveJob,
    LiveNode,
    LiveTask,
    Maintenance,
    Phase,
    TaskKey,
    members_of,
)
from farside.scheduler.manager.model.sleep_time import SleepRecord
from farside.scheduler.manager.model.submit_rate import SubmitRates
from farside.scheduler.placement.recall_times import RecallTimes


class RequestKey(Struct, frozen=True, kw_only=True):
    """Key of a request that may be sent again: its kind, its user, and the client's own key."""

    kind: str
    user: str
    key: str


def request_of(event: JobSubmitted | NodesReserved) -> RequestKey:
    """The request that an event came of; its key is empty where the client gave none."""
    if isinstance(event, JobSubmitted):
        return RequestKey(kind="job", user=event.user, key=event.key)
    return RequestKey(kind="reservation", user=event.by, key=event.key)


def keyed_request_of(event: Event) -> RequestKey | None:
    """The request behind any event; None: there is no request, or the client gave no key."""
    return request_of(event) if isinstance(event, JobSubmitted | NodesReserved) and event.key else None


class LiveState:
    """Jobs and nodes by name, up to entry ``seq``."""

    def __init__(self) -> None:
        self.seq = 0
        self.at_s = 0.0
        self.generation = 0
        self.next_number = 1  # of the next submission
        self.next_sequence = 0
        self.forgotten_s = 0.0  # jobs that were over by then are not known any more
        self.preemption_times = PreemptionTimes()
        self.recall_times = RecallTimes()
        self.jobs = JobTable()
        self.nodes: dict[str, LiveNode] = {}
        # Replaced as a whole at each change: whoever keeps what follows from it compares the object.
        self.admissions: Mapping[str, Admission] = {}  # by node
        # Processes that hold something on their node, and do not belong to the latest start of a job that is active.
        self.stale: dict[TaskKey, LiveTask] = {}
        self.unfinished: dict[str, None] = {}  # ids, in the order of submission
        self.queued = QueueCounts()  # of these, by user
        self.submit_rates = SubmitRates()
        self.allocated: dict[str, None] = {}  # of these, those that have GPUs to start on, the first to be placed first
        self.present: dict[str, dict[str, None]] = {}  # jobs that are not over and have a place, by node
        self.meetings: dict[str, tuple[tuple[str, int], ...]] = {}  # addresses and ports in use, by job
        self.submitted: dict[int, tuple[str, ...]] = {}  # ids by the entry that submitted them
        self.maintenance: dict[str, Maintenance] = {}
        self.reserved: dict[int, str] = {}  # reservations by the entry that made them
        self.donors_version = 0  # grows when a node's donor, or whether it is up, may have changed
        self.requests: dict[RequestKey, int] = {}  # the first entry that bears a key
        self.dependents: dict[str, list[str]] = {}  # who waits for the end of a job
        self.closing: dict[str, None] = {}  # nodes to close that the scheduler process has not closed yet
        self.slept = SleepRecord()
        self.aggregation = Aggregation()
        self.colocation = Colocation()
        self.wanted: NodesWanted | None = None  # the last; None: nobody has decided how many nodes shall be on

    def live_jobs(self) -> Iterator[LiveJob]:
        """Those that are not over, in the order of submission."""
        return (self.jobs[job_id] for job_id in self.unfinished)

    def array(self, number: str) -> tuple[LiveJob, ...]:
        """The tasks of an array, ``7_0`` and so on of ``7``, as far as they are known from the first on."""
        ids = takewhile(self.jobs.__contains__, (f"{number}_{at}" for at in count()))
        return tuple(self.jobs[job_id] for job_id in ids)

    def task(self, key: TaskKey) -> LiveTask | None:
        """A process that may still be there, or was in the latest start."""
        job_id, start, rank = key
        job = self.jobs.get(job_id)
        if job is not None and job.start == start and rank < len(job.tasks):
            return job.tasks[rank]
        return self.stale.get(key)

    def jobs_on(self, node: str) -> tuple[str, ...]:
        """Jobs that hold something on a node or have been given a place there."""
        found = dict.fromkeys(job_id for job_id, _, _ in self.nodes[node].tasks)
        return tuple(found | self.present.get(node, {}))

    def add_allocation(self, job: LiveJob) -> None:
        """Notes where a job has its places from now on."""
        for node in job.nodes:
            self.present.setdefault(node, {})[job.job_id] = None

    def drop_allocation(self, job: LiveJob) -> None:
        """The places that it has are no longer its."""
        for node in job.nodes:
            there = self.present.get(node, {})
            there.pop(job.job_id, None)
            if not there:
                self.present.pop(node, None)


def aggregating_nodes(state: LiveState) -> dict[str, frozenset[str]]:
    """By job that has processes whose gradients are to be aggregated, their nodes: before it declares a model, too."""
    jobs = ((job_id, state.jobs[job_id]) for job_id in state.aggregation.wanting)
    return {job_id: frozenset(task.node for task in members_of(job)) for job_id, job in jobs if job.phase in ACTIVE}


def member_nodes(state: LiveState) -> dict[str, frozenset[str]]:
    """By job whose gradients are aggregated, the nodes of its members."""
    jobs = ((job_id, state.jobs[job_id]) for job_id in state.aggregation.jobs)
    return {job_id: frozenset(task.node for task in members_of(job)) for job_id, job in jobs}


def is_recall_awaited(state: LiveState, node: LiveNode | None) -> bool:
    """Whether a job that has a place on a node has not started, as its memory there has not come back."""
    waiting = (state.jobs[job_id] for job_id in (node.recalls if node is not None else ()))
    return node is not None and any(
        one.node == node.name and not one.is_back
        for job in waiting
        if job.phase is Phase.ALLOCATED
        for one in job.recalls
    )
