"""Events, of which the log consists: what happened, what somebody asked, what the manager decided. PURE.

How it works
  The log is the truth; what is known of jobs and nodes is what follows from it (apply.py). Two kinds of events:

  * told: users, operators and agents say so; any process of the manager may write them at any time. One that makes no
    sense any more, such as cancelling a job that has ended, is kept and changes nothing.
  * decided: only the leading scheduler process writes them, one at a time, each with its generation. A scheduler
    process that has lost the lead can't write any more (store/event_store.py), so they always fit the state before
    them.

  An event's fields may grow, with defaults: an older manager skips them. What it must not skip (a new event, a new
  value of a choice, a field that changes what follows) takes a new `VERSION`, by which it refuses the log in one line.
  What a field means never changes.
"""

from enum import StrEnum

from msgspec import Struct

from farside.agent.gpu_share import Device, devices_of
from farside.agent.messages import ChangingFacts, EndKind, IterationTimes, NodeFacts, ProfileFigures

# The events of shared aggregation and of co-location are declared with what follows from them.
from farside.scheduler.manager.aggregation.state import (
    AggregationMeasured as AggregationMeasured,
)
from farside.scheduler.manager.aggregation.state import (
    ChunksAssigned as ChunksAssigned,
)
from farside.scheduler.manager.aggregation.state import (
    ChunksMoved as ChunksMoved,
)
from farside.scheduler.manager.aggregation.state import (
    ModelDeclared as ModelDeclared,
)
from farside.scheduler.manager.aggregation.state import (
    PoolSized as PoolSized,
)
from farside.scheduler.manager.colocation.state import (
    GroupsPlanned as GroupsPlanned,
)
from farside.scheduler.manager.colocation.state import (
    TaskTimed as TaskTimed,
)
from farside.scheduler.manager.model.power_record import NodePowerRecord
from farside.scheduler.manager.model.spec import JobSpec

# 2: `StopCause` has node_unfit and work_done; nodes sleep, jobs are forgotten.
# 3: nodes' facts are as agents say them (`NodeFacts`), parts of GPUs are given; log_version2.py reads what 2 wrote.
# 4: jobs aggregate on servers that they share; an entry of 3 is read as it is.
# 5: jobs without GPUs are co-located; an entry of 4 is read as it is.
# 6: jobs whose GPUs are idle are warned and ended; an entry of 5 is read as it is.
# 7: operators bound what a node lends, and order its swap; an entry of 6 is read as it is.
# 8: a group may be bound by what it reads back of its input; an entry of 7 is read as it is.
# 9: what donors have lent is recalled before a job starts; an entry of 8 is read as it is.
# 10: the time limit of a lease that runs is extended; an entry of 9 is read as it is.
VERSION = 10


class Ending(StrEnum):
    """How a job ended."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class StopCause(StrEnum):
    """Why a job's processes are stopped."""

    PREEMPTED = "preempted"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time_limit"
    TASK_FAILED = "task_failed"
    NODE_LOST = "node_lost"
    NODE_UNFIT = "node_unfit"  # its prolog failed
    WORK_DONE = "work_done"  # all but the services have ended well
    IDLE_GPUS = "idle_gpus"  # it was warned, and went on without using them


class TaskPhase(StrEnum):
    """Phase of one process of a job, as its node reports it; ``assigned`` before the first report."""

    ASSIGNED = "assigned"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    EXITED = "exited"
    LOST = "lost"


class NodeAllocation(Struct, frozen=True, kw_only=True):
    """So many GPUs of one node, or parts that these are cut into; not yet which ones. 0: a place without any."""

    node: str
    gpus: int


