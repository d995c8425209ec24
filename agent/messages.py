"""Messages between manager and node agent. PURE.

Each class is one frame of `farside.agent.protocol`, or a part of one. They are msgspec Structs: frozen keyword-only
records like the project's dataclasses, which msgspec reads from JSON with every bound checked. A later version may add
fields with defaults; it never removes one or gives it another meaning, and a reader skips fields it does not know.

Times are seconds since 1970 on the node's clock (``_at_s``) or durations (``_s``). A task is one process group of one
rank of one start of a job; (task_id, start) names it for ever, so that a command may come twice and does its work once.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from farside.agent.aggregator.plan import JobGrant, JobPlan
from farside.agent.gpu_share import PARTS_MAX, WHOLE, Device, devices_of
from farside.group_time import LEAST_BYTES_S, ReadCost, Reloading

GPUS_MAX = 64
"""GPUs of one node; the largest machines have 16, and MIG makes up to 7 of each of 8."""
TASKS_MAX = 512
"""Tasks in one frame, and on one node: at most 1.8 KB each, so that they fit into `protocol.FRAME_BYTES_MAX`."""
LOANS_MAX = 64
"""Borrowers in one report, those with the most."""
DONORS_MAX = 64
"""Donors that one borrower is told of: each costs it a connection a worker, and power of two choices needs no more."""
# What an agent can besides running tasks, as its HELLO says.
CAN_PROBE = "probe"  # it answers whether a folder is there
CAN_DONORS = "donors"  # it keeps a peers file
CAN_LENDING = "lending"  # it tells its node's donor to lend no more
CAN_POWER_OFF = "power-off"  # its operator lets it shut its node down
SERVICES_MAX = 16
"""Node services of one node."""
SERVICE_BYTES_MAX = 16 << 10
"""What one service says, or is told, as JSON."""
SERVICES_BYTES_MAX = 64 << 10
"""What all services of a node say in one frame: beside `TASKS_MAX` tasks it fits into `protocol.FRAME_BYTES_MAX`."""
EPOCH_RUNS_MAX = 64
"""Runs of chunks whose moves one report names; the others follow when these are done."""
PLANS_MAX = TASKS_MAX
"""Plans in one order: a node has no more tasks, and its Aggregator no more jobs."""
ORDER_BYTES_MAX = 512 << 10
"""Plans of all jobs of a node, as JSON: with its head it fits into `protocol.FRAME_BYTES_MAX`."""
TOLD_MAX = 64
"""What services tell of jobs in one report, and together at most `TOLD_BYTES_MAX` of JSON."""
TOLD_BYTES_MAX = 32 << 10
TURN_TAKERS_MAX = 64
"""Workers that one executor serves at a time."""
LIDS_MAX = 64
"""InfiniBand ports of one node whose LIDs are told."""
LOAD_PCT_MAX = 50
"""A GPU that is busier than this counts as so busy: nobody calls it idle."""
USERS_MAX = 1024
FEATURES_MAX = 64
ARGUMENTS_MAX = 4096
VARIABLES_MAX = 1024
ARGUMENT_CHARS_MAX = 131_071  # the kernel takes 128 KiB a string with its zero (MAX_ARG_STRLEN, linux/binfmts.h)
DEFAULT_UMASK = 0o022  # of a job whose submitter does not say
CAUSE_CHARS_MAX = 256
PROFILE_CHARS_MAX = 120
ITERATION_MIN_S, ITERATION_MAX_S = 1e-6, 1e6
"""Programs are anybody's: a time of an iteration outside of these is none. The longest is eleven days."""

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Percent = Annotated[float, Meta(ge=0, le=100)]
Duration = Annotated[float, Meta(ge=0, le=4e9)]
Sum = Annotated[float, Meta(ge=0, le=1e40)]
Rate = Annotated[float, Meta(ge=0, le=1e18)]
Moment = Annotated[float, Meta(ge=0, le=4e12)]
Node = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
# The API shows it, and a pattern of JSON schema knows no \Z.
Feature = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")]
TaskId = Annotated[str, Meta(min_length=3, max_length=64, pattern=r"^[A-Za-z0-9_-]+\.[0-9]+\Z")]
Text = Annotated[str, Meta(max_length=CAUSE_CHARS_MAX)]
PartName = Annotated[str, Meta(min_length=1, max_length=CAUSE_CHARS_MAX)]
# No zero byte may be in what execve(2) takes; JSON could carry one.
Word = Annotated[str, Meta(max_length=ARGUMENT_CHARS_MAX, pattern=r"^[^\x00]*\Z")]
Path = Annotated[str, Meta(max_length=4095, pattern=r"^(/[^\x00]*)?\Z")]
"""Absolute, or empty where the field says what that means."""
Variable = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]
GpuIndexes = Annotated[tuple[Annotated[int, Meta(ge=0, lt=GPUS_MAX)], ...], Meta(max_length=GPUS_MAX)]
Start_ = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""How manyth start of its job, from 1."""
ServiceName = Annotated[str, Meta(min_length=1, max_length=32, pattern=r"^[a-z][a-z0-9-]*\Z")]
JobId = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_-]+\Z")]
Services = Annotated[dict[ServiceName, Raw], Meta(max_length=SERVICES_MAX)]
"""What each node service says of itself: its whole state as JSON, `SERVICE_BYTES_MAX` at most. What does not know a
service carries it as it is."""

State: TypeAlias = Literal["starting", "running", "stopping", "exited", "lost"]
"""``exited`` and ``lost`` are final. ``lost``: the node cannot tell how it ended, and it runs no more."""


class Message(Struct, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """One frame: immutable, compared by value, a JSON object with its ``type``."""


class Part(Struct, frozen=True, kw_only=True):
    """A record inside a frame."""


class Gpu(Part, frozen=True, kw_only=True, omit_defaults=True):
    """State of one GPU now; without NVML (a declared one) only the first three fields are known."""

    index: Annotated[int, Meta(ge=0, lt=GPUS_MAX)]
    model: Text
    healthy: bool
    reason: Text = ""  # why it is not healthy: XID, ECC, not found
    uuid: Text | None = None
    """What its driver calls it on this machine and any other; None: of a declared GPU."""
    parts: Annotated[tuple[PartName, ...], Meta(max_length=PARTS_MAX)] = ()
    """What its driver calls the parts that it is cut into; empty: it is whole."""
    memory_bytes: U63 | None = None
    memory_used_bytes: U63 | None = None
    busy_pct: Percent | None = None
    power_w: Annotated[float, Meta(ge=0, le=1e5)] | None = None

    def __post_init__(self) -> None:
        if len({*self.parts}) < len(self.parts):
            raise ValueError("a part of a GPU is named twice")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices of this GPU that may be held."""
        return tuple(Device(self.index, part) for part in self.parts or (WHOLE,))

    @property
    def lasting(self) -> "Gpu":
        """The fact without the fields that differ at each reading."""
        return replace(self, memory_used_bytes=None, busy_pct=None, power_w=None)


