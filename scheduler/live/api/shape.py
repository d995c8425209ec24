"""What the API answers, as its OpenAPI document shows it; the answers themselves are made by view.py and its like.

Objects may grow keys in later versions, so nothing here forbids others; a test holds both to each other, key by key.
Times are seconds since 1970, null before there is one.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

from farside.scheduler.live.record import Phase

Refusals = dict[int | str, dict[str, Any]]


class Refusal(BaseModel):
    """Why a request was refused."""

    detail: Annotated[str, Field(description="One line: what is wrong, and what to do")]


class Submitted(BaseModel):
    """Jobs that were taken."""

    ids: list[str]


class Job(BaseModel):
    """A job in short."""

    id: str
    name: str
    user: str
    account: str
    qos: str
    state: Phase
    exit_code: int | None
    gpus: int
    nodes: list[str]
    submit_s: float
    start_s: float | None
    started_s: float | None
    end_s: float | None
    starts: int
    preemptions: int
    reason: str


class Task(BaseModel):
    """A process of a job."""

    rank: int
    role: str
    node: str
    gpus: list[int]
    parts: list[str]
    state: str
    exit_code: int | None
    signal: int | None
    cause: str
    output: str


class Profile(BaseModel):
    """What the messages of a job's processes told of its model; ``problem``: why they told nothing."""

    start: int
    processes: int
    iterations: int
    iteration_s: float
    model_bytes: int
    skew: float
    problem: str


class JobInFull(Job):
    """A job with its processes and all that was asked for."""

    held_s: float
    gpu_s: float
    failures: int
    pause_s: float | None
    resume_s: float | None
    profile: Profile | None
    spec: dict[str, Any]
    tasks: list[Task]


class JobList(BaseModel):
    """Jobs, the oldest first."""

    jobs: list[Job]


class Entry(BaseModel):
    """A line of a history: an entry of the manager's log."""

    seq: int
    at_s: float
    cause: str
    generation: int
    type: str
    event: dict[str, Any]


class History(BaseModel):
    """Entries of the log, the oldest first."""

    entries: list[Entry]


class Explanation(BaseModel):
    """Why a job waits, and by when it starts if everybody before it uses up their time limits."""

    lines: list[str]
    expected_start_s: float | None


class GpuShare(BaseModel):
    """A job that holds a GPU, or the part of it that its driver calls so; an empty part is all of it."""

    part: str
    job: str


class NodeGpu(BaseModel):
    """A GPU, and the job that has it, or the first of those that have parts of it."""

    index: int
    model: str
    healthy: bool
    reason: str
    job: str | None
    parts: list[str]
    shares: list[GpuShare]


class Node(BaseModel):
    """A node."""

    name: str
    state: str
    reason: str
    address: str
    version: str
    cpus: float
    memory_bytes: int
    headroom_bytes: int
    swap_bytes: int
    swap_own_bytes: int
    users: list[str]
    donor: str | None
    gpus: list[NodeGpu]
    free_gpus: int
    joined_s: float


class NodeList(BaseModel):
    """Nodes by name."""

    nodes: list[Node]


class Loan(BaseModel):
    """Memory that a node has lent."""

    borrower: str
    bytes: int


class OwnDonor(BaseModel):
    """A donor that a node may borrow from."""

    donor: str
    control: str
    rdma: bool


class Donor(OwnDonor):
    """A donor, and who has how much of it."""

    node: str
    lends: bool
    lendable_bytes: int
    loans: list[Loan]


class DonorList(BaseModel):
    """Donors by the name of their node, or those of one node."""

    donors: list[Donor] | list[OwnDonor]


class SensedNode(BaseModel):
    """What a node's agent told last, and no log keeps."""

    gpu_busy_pct: float | None
    gpu_power_w: float | None
    memory_stall_pct: float | None
    loans: list[Loan]
    lends: bool
    lendable_bytes: int
    swap_used_bytes: int


class Cluster(BaseModel):
    """Sums over the nodes."""

    nodes: int
    nodes_up: int
    gpus: int
    gpus_up: int
    gpus_held: int
    memory_bytes: int
    headroom_bytes: int
    gpu_power_w: float | None
    loan_bytes: int