class TaskAllocation(Struct, frozen=True, kw_only=True):
    """One process of a job: its rank, its node, and what it gets of the GPUs there.

    ``parts``: which part of each of ``gpus``; empty: all are whole. Two lists, as no object is to be kept for each GPU
    of each process that ever was. A job with roles has also its role, its rank in that, and where the others reach it.
    """

    rank: int
    node: str
    gpus: tuple[int, ...]
    parts: tuple[str, ...] = ()
    role: str = ""
    role_rank: int = 0
    address: str = ""
    port: int = 0

    @property
    def devices(self) -> tuple[Device, ...]:
        """What it gets of GPUs."""
        return devices_of(self.gpus, self.parts)


# ---------------------------------------------------------------------------------------------- told


class JobSubmitted(Struct, frozen=True, kw_only=True):
    """Somebody wants jobs run, ``count`` alike. Their ids follow from the log: the next number, ``7_0``... of several.

    ``uid`` is -1 where only a token says who it is. ``key``: what the client calls this request, empty: nothing.
    """

    spec: JobSpec
    user: str
    uid: int = -1
    count: int = 1
    is_held: bool = False
    key: str = ""


class CancelRequested(Struct, frozen=True, kw_only=True):
    """A job shall end."""

    job_id: str
    by: str


class LimitExtended(Struct, frozen=True, kw_only=True):
    """A start of a lease may hold its GPU for ``time_limit_s``, counted from when that start was decided.

    The job's next start, if there is one, may for as long as the job asked for.
    """

    job_id: str
    start: int
    time_limit_s: float
    by: str


class HoldRequested(Struct, frozen=True, kw_only=True):
    """A waiting job shall not start until it is released."""

    job_id: str
    by: str


class ReleaseRequested(Struct, frozen=True, kw_only=True):
    """A held job may start."""

    job_id: str
    by: str


class NodeJoined(NodeFacts, frozen=True, kw_only=True):
    """An agent has connected, for the first time or again, and says what its node is.

    Another ``boot_id``: nothing of before runs there. Another ``agent`` knows nothing of this one's processes.
    """

    node: str
    address: str


class NodeChanged(ChangingFacts, frozen=True, kw_only=True):
    """An agent says that its node is not as it was."""

    node: str


class ServiceChanged(Struct, frozen=True, kw_only=True):
    """An agent reports the state of a service of its node, as JSON; empty: the service is gone."""

    node: str
    name: str
    raw: str


class ServiceTold(Struct, frozen=True, kw_only=True):
    """An agent reports what a service of its node says about a start of a job, as JSON; it may come twice."""

    node: str
    service: str
    job_id: str
    start: int
    raw: str


class NodeLost(Struct, frozen=True, kw_only=True):
    """Nothing was heard of a node for too long. What runs there may run on; nobody knows."""

    node: str
    reason: str


class DrainRequested(Struct, frozen=True, kw_only=True):
    """Nothing new shall start on a node."""

    node: str
    reason: str
    by: str


class UndrainRequested(Struct, frozen=True, kw_only=True):
    """Jobs may start on a node again."""

    node: str
    by: str


class LendingOrdered(Struct, frozen=True, kw_only=True):
    """A node's donor shall lend at most so much from here on; None: what its own settings allow."""

    node: str
    lend_bytes: int | None
    by: str


class SwapOrdered(Struct, frozen=True, kw_only=True):
    """A node's swap in other nodes' memory shall have that size; 0: none, None: what its own settings say."""

    node: str
    swap_bytes: int | None
    by: str


class NodeInvited(Struct, frozen=True, kw_only=True):
    """A node of this name may join by an invitation, of which ``key`` is the SHA-256 in hex, until ``expires_s``.

    ``gpus`` and ``memory_bytes``: what it will have; None: whatever it says at first.
    """

    node: str
    key: str
    expires_s: float
    gpus: int | None
    memory_bytes: int | None
    by: str


class NodeKeyed(Struct, frozen=True, kw_only=True):
    """A node has used its invitation, which is over now, and has a key of its own: ``key`` in hex."""

    node: str
    key: str


class NodeAccepted(Struct, frozen=True, kw_only=True):
    """A node of this name may join, or come again, and has what it says that it has."""

    node: str
    by: str