class Psi(Part, frozen=True, kw_only=True):
    """Pressure: share of the last 10 s in which programs waited; None where this kernel does not report it."""

    memory_some_pct: Percent | None = None
    memory_full_pct: Percent | None = None
    cpu_some_pct: Percent | None = None
    io_full_pct: Percent | None = None


class Loan(Part, frozen=True, kw_only=True):
    """Memory of this node that its donor has lent."""

    borrower: Annotated[str, Meta(max_length=64)]
    bytes: U63
    slabs: U32 = 0  # 0: an older agent, which does not say how many they are


class Donor(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Donor of this node, by its newest answer.

    ``control`` has host ``0.0.0.0`` or ``[::]`` where it listens on every address: others reach it where the node is.
    """

    node: Annotated[str, Meta(max_length=64)]  # its own name in the memory plane
    control: Annotated[str, Meta(max_length=256)]  # tcp:HOST:PORT
    has_rdma: bool = False
    lends: bool = True  # False: it drains, is about to end, or does not answer
    free_bytes: U63 = 0  # in slabs that it could lend now
    lent_bytes: U63 = 0  # in the log: with what is on its way back, and 0 where no manager may bound it
    capacity_bytes: U63 = 0  # of what the log keeps: both together; agents leave it out

    def lasting(self, control: str) -> "Donor":
        """The fact alone, with the address at which others reach the donor, and what it can lend to all."""
        capacity_bytes = self.lent_bytes + self.free_bytes if self.lends else 0
        return Donor(node=self.node, control=control, has_rdma=self.has_rdma, capacity_bytes=capacity_bytes)

    @property
    def address(self) -> "Donor":
        """Where it is reached, and how, alone."""
        return Donor(node=self.node, control=self.control, has_rdma=self.has_rdma)


class LentMemory(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Memory that this node's donor lends, to whomever: `Donor` is there only if others can reach it over a network.

    ``lendable_bytes``: in slabs that it could lend now, besides. Rates are of what went over networks since the agent
    asked before; None: it has not asked twice.
    """

    lent_bytes: U63
    lendable_bytes: U63 = 0
    read_bytes_per_s: Rate | None = None
    written_bytes_per_s: Rate | None = None


class BorrowedMemory(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Pages of this node's Farside devices, all together, as their borrowers say.

    Attributes:
        remote_bytes: At donors, or just about to be.
        on_disk_bytes: On backup disks alone.
        pending_bytes: Not on a disk yet that is to have them.
        pages_at_risk: With one copy where two are promised, or on a disk alone that fails.
        disk_failed: A backup disk fails; None: there is none.
        reads_per_s, writes_per_s: Requests since the agent asked before.
        read_p99_s, write_p99_s: What 99 in 100 of those took at most, to a factor of two; None: there were none.
    """

    remote_bytes: U63
    on_disk_bytes: U63 = 0
    pending_bytes: U63 = 0
    pages_at_risk: U63 = 0
    disk_failed: bool | None = None
    reads_per_s: Rate = 0.0
    writes_per_s: Rate = 0.0
    read_p99_s: Duration | None = None
    write_p99_s: Duration | None = None


class Drained(Part, frozen=True, kw_only=True):
    """Drained donor of this node: the number of the LENDING that closed it, and its slabs that are still lent.

    Said of one and the same moment: nothing comes any more, so with no slab the node may go off.
    """

    number: U63
    slabs: U32


class Swap(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Swap of this node on Farside devices: its pages are in other nodes' memory."""

    size_bytes: U63
    used_bytes: U63 = 0
    own_bytes: U63 = 0  # of what is used: by what is no task of ours
    copies: Annotated[int, Meta(ge=0, le=2)] = 0  # donors that have each page; 0: no borrower has said

    @property
    def lasting(self) -> "Swap":
        """The fact alone: jobs may have all of it but what others use."""
        own_bytes = min(self.own_bytes, self.size_bytes)
        return Swap(size_bytes=self.size_bytes, own_bytes=own_bytes, copies=self.copies)


class ChangingFacts(Part, frozen=True, kw_only=True):
    """Facts of a node that may change while its agent is connected; HELLO and each REPORT carry them."""

    headroom_bytes: U63  # memory that jobs may still get
    gpus: Annotated[tuple[Gpu, ...], Meta(max_length=GPUS_MAX)]
    donor: Donor | None = None
    swap: Swap | None = None
    rdma_subnet: Text = ""
    """Prefixes of its InfiniBand subnets, with commas between; empty: it has none."""
    lids: Annotated[tuple[U32, ...], Meta(max_length=LIDS_MAX)] = ()
    """LIDs of its InfiniBand ports, as their subnet managers gave them."""
    rack: Text = ""
    """The rack that it stands in, as its settings say, or the switches that LLDP names; empty: nobody knows."""

    def __post_init__(self) -> None:
        if len({gpu.index for gpu in self.gpus}) < len(self.gpus):
            raise ValueError("a GPU is named twice")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices of the node that jobs may hold, the lowest first."""
        return tuple(sorted(device for gpu in self.gpus for device in gpu.devices))

    @property
    def device_count(self) -> int:
        """How many `devices` there are: asked of all nodes at each submission, so none is made."""
        return sum([len(gpu.parts) or 1 for gpu in self.gpus])

    @property
    def swap_bytes(self) -> int:
        """Bytes of other nodes' memory that the node can use as swap."""
        return 0 if self.swap is None else self.swap.size_bytes

    @property
    def swap_own_bytes(self) -> int:
        """Bytes of that which the node's own programs use; jobs may have the rest."""
        return 0 if self.swap is None else self.swap.own_bytes


class NodeFacts(ChangingFacts, frozen=True, kw_only=True):
    """Facts of a node, by its agent; the event log, the state made from it and the API have the same fields.

    A new fact is declared here, or in `ChangingFacts`, and nowhere else.
    """

    boot_id: Annotated[str, Meta(min_length=1, max_length=64)]  # of the kernel: another one means that nothing runs
    version: Text  # of Farside, for people
    cpus: Annotated[int, Meta(ge=1, le=65536)]
    memory_bytes: U63
    agent: Annotated[str, Meta(max_length=64)] = ""
    """Kept in its state folder, by chance: another one of the same name knows nothing of this one's tasks."""
    users: Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=USERS_MAX)] = ()
    """Whose tasks run here; empty: everybody's but root's."""
    fence_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    """Its tasks end so long after it lost its manager; 0: never."""
    features: Annotated[tuple[Feature, ...], Meta(max_length=FEATURES_MAX)] = ()
    """What its operator says that it has, for jobs that ask for that."""
    rdma_domain: Text = ""
    """The RDMA fabric that it is in, as its settings say; empty: that of its subnets."""
    tells_load: bool = False
    """Its agent tells how busy the GPUs of tasks are over time (`TaskLoad`)."""
    task_memory: Text = ""
    """What its agent does where a task's job names no memory: limit, warn or off; none: nothing limits any task's
    memory there; empty: it is of the version before, and does not say."""
    extends_limits: bool = False
    """Its agent takes a longer time limit for a task that runs (`Extend`)."""