class Energy(BaseModel):
    """How many nodes sleep, and what that saves."""

    nodes_asleep: int = 0
    nodes_booting: int = 0
    nodes_closing: int = 0
    nodes_wanted: int | None = None
    wanted_reason: str = ""
    forecast: str = ""
    saved_kwh: float = 0.0


class NodePower(BaseModel):
    """A node's power."""

    name: str
    state: str
    driver: str
    power: str
    since_s: float | None
    reason: str
    stays_on: str
    order: str
    pinned: bool
    stops_today: int


class PowerReport(Energy):
    """Which nodes sleep, and why."""

    policy: str
    dry_run: bool
    keeps: bool
    at_s: float
    idle_w: float
    nodes: list[NodePower]


class Glimpse(Energy):
    """The cluster at a glance."""

    seq: int
    generation: int
    at_s: float
    counts: Mapping[str, int]
    cluster: Cluster
    active: list[str]
    waiting: list[str]
    ended: list[str]
    node_names: list[str]
    jobs: list[Job]
    nodes: list[Node]
    why: Mapping[str, str]
    sensed: Mapping[str, SensedNode]


class Reservation(BaseModel):
    """Nodes on which nothing starts that could still run in a time."""

    id: str
    state: str
    nodes: list[str]
    from_s: float
    to_s: float
    reason: str
    by: str
    jobs: list[str]


class ReservationList(BaseModel):
    """Reservations, the earliest first."""

    reservations: list[Reservation]


class UsageRow(BaseModel):
    """What the jobs of a user or an account used."""

    name: str
    jobs: int
    ended: int
    gpu_hours: float
    wait_hours: float
    kwh: float
    metered_gpu_hours: float


class UsageReport(BaseModel):
    """Usage in a time."""

    by: str
    from_s: float
    to_s: float
    gpu_power_w: float
    rows: list[UsageRow]


class AuditLine(BaseModel):
    """Who did what."""

    seq: int
    at_s: float
    actor: str
    proof: str
    action: str
    object: str
    result: str


class AuditPage(BaseModel):
    """Lines of the audit, the newest first."""

    entries: list[AuditLine]
    before: int | None


class Whoami(BaseModel):
    """Who the manager takes the caller for."""

    name: str
    role: str
    proved: bool


class Health(BaseModel):
    """Up to which entry of the log it has read, and which brain leads; 0: none yet.

    And of this manager's own brain: when a cycle failed last, null where none has, and how many have since one did not.
    """

    seq: int
    generation: int
    cycle_failed_s: float | None
    cycle_failures_in_a_row: int


def refusals(*statuses: int) -> Refusals:
    """How a route refuses; what every route that asks who calls may say is always among them."""
    # A thing that is named in the path: the framework documents a shape of its own for it, unless told.
    also = {422} if 404 in statuses else set()
    told = sorted({401, 403, 503, *statuses} | also)
    return {status: {"model": Refusal, "description": _WHY[status]} for status in told}


def says(shape: type[BaseModel], *statuses: int, links: Mapping[str, Any] | None = None, status: int = 200) -> Refusals:
    """The responses of a route: its answer, and the statuses of `refusals` by which it may refuse."""
    good: dict[str, Any] = {"model": shape}
    if links:
        good["links"] = links
    return {status: good, **refusals(*statuses)}


def lists(shape: type[BaseModel], *statuses: int) -> Refusals:
    """The same of a listing that clients may keep."""
    tag = {"ETag": {"description": "Names this answer, for `If-None-Match`", "schema": {"type": "string"}}}
    told = says(shape, *statuses)
    told[200]["headers"] = tag
    return {**told, 304: {"description": "The client has this answer already", "headers": tag}}


_WHY: Mapping[int, str] = {
    401: "Nobody knows who calls",
    403: "The caller may not",
    404: "The caller has, or sees, no such thing",
    409: "Not in the state that it is in",
    413: "The body is larger than this route, or this caller, may have it",
    422: "The request is wrong, or asks for what can never be",
    429: "The caller has submitted too many jobs within the hour; Retry-After says when there is room",
    503: "The store or the brain does not answer, or too many ask; come again",
}