class NodeRevoked(Struct, frozen=True, kw_only=True):
    """A node of this name may not connect any more, by whatever token or certificate."""

    node: str
    by: str


class NodesReserved(Struct, frozen=True, kw_only=True):
    """Nothing shall start on nodes that could still run between two times. Its id follows: ``m1``, ``m2``...

    ``key`` as in `JobSubmitted`.
    """

    nodes: tuple[str, ...]
    begin_s: float
    end_s: float
    reason: str
    by: str
    key: str = ""


class ReservationCancelled(Struct, frozen=True, kw_only=True):
    """Jobs may start there again."""

    reservation_id: str
    by: str


class AccessRecorded(Struct, frozen=True, kw_only=True):
    """For the audit alone: somebody was refused something, or looked at what is another's. Changes nothing."""

    action: str
    target: str
    result: str


class TaskChanged(Struct, frozen=True, kw_only=True):
    """An agent reports what became of a process. ``cause`` is empty when it ended by itself; see `EndKind`.

    With its end comes what its GPUs drew, ``energy_j``, of as many GPU seconds as were metered, and the iterations that
    it has told of; None: none.
    """

    node: str
    job_id: str
    rank: int
    start: int
    phase: TaskPhase
    exit_code: int | None = None
    signal: int | None = None
    cause: str = ""
    at_s: float = 0.0
    is_ready: bool = False  # it has said that it makes progress
    energy_j: float = 0.0
    metered_gpu_s: float = 0.0
    kind: EndKind | None = None
    iterations: IterationTimes | None = None


class PowerChanged(Struct, frozen=True, kw_only=True):
    """A node's power is as ``note`` says from here on; written before the order in it is given to its BMC.

    It counts only while the scheduler process of this ``generation`` leads: who keeps the power beside it may have been
    overtaken.
    """

    node: str
    generation: int
    note: NodePowerRecord


class NodesWanted(Struct, frozen=True, kw_only=True):
    """How many nodes shall be on from here on, and why; jobs that there were needed ``needed``."""

    nodes: int
    needed: int
    reason: str


class HistoryForgotten(Struct, frozen=True, kw_only=True):
    """Jobs that were over before a time are not known from here on; the archive of the log has them."""

    before_s: float


class PowerPardoned(Struct, frozen=True, kw_only=True):
    """For the audit: an operator has fixed a node that did not obey. What follows is a `PowerChanged`."""

    node: str
    by: str


class TaskProfiled(ProfileFigures, frozen=True, kw_only=True):
    """An agent says what a process of a job sends in an iteration of training."""

    node: str
    job_id: str
    rank: int
    start: int


class TaskIdle(Struct, frozen=True, kw_only=True):
    """An agent has seen all GPUs of a process less than ``below_pct`` busy from ``since_s`` to ``until_s``.

    None: they were used again, or were not watched for a while, so that what was said of the process counts no more.
    """

    node: str
    job_id: str
    rank: int
    start: int
    below_pct: int
    since_s: float | None = None
    until_s: float | None = None


# ---------------------------------------------------------------------------------------------- decided


class SchedulerTookLead(Struct, frozen=True, kw_only=True):
    """A scheduler process decides from here on. ``counts_lent``: it promises only memory that donors lend."""

    generation: int
    holder: str
    counts_lent: bool = False


class NodeClosed(Struct, frozen=True, kw_only=True):
    """Whoever decides has read that a node is to go off: from here on no job starts there until it is open again.

    ``number``: of the DRAIN that it is an answer to.
    """

    node: str
    number: int


class JobAllocated(Struct, frozen=True, kw_only=True):
    """The cycle gave a job GPUs. It starts as soon as those who must leave them have left.

    ``host``: the partition that lends it these; empty: they are its own partition's.
    """

    job_id: str
    places: tuple[NodeAllocation, ...]
    reason: str
    host: str = ""


class AllocationReleased(Struct, frozen=True, kw_only=True):
    """A job that had not started yet lost its place; ``is_held``: because no start of it can be made."""

    job_id: str
    reason: str
    is_held: bool = False