class DonorFacts(Part, frozen=True, kw_only=True):
    """Facts of the service ``donor``; `Reading` has the first three too, for managers that know no services."""

    donor: Donor | None = None
    loans: Annotated[tuple[Loan, ...], Meta(max_length=LOANS_MAX)] = ()  # the largest; none where there is no donor
    drained: Drained | None = None  # None: the donor lends, or has not answered
    lent: LentMemory | None = None  # None: no donor answers, or the agent is of the version before
    limit_bytes: U63 | None = None  # at most so much is lent, as the donor was told; None: by its settings alone
    limit_problem: Text = ""  # why that is not what a manager ordered; empty: it is, or none ordered anything
    refusal: Text = ""  # why no such order counts here; empty: it does


class DonorOrder(Part, frozen=True, kw_only=True):
    """The order of the service ``donor``; `Lending` is this order for agents that know no services.

    ``closed_by`` not 0: the node is to sleep, so the donor lends nothing further and borrowers get ``deadline_s`` to
    move what they have; `Drained` answers with that number. 0: it lends, as far as the manager is concerned.
    ``lend_bytes``: it lends at most so much; None: what its settings allow. An agent of the version before ignores it.
    """

    closed_by: U63
    deadline_s: Annotated[float, Meta(ge=0, le=86_400)]
    lend_bytes: U63 | None = None


class BorrowerFacts(Part, frozen=True, kw_only=True):
    """What the service ``borrower`` says; `ChangingFacts` has ``swap`` too, for managers that know no services."""

    swap: Swap | None = None
    borrowed: BorrowedMemory | None = None  # None: no borrower answers, or the agent is of the version before


class TaskKey(Part, frozen=True, kw_only=True):
    """Name of a task for ever: its job and rank, and which start of the job."""

    task_id: TaskId
    start: Start_


class TaskLoad(TaskKey, frozen=True, kw_only=True):
    """How busy the busiest of a running task's own GPUs was, up to its newest sample, ``age_s`` before the reading.

    Attributes:
        watched_s: For so long there was no gap between samples; nobody knows what was before.
        peaks: Whole percents, up to `LOAD_PCT_MAX`, and how long before the newest sample the load was last so high:
            each lower and later than the one before.
    """

    age_s: Duration
    watched_s: Duration
    peaks: Annotated[
        tuple[tuple[Annotated[int, Meta(ge=1, le=LOAD_PCT_MAX)], Duration], ...], Meta(max_length=LOAD_PCT_MAX)
    ] = ()

    def below_s(self, pct: int) -> float:
        """For how long before the newest sample all of its GPUs were less than ``pct`` busy, as far as it is known."""
        return min((ago_s for level, ago_s in self.peaks if level >= pct), default=self.watched_s)


SWAP = "swap"
"""The node service of the swap that a manager may switch on and off."""


class SwapFacts(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of the service ``swap``: of the one device that this node swaps to on order.

    ``device_bytes``: its size; None: no `swap_device` is set, or its borrower does not answer. ``attached_bytes``: of
    the swap that is on it, 0: none is. ``problem``: why that is not what is wanted; empty: it is. ``refusal``: why no
    order counts here; empty: it does. ``set_bytes``: the size by the node's settings, which counts where no order does;
    0: none, None: as it is.
    """

    device_bytes: U63 | None = None
    attached_bytes: U63 = 0
    problem: Text = ""
    refusal: Text = ""
    set_bytes: U63 | None = None


class SwapOrder(Part, frozen=True, kw_only=True):
    """The order of the service ``swap``: the size that it is to have; 0: none, None: what the node's settings say."""

    swap_bytes: U63 | None = None


REST = "rest"


class RestFacts(Part, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of the service ``rest``: of what this node turns down while it is on and idle.

    ``rests``: it is turned down. ``turns_down``: what the node's settings name, ``cpu`` and ``gpu``; none: nothing ever
    is. ``problem``: what the node lacks for it, or why it could not be turned up again; empty: neither.
    """

    rests: bool = False
    turns_down: Annotated[tuple[Text, ...], Meta(max_length=8)] = ()
    problem: Text = ""


class RestOrder(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The order of the service ``rest``.

    ``after_s``: idle time after which the node may rest; None: it may not. ``is_drained``: it takes no jobs; once it
    takes them again, a rest is over.
    """

    after_s: Annotated[float, Meta(ge=0)] | None = None
    is_drained: bool = False


class Reading(ChangingFacts, frozen=True, kw_only=True):
    """Facts of the node in a report."""

    at_s: Moment
    psi: Psi
    loans: Annotated[tuple[Loan, ...], Meta(max_length=LOANS_MAX)] = ()  # the largest; none where there is no donor
    drained: Drained | None = None  # None: the donor lends, or has not answered
    unfit: Text = ""  # why this node shall take nothing new; empty: nothing speaks against it
    loads: Annotated[tuple[TaskLoad, ...], Meta(max_length=GPUS_MAX)] = ()  # of tasks with whole GPUs that tell it
    services: Services = {}
    holding: Annotated[tuple[ServiceName, ...], Meta(max_length=SERVICES_MAX)] = ()
    """The services that have something of others on this node: as long as one has, the node may not go off."""


def fields_of(kind: type[Struct], record: Struct) -> dict[str, Any]:
    """The fields of ``kind`` as a record has them, to make or change another record that has them too."""
    return {name: getattr(record, name) for name in kind.__struct_fields__}


class Told(Part, frozen=True, kw_only=True):
    """What a service says about a start of a job: its whole state as JSON, so that it may come again."""

    service: ServiceName
    job: JobId
    start: Start_
    raw: Raw


class ProfileFigures(Part, frozen=True, kw_only=True):
    """Bytes that a process sends in one iteration of training; ``problem`` says why they are unknown, or is empty.

    ``sent_bytes`` go to all its peers together, ``portion_bytes`` to the one that gets most; ``largest_bytes`` is the
    largest tensor.
    """

    iterations: U32 = 0
    iteration_s: Duration = 0.0
    sent_bytes: U63 = 0
    largest_bytes: U63 = 0
    portion_bytes: U63 = 0
    problem: Annotated[str, Meta(max_length=PROFILE_CHARS_MAX)] = ""


class TaskProfile(ProfileFigures, frozen=True, kw_only=True):
    """Profile of a task: what each of its processes sends."""

    processes: U32  # that sent something of a size


class IterationTimes(Part, frozen=True, kw_only=True):
    """Iterations of training that a task, or a start of a job, reported: how many, and the newest ones' median time.

    One that is not `is_possible` counts as nothing told: a frame or a log with it can still be read.
    """

    count: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    median_s: Annotated[float, Meta(gt=0, le=4e9)]

    @property
    def is_possible(self) -> bool:
        """Whether the time is one that an iteration may take."""
        return ITERATION_MIN_S <= self.median_s <= ITERATION_MAX_S


class EndKind(StrEnum):
    """What brought a task to its end, where exit code and signal do not say; ``cause`` has it in words."""

    OTHER = "other"
    NOT_EXECUTED = "not-executed"  # its program is not there, or is none
    UNPREPARED = "unprepared"  # its node's prolog failed
    TIME_LIMIT = "time-limit"

    @classmethod
    def _missing_(cls, value: object) -> "EndKind":
        return cls.OTHER  # one that a later version has

    @classmethod
    def of_text(cls, cause: str) -> "EndKind":
        """The kind of an end that an older agent, or an older log, has in words only."""
        return next((kind for start, kind in _KINDS_IN_WORDS.items() if cause.startswith(start)), cls.OTHER)


# How the words began before there were kinds. They still do, for managers of that time.
NOT_STARTED = "could not be started: "
PROLOG = "prolog: "
TIME_LIMIT = "time limit"
_KINDS_IN_WORDS = {
    NOT_STARTED: EndKind.NOT_EXECUTED, PROLOG: EndKind.UNPREPARED, TIME_LIMIT: EndKind.TIME_LIMIT,
}  # fmt: skip


AGGREGATOR = "aggregator"
"""The node service of shared aggregation."""
EpochRun = tuple[U32, U32, U63]
"""First chunk, number of chunks, epoch."""
EpochRuns = Annotated[tuple[EpochRun, ...], Meta(max_length=EPOCH_RUNS_MAX)]


class AggregatorOffer(Part, frozen=True, kw_only=True):
    """What this node's Aggregator offers to all jobs, and where it is reached; 0 cores: there is none."""

    cores: Annotated[int, Meta(ge=0, le=65536)] = 0
    memory_bytes: U63 = 0
    unix: Path = ""
    tcp: Annotated[str, Meta(max_length=256)] = ""  # HOST:PORT; host 0.0.0.0 or [::] where it listens on all
    takes_grants: bool = False  # it serves jobs of which a manager has said the key, and no plan
    machine: Annotated[str, Meta(max_length=64)] = ""  # equal where memory may be shared


class AggregatedJob(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A job at this node's Aggregator: counters since it came, and how far its moves are."""

    job: JobId
    start: Start_
    lanes: U32 = 0
    updates: U63 = 0
    busy_s: Duration = 0.0
    size_squares: Sum = 0.0  # over all updates, of bytes that members pushed: their squares,
    size_times: Sum = 0.0  # and by their processor time, in byte seconds
    pushed_bytes: U63 = 0
    result_bytes: U63 = 0
    memory_bytes: U63 = 0
    waits_for: U32 | None = None  # the rank whose push is missing
    copied: EpochRuns = ()
    pushed: EpochRuns = ()
    broken_here: EpochRuns = ()
    broken_there: EpochRuns = ()
    lost: bool = False  # no copy of a version that all could go on from


class MemberReading(Part, frozen=True, kw_only=True):
    """Iterations that a start of a job has done, and how long the last took, of its slowest member on this node."""

    job: JobId
    start: Start_
    iterations: U63
    iteration_s: Duration


class AggregatorFacts(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What the service ``aggregator`` says: of the node's Aggregator, and of members on the node."""

    offer: AggregatorOffer = AggregatorOffer()
    has_relay: bool = False  # tasks on the node reach shared aggregation
    used_bytes: U63 = 0
    held: Annotated[tuple[AggregatedJob, ...], Meta(max_length=TASKS_MAX)] = ()
    readings: Annotated[tuple[MemberReading, ...], Meta(max_length=TASKS_MAX)] = ()


EXECUTOR = "executor"
"""The node service of turns that jobs take on a node."""
LIBRARY_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
"""Variables that set how many threads numeric libraries start: sums differ with their number."""
THREADS = ("FARSIDE_THREADS", *LIBRARY_THREADS)
"""Those, and the one that `farside train` reads: a co-located job's are set by its key ``threads`` alone."""


LEAST_WORK = 0.01
"""What of a turn of computing is taken to be work at least: turns and waiting are averages of their own."""


class SpilledInput(Part, frozen=True, kw_only=True):
    """Input of a task that need not be in memory as a whole, on its node: one record, from its worker to whoever asks.

    Attributes:
        spilled: What of it is not in memory, as a share of its blocks [harmony §IV-C, alpha].
        by_peer: What share of what was read back in the last iteration came from a peer.
        input_bytes: All its blocks.
        disk_bytes, peer_bytes: Read back from the disk, and from a peer, since the task's worker began.
        waited_s: How long it has waited for blocks since then.
        wait_s: How long it waits for them in an iteration, a moving average; ``comp_s`` of its turns has that in it.
        disk_bytes_s, disk_cpu_s_byte: What reading from the disk costs; below 1 byte a second: not known.
        peer_bytes_s, peer_cpu_s_byte: The same of a peer; below 1: there is none, or it is not used now.
    """

    spilled: Annotated[float, Meta(ge=0, le=1)]
    by_peer: Annotated[float, Meta(ge=0, le=1)] = 0.0
    input_bytes: U63 = 0
    disk_bytes: U63 = 0
    peer_bytes: U63 = 0
    waited_s: Duration = 0.0
    wait_s: Duration = 0.0
    disk_bytes_s: Rate = 0.0
    disk_cpu_s_byte: Duration = 0.0
    peer_bytes_s: Rate = 0.0
    peer_cpu_s_byte: Duration = 0.0

    @property
    def kept_bytes(self) -> float:
        """What of it is in memory."""
        return (1 - self.spilled) * self.input_bytes

    @property
    def reloading(self) -> Reloading | None:
        """Where it is read back from; None: nothing has been read, or what that takes can't be so."""
        if self.disk_bytes_s < LEAST_BYTES_S:
            return None
        disk = ReadCost(bytes_s=self.disk_bytes_s, cpu_s_byte=self.disk_cpu_s_byte)
        if self.peer_bytes_s < LEAST_BYTES_S:
            return Reloading(disk=disk)
        peer = ReadCost(bytes_s=self.peer_bytes_s, cpu_s_byte=self.peer_cpu_s_byte)
        # A peer is reached by the network of the updates.
        return Reloading(disk=disk, peer=peer, net_bytes_s=self.peer_bytes_s)

    def work_s(self, comp_s: float) -> float:
        """What of an average turn of computing was work, and no waiting: something, however long it waits."""
        return max(comp_s - self.wait_s, LEAST_WORK * comp_s)


FREE_PROCESSOR = 0.75
"""What computing leaves of the processors at least where one of them is free: others' updates take a bit of it, too."""


class ProcessorUse(Part, frozen=True, kw_only=True):
    """Processor time of a task in an iteration, as its node's kernel counts it: one record, moving averages.

    Attributes:
        comp_s: CPU seconds of its process, with all threads, while it computes.
        rest_s: CPU seconds of its process in the rest: while it pulls and pushes, and between, also while it waits for
            its turn.
        others_s: CPU seconds that other jobs' workers took on the node while it computed.
        processors: How many it may run on.
    """

    comp_s: Duration = 0.0
    rest_s: Duration = 0.0
    others_s: Duration = 0.0
    processors: Annotated[int, Meta(ge=1, le=65536)] = 1

    def updates_s(self, net_s: float) -> float:
        """Seconds in which its updates would take all its processors: at most those in which it is on the network.

        Threads that go on while the job waits for its turn are in the rest, too: the longer it waits, the more. No
        update takes that, and with it a group would be predicted to take longer than its jobs one after the other.
        """
        return min(self.rest_s / self.processors, net_s)

    def leaves_processor(self, comp_s: float) -> bool:
        """Whether a processor is idle while it computes, in turns of `comp_s` seconds."""
        return self.comp_s <= (self.processors - FREE_PROCESSOR) * comp_s

    def held_up_s(self, comp_s: float) -> float:
        """In how much of its turns of computing others had its processors: none where one was idle for them."""
        return 0.0 if self.leaves_processor(comp_s) else self.others_s / self.processors


def work_s(comp_s: float, spill: SpilledInput | None, processor: ProcessorUse | None) -> float:
    """What of an average turn of computing was the job's own work: it neither waited for input nor for processors."""
    own_s = comp_s if spill is None else spill.work_s(comp_s)
    held_up_s = 0.0 if processor is None else processor.held_up_s(comp_s)
    return max(own_s - held_up_s, LEAST_WORK * comp_s)


class TurnTaker(Part, frozen=True, kw_only=True):
    """A task that takes turns with others of its node: moving averages of an iteration, 0 while nothing is known.

    ``comp_s``, ``net_s``: from each turn to its end. ``iteration_s``: with all waiting. ``let_through``: steps that
    began without a turn; ``overdue``: turns that were over before the step. ``spill``: None: all of its input is in
    memory, and stays there. ``processor``: None: not known yet, or its executor is of the version before.
    """

    job: JobId
    start: Start_
    rank: U32
    comp_s: Duration = 0.0
    net_s: Duration = 0.0
    iteration_s: Duration = 0.0
    turns: U63 = 0
    let_through: U63 = 0
    overdue: U63 = 0
    spill: SpilledInput | None = None
    processor: ProcessorUse | None = None


GROUP_NODES_MAX = 64
"""Nodes of one group: a job has a worker on each, and as many may take turns together."""


class ExecutorFacts(Part, frozen=True, kw_only=True, omit_defaults=True):
    """What the service ``executor`` says.

    ``listen``: HOST:PORT where it takes links of other nodes' executors, host 0.0.0.0 or [::] where on all addresses;
    empty: it can't be in a group of several nodes. ``group``: epoch of the group that it is in; 0: in none.
    ``others``: workers that take turns here, and are none of its tasks. ``spills``: the node has a place for input of
    co-located jobs that does not fit in their memory; agents of the version before say nothing of it.
    """

    is_there: bool = False
    listen: Annotated[str, Meta(max_length=256)] = ""
    group: U63 = 0
    takers: Annotated[tuple[TurnTaker, ...], Meta(max_length=TURN_TAKERS_MAX)] = ()
    others: U32 = 0
    spills: bool = False


class GroupOrder(Part, frozen=True, kw_only=True):
    """A group of several nodes whose jobs take turns together.

    Attributes:
        epoch: Of the group with these nodes, from 1; a later group of any of them has a greater one.
        node: The node that is told.
        nodes: All of them, in the order of workers; the first has the synchroniser.
        synchronizer: HOST:PORT of that.
        key: What both ends of a link between two nodes prove; of this group and epoch alone.
    """

    epoch: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    node: Node
    nodes: Annotated[tuple[Node, ...], Meta(min_length=2, max_length=GROUP_NODES_MAX)]
    synchronizer: Annotated[str, Meta(min_length=1, max_length=300)]
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]

    def __post_init__(self) -> None:
        if len({*self.nodes}) < len(self.nodes) or self.node not in self.nodes:
            raise ValueError("nodes: names each once, and the node that is told among them")


class ExecutorOrder(Part, frozen=True, kw_only=True):
    """The order of the service ``executor``; None: the node is in no group with others."""

    group: GroupOrder | None = None


class DeclaredModel(Part, frozen=True, kw_only=True):
    """Model that a start of a job has declared: its chunks, as runs of (chunks, bytes of each)."""

    digest: Annotated[str, Meta(max_length=64)]
    rule: Annotated[str, Meta(max_length=20)]
    members: Annotated[int, Meta(ge=1, le=64)]
    chunks: Annotated[tuple[tuple[U32, U63], ...], Meta(min_length=1, max_length=1024)]


class NumberedPlan(Part, frozen=True, kw_only=True):
    """A job's plan, and which of its Aggregators this node's is; None: none, the node has members of it."""

    plan: JobPlan
    number: U32 | None = None
    has_members: bool = False


class AggregatorOrder(Part, frozen=True, kw_only=True, omit_defaults=True):
    """The order of the service ``aggregator``: the plans of all jobs that it, or members on its node, have part in.

    ``grants``: other jobs that its Aggregator serves; only to one that has said that it takes them.
    """

    plans: Annotated[tuple[NumberedPlan, ...], Meta(max_length=PLANS_MAX)] = ()
    grants: Annotated[tuple[JobGrant, ...], Meta(max_length=PLANS_MAX)] = ()


class Membership(Part, frozen=True, kw_only=True):
    """A task's rank among the members of its job, whose gradients are aggregated, and how many these are."""

    rank: U32
    members: Annotated[int, Meta(ge=1, le=64)]


class TaskState(TaskKey, frozen=True, kw_only=True):
    """Whole state of one task on its node; a later one replaces an earlier one.

    ``exited`` without exit code and signal: it was never started, and ``cause`` says why. One whose program cannot be
    executed has a shell's exit code, 127 or 126, and is of the kind NOT_EXECUTED. The states of one task come in the
    order of `State`; an older one that arrives late is told by that order.
    """

    state: State
    at_s: Moment  # when it came into this state
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    cause: Text = ""
    cpu_s: Duration = 0.0
    rss_bytes: U63 = 0
    ready_at_s: Moment | None = None  # when it said by FARSIDE_READY that it works; None: it has not said so
    unfit: Text = ""  # of a final state: why this node shall take nothing new, as its prolog or epilog failed
    profile: TaskProfile | None = None  # of one that was to be profiled, as soon as there is something to tell
    submitted_s: Moment | None = None  # as START said; None: an agent or a manager that does not say it
    kind: EndKind | None = None  # from the moment it is to end; None: it is not, or the agent has words only
    iterations: IterationTimes | None = None  # of a final state; None: it told of none by FARSIDE_READY


def job_of_task(task_id: str) -> str:
    """The job of a task, whose id is the job's, a dot and its rank."""
    return task_id.rpartition(".")[0]


class TaskSpec(Part, frozen=True, kw_only=True):
    """What to run, as which user, with which resources of this node."""

    argv: Annotated[tuple[Word, ...], Meta(min_length=1, max_length=ARGUMENTS_MAX)]
    env: Annotated[dict[Variable, Word], Meta(max_length=VARIABLES_MAX)]
    cwd: Path  # empty: the user's home
    user: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+\$?\Z")]
    gpus: GpuIndexes
    cpus: Annotated[float, Meta(ge=0, le=65536)]  # 0: no limit
    memory_bytes: U63  # 0: no limit
    stdout: Path  # appended to; empty: nowhere
    stderr: Path = ""  # empty: with stdout
    rank: U32
    world_size: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    master_addr: Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_.:-]+\Z")]
    master_port: Annotated[int, Meta(ge=1, le=65535)]
    time_limit_s: Duration  # 0: none
    grace_s: Duration  # between SIGTERM and SIGKILL at the time limit
    resume: bool = False  # its job was started before: FARSIDE_RESUME=1
    checkpoint_dir: Path = ""  # FARSIDE_CHECKPOINT_DIR
    swap_bytes: U63 = 0  # of Farside swap that it may use; 0: none, and no other swap either
    umask: Annotated[int, Meta(ge=0, le=0o777)] = DEFAULT_UMASK
    profile: bool = False  # note what its processes send, and say what that tells of its model
    membership: Membership | None = None  # None: nothing of it is aggregated
    parts: Annotated[tuple[Text, ...], Meta(max_length=GPUS_MAX)] = ()
    """Which part of each of ``gpus`` it gets; empty: all are whole. Only to an agent that has told of such parts."""
    takes_turns: bool = False
    """It is one of several workers of a co-located job, and takes turns on its node. Only to an agent whose executor
    may be in a group of several nodes."""
    may_spill: bool = False
    """It is a co-located job's: what of its input does not fit in ``memory_bytes`` may go where the node has room for
    it. Only to an agent whose executor says that there is one."""

    def __post_init__(self) -> None:
        if self.parts and len(self.parts) != len(self.gpus):
            raise ValueError("parts: of each GPU one, or none at all")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices of the node's GPUs that the task gets."""
        return devices_of(self.gpus, self.parts)


# ---- agent to manager


class Hello(NodeFacts, Message, frozen=True, kw_only=True):
    """First frame of a connection: what this node is and every task it knows. Flat: each fact is a field of its own."""

    node: Node
    incarnation: Annotated[str, Meta(min_length=1, max_length=64)]  # of the agent process; numbers its reports
    tasks: Annotated[tuple[TaskState, ...], Meta(max_length=TASKS_MAX)]
    can: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    """What later versions added that an agent must know before it is asked: `CAN_PROBE` and its like."""
    services: Services = {}
    at_s: Moment | None = None  # when it is sent, by the clock of its reports; None: an agent of the version before


class Report(Reading, Message, frozen=True, kw_only=True):
    """News since the last report. ``seq`` grows by one within an incarnation; unacknowledged reports come
    again, the same, after a reconnection.
    """

    seq: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    tasks: Annotated[tuple[TaskState, ...], Meta(max_length=TASKS_MAX)]  # those that changed
    told: Annotated[tuple[Told, ...], Meta(max_length=TOLD_MAX)] = ()


class Probed(Message, frozen=True, kw_only=True):
    """Answers PROBE; lost with the connection, as the question is then."""

    probe_id: Text
    problem: Text = ""  # what the user lacks there; empty: nothing
    is_refused: bool = False  # this node runs nothing of that user, so it does not matter
    made: Path = ""  # the topmost folder that had to be made for it


# ---- manager to agent


class Welcome(Message, frozen=True, kw_only=True):
    """Answers HELLO. A generation belongs to one leading manager; an agent that saw a higher one hangs up."""

    generation: U63


class Ack(Message, frozen=True, kw_only=True):
    """Every report up to this one is in the manager's store."""

    seq: U63


class Start(TaskKey, Message, frozen=True, kw_only=True):
    """Run this task. Answered by its state; a task that is known is not started again."""

    generation: U63
    spec: TaskSpec
    submitted_s: Moment | None = None
    """When its job was: a log that was lost, or restored from before, gives the same numbers to other jobs."""


class Stop(TaskKey, Message, frozen=True, kw_only=True):
    """SIGTERM to all of the task, SIGKILL after the grace period. Answered by its state; ``lost`` where unknown."""

    generation: U63
    cause: Text
    grace_s: Duration


class Extend(TaskKey, Message, frozen=True, kw_only=True):
    """This task ends by its time limit after so long from its start, and no sooner. Only to agents that take it.

    Limits only grow: a shorter one than is known changes nothing. Not answered.
    """

    generation: U63
    time_limit_s: Duration


class Forget(TaskKey, Message, frozen=True, kw_only=True):
    """The end of this task is in the manager's store; the node need not keep it."""


class Probe(Message, frozen=True, kw_only=True):
    """May this user keep checkpoints in this folder, and is it the one that other nodes see? Only if the agent ``can``.

    One node makes the folder if need be and a file ``mark`` in it, the others look for the mark and write a file of
    their own, and the first takes the mark away, and the folders that it ``made`` where the answer was no.
    """

    probe_id: Text
    step: Literal["write", "see", "clear"]
    user: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+\$?\Z")]
    path: Path
    mark: Annotated[str, Meta(pattern=r"^[.a-z0-9-]{1,64}\Z")]
    made: Path = ""


class DonorAddress(Part, frozen=True, kw_only=True, omit_defaults=True):
    """A donor to borrow from: its name in the memory plane, and where it listens.

    ``owner`` is its node, by the token that the agent there has proved; empty: it has the donor's name. The donor's own
    name is what that node says.
    """

    node: Annotated[str, Meta(min_length=1, max_length=64)]
    control: Annotated[str, Meta(min_length=1, max_length=256)]
    owner: Annotated[str, Meta(max_length=64)] = ""


class BorrowerOrder(Part, frozen=True, kw_only=True):
    """The order of the service ``borrower``; `Donors` is this order for agents that know no services."""

    donors: Annotated[tuple[DonorAddress, ...], Meta(max_length=DONORS_MAX)]


class Donors(BorrowerOrder, Message, frozen=True, kw_only=True):
    """All donors that this node may borrow from; replaces the list before. Only to agents that ``can``.

    Only their addresses: donors prove what they are by the cluster's key, which no manager has.
    """


class Lending(DonorOrder, Message, frozen=True, kw_only=True):
    """Whether this node's donor may lend; replaces the one before. Only to agents that ``can``."""

    generation: U63


class Service(Message, frozen=True, kw_only=True):
    """Order to a service of this node: a whole state as JSON, so that it may come again. Only to agents that ``can``.

    ``epoch`` grows with what the manager decides; within one generation an order with an older epoch is ignored.
    """

    name: ServiceName
    epoch: U63
    generation: U63
    raw: Raw


class PowerOff(Message, frozen=True, kw_only=True):
    """Shut the node down, if it is closed by the `Lending` of this number and has no task. Only to agents that ``can``.

    Not answered: that it goes off is seen by its silence.
    """

    closed_by: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    generation: U63


AgentMessage: TypeAlias = Hello | Report | Probed
ManagerMessage: TypeAlias = (
    Welcome | Ack | Start | Stop | Extend | Forget | Probe | Donors | Lending | Service | PowerOff
)


def can_service(name: str, version: int = 1) -> str:
    """What ``can`` of a HELLO has where the node has this service: one word for each version that the agent speaks."""
    return f"service:{name}" if version == 1 else f"service:{name}:{version}"


def is_carried(raw: Raw) -> bool:
    """Whether the JSON of a service is short enough to be kept."""
    return memoryview(raw).nbytes <= SERVICE_BYTES_MAX