class JobStarted(Struct, frozen=True, kw_only=True):
    """A job's processes are to be started, for the ``start``-th time; ``is_profiled``: and what they send be noted.

    ``spread``: how far from consolidated it is there, 0 to 1 (slowdown.py); None: it has no GPUs or one, or a version
    before started it.
    """

    job_id: str
    start: int
    tasks: tuple[TaskAllocation, ...]
    master_addr: str
    master_port: int
    is_profiled: bool = False
    spread: float | None = None


class JobStopping(Struct, frozen=True, kw_only=True):
    """A job's processes are to be stopped. ``winner`` is the job that gets its GPUs, where there is one."""

    job_id: str
    start: int
    cause: StopCause
    reason: str
    winner: str = ""


class JobRequeued(Struct, frozen=True, kw_only=True):
    """None of a job's processes is there any more, and it waits again."""

    job_id: str
    start: int
    reason: str
    is_failure: bool = False


class JobEnded(Struct, frozen=True, kw_only=True):
    """A job is over."""

    job_id: str
    ending: Ending
    reason: str
    exit_code: int | None = None


class JobIdleWarned(Struct, frozen=True, kw_only=True):
    """All GPUs of a job were idle from ``since_s`` to ``until_s``. ``ends_s``: it ends then, if they stay so."""

    job_id: str
    start: int
    reason: str
    below_pct: int
    since_s: float
    until_s: float
    ends_s: float | None = None


class IdleWarningLifted(Struct, frozen=True, kw_only=True):
    """What a job was warned of will not happen, unless it is warned again."""

    job_id: str
    start: int
    reason: str


class MemoryRecalled(Struct, frozen=True, kw_only=True):
    """A donor takes memory back before a job starts there; it lends at most ``lend_bytes`` while the job has its place.

    ``recalled_bytes``: what it has lent beyond that. ``expected_s``: in how long it has come back, by ``samples``
    recalls that were measured; None: none was. The job does not wait for it beyond ``until_s``.
    """

    job_id: str
    node: str
    lend_bytes: int
    recalled_bytes: int
    expected_s: float | None
    samples: int
    until_s: float


class JobPromoted(Struct, frozen=True, kw_only=True):
    """A starving job's figures begin again at zero. [tiresias §3.3.2.3]"""

    job_id: str
    reason: str


Told = (
    JobSubmitted | CancelRequested | HoldRequested | ReleaseRequested | LimitExtended | NodeJoined | NodeChanged
    | NodeLost | DrainRequested | UndrainRequested | NodesReserved | ReservationCancelled | AccessRecorded | TaskChanged
    | PowerChanged | NodesWanted | PowerPardoned | HistoryForgotten
    | TaskProfiled | ServiceChanged | ServiceTold | NodeInvited | NodeKeyed | NodeAccepted | NodeRevoked
    | ModelDeclared | ChunksMoved | AggregationMeasured | TaskTimed | TaskIdle
    | LendingOrdered | SwapOrdered
)  # fmt: skip
Decided = (
    SchedulerTookLead | NodeClosed | JobAllocated | AllocationReleased | JobStarted | JobStopping | JobRequeued
    | JobEnded | JobPromoted | ChunksAssigned | PoolSized | GroupsPlanned | JobIdleWarned | IdleWarningLifted
    | MemoryRecalled
)  # fmt: skip
Event = Told | Decided


class Entry(Struct, frozen=True, kw_only=True):
    """One line of the log.

    Attributes:
        seq: Its place; entries are read in this order.
        at_s: When it was written, seconds since the epoch, by the writer's clock; never less than the one before.
        generation: Of the scheduler process that decided it; 0 for what was told.
        cause: Who or what brought it about: ``user ann, uid 1000``, ``node n3``, ``cycle``.
    """

    seq: int
    at_s: float
    generation: int
    cause: str
    event: Event
