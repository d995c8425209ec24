"""Jobs, nodes and reservations as the API, ``--json`` and the page show them. PURE.

Keys are stable and documented in docs/manager.md. What the API answers is made here and in its like (overview.py,
power/show.py, usage.py, audit.py), as Structs whose schemas are in the OpenAPI document. Times are seconds since 1970,
null before there is one. A user is shown no number of others' jobs (sight.py).
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, defstruct, structs

from farside.agent.messages import NodeFacts
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.codec import tag_of
from farside.scheduler.manager.model.maintenance import still_there
from farside.scheduler.manager.model.record import LiveJob, LiveNode, Maintenance, Phase, RunInterval
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.view.like import like
from farside.scheduler.manager.view.memory import NO_MEMORY, NodeMemory
from farside.scheduler.manager.view.partition import NOBODYS, Whose
from farside.scheduler.manager.view.safeguard import Safeguard
from farside.scheduler.manager.view.sight import SEES_ALL, Sight
from farside.scheduler.placement.measured_speed import CONSOLIDATED


class Job(Struct, frozen=True, kw_only=True):
    """A job in short."""

    id: str
    name: str
    user: str
    account: str
    qos: str
    partition: str
    deployment: str
    state: Phase
    exit_code: int | None
    gpus: int
    nodes: tuple[str, ...]
    submit_s: float
    start_s: float | None
    started_s: float | None
    end_s: float | None
    starts: int
    preemptions: int
    reason: str


class Task(Struct, frozen=True, kw_only=True):
    """A process of a job."""

    rank: int
    role: str
    node: str
    gpus: tuple[int, ...]
    parts: tuple[str, ...]
    state: log.TaskPhase
    exit_code: int | None
    signal: int | None
    cause: str
    output: str


class Profile(Struct, frozen=True, kw_only=True):
    """Profile of a job's model, from the messages of its processes; ``problem``: why they say nothing."""

    start: int
    processes: int
    iterations: int
    iteration_s: float
    model_bytes: int
    skew: float
    problem: str


class EndedStart(Struct, frozen=True, kw_only=True):
    """A start of a job that has ended: which, when and on how many nodes.

    ``spread``: how far from consolidated it was, 0 to 1, and whether at all; null: it had one GPU or none.
    ``iterations`` that its processes told of, and their median time ``iteration_s``; 0 and null: none.
    """

    start: int
    begin_s: float
    end_s: float
    nodes: int
    spread: float | None
    is_spread: bool | None
    iterations: int
    iteration_s: float | None


class Packlimit(Struct, frozen=True, kw_only=True):
    """The limit in force of the placement by skew, in a partition (empty: there are none), and what it follows from.

    ``since_s``: when it was learned, null: it is as configured; ``learned_from``: so many starts that could be
    compared. ``slowdown_over``: an iteration of spread starts of models over the limit took so many times as long as
    consolidated, the median of ``slowdown_over_from``; null: there were none. ``slowdown_under``: of the others.
    """

    partition: str
    packlimit: float
    since_s: float | None
    learned_from: int
    measured_starts: int
    spread_starts: int
    slowdown_over: float | None
    slowdown_over_from: int
    slowdown_under: float | None
    slowdown_under_from: int


class Expected(Struct, frozen=True, kw_only=True):
    """What a job is expected to take in all, where the policy asks for that; null where nothing is known.

    ``expected_error``: half of such estimates were off by no more than this factor lately. ``expected_from_jobs``: how
    many ended jobs the estimate comes from. ``expected_problem``: why nobody could be asked, so that all are null
    though they may be known; empty: they are as the scheduler process says.
    """

    expected_s: float | None = None
    expected_error: float | None = None
    expected_from_jobs: int | None = None
    expected_problem: str = ""


NOTHING_EXPECTED = Expected()


class IdleGpus(Struct, frozen=True, kw_only=True):
    """Warning that all GPUs of a job are less than ``below_pct`` busy; ``ends_s``: it ends then, null: it does not."""

    below_pct: int
    since_s: float
    warned_s: float
    ends_s: float | None


class Recall(Struct, frozen=True, kw_only=True):
    """Memory that a node's donor had lent, and takes back before a job starts there.

    ``expected_s``: in how long, by ``expected_from`` recalls that were measured; null: none was. ``back_s``: when it
    had come back; null: it has not. ``until_s``: the job waits for it no longer than that.
    """

    node: str
    recalled_bytes: int
    lend_bytes: int
    expected_s: float | None
    expected_from: int
    ordered_s: float
    until_s: float
    back_s: float | None


class JobInFull(Job, frozen=True, kw_only=True):
    """A job with its processes and all that was asked for."""

    held_s: float
    left_s: float | None
    gpu_s: float
    failures: int
    pause_s: float | None
    resume_s: float | None
    expected_s: float | None
    expected_error: float | None
    expected_from_jobs: int | None
    expected_problem: str
    profile: Profile | None
    idle_gpus: IdleGpus | None
    recalls: tuple[Recall, ...]
    safeguards: tuple[Safeguard, ...]
    ended_starts: tuple[EndedStart, ...]
    master_addr: str
    master_port: int
    spec: JobSpec
    tasks: tuple[Task, ...]


class JobList(Struct, frozen=True, kw_only=True):
    """Jobs, the oldest first."""

    jobs: tuple[Job, ...]


class Entry(Struct, frozen=True, kw_only=True):
    """A line of a history: an entry of the manager's log."""

    seq: int
    at_s: float
    cause: str
    generation: int
    type: str
    event: Annotated[Any, Meta(extra_json_schema={"type": "object"})]


class History(Struct, frozen=True, kw_only=True):
    """Entries of the log, the oldest first."""

    entries: tuple[Entry, ...]


class GpuShare(Struct, frozen=True, kw_only=True):
    """A job that holds a GPU, or the part of it that its driver calls so; an empty part is all of it.

    ``job``: null: another user's job, whose number the caller does not see.
    """

    part: str
    job: str | None


class NodeGpu(Struct, frozen=True, kw_only=True):
    """A GPU, and the job that has it, or the first of those that have parts of it; ``uuid`` None: it was declared.

    ``job``: of those that the caller sees; null: none of these has it. It is free only where there are no ``shares``.
    """

    index: int
    model: str
    uuid: str | None
    healthy: bool
    reason: str
    job: str | None
    parts: tuple[str, ...]
    shares: tuple[GpuShare, ...]


class Topology(Struct, frozen=True, kw_only=True):
    """The place of a node in the network: null where nobody knows. ``lids``: of its InfiniBand ports."""

    rack: str | None
    rdma_domain: str | None
    lids: tuple[int, ...]


# A node's facts that are shown as they are; the others are the manager's own business, or shown in another form.
_OTHER_FACTS = {"boot_id", "agent", "gpus", "donor", "swap", "rack", "rdma_domain", "lids"}
_PLAIN_FACTS = sorted({*NodeFacts.__struct_fields__} - _OTHER_FACTS)
_FACT_TYPES = {one.name: one.type for one in structs.fields(NodeFacts)}
_Facts: Any = defstruct("_Facts", [(name, _FACT_TYPES[name]) for name in _PLAIN_FACTS], frozen=True, kw_only=True)


class Node(_Facts, Struct, frozen=True, kw_only=True):  # type: ignore[misc] # a new fact is shown without being named here
    """A node."""

    name: str
    state: str
    reason: str
    excess: str
    address: str
    partition: str | None
    borrower: str | None
    swap_bytes: int
    swap_own_bytes: int
    donor: str | None
    services: Mapping[str, Any]
    gpus: tuple[NodeGpu, ...]
    free_gpus: int
    joined_s: float
    topology: Topology | None
    memory: NodeMemory | UnsetType = UNSET


class NodeList(Struct, frozen=True, kw_only=True):
    """Nodes by name."""

    nodes: tuple[Node, ...]


class Reservation(Struct, frozen=True, kw_only=True):
    """Nodes on which nothing starts that could still run in a time.

    ``jobs`` may still run there then, of those that the caller sees; ``others``: how many do that it does not see.
    """

    id: str
    state: str
    nodes: tuple[str, ...]
    from_s: float
    to_s: float
    reason: str
    by: str
    jobs: tuple[str, ...]
    others: int


def show_job(job: LiveJob, sight: Sight = SEES_ALL) -> Job:
    """A job in short, as a caller sees it."""
    return Job(
        id=job.job_id,
        name=job.spec.title,
        user=job.user,
        account=job.spec.account or job.user,
        qos=job.spec.qos,
        partition=job.spec.partition,
        deployment=job.spec.deployment,
        state=job.phase,
        exit_code=job.exit_code,
        gpus=job.spec.gpus,
        nodes=job.nodes,
        submit_s=job.submit_s,
        start_s=_or_none(job.start_s),
        started_s=_or_none(job.started_s),
        end_s=_or_none(job.end_s),
        starts=job.start,
        preemptions=job.preemptions,
        reason=sight.words(job.reason),
    )


def _left_s(job: LiveJob, now_s: float) -> float | None:
    """Seconds that it may still hold its GPUs; None: it holds none, or may for ever."""
    left_s = job.limit_at_s - now_s if job.phase in (Phase.STARTING, Phase.RUNNING) else math.inf
    return max(0.0, left_s) if left_s < math.inf else None


def show_job_in_full(
    job: LiveJob,
    now_s: float,
    expected: Expected = NOTHING_EXPECTED,
    safeguards: tuple[Safeguard, ...] = (),
    sight: Sight = SEES_ALL,
) -> JobInFull:
    """A job with its processes, all that was asked for, what it is expected to take, and what guards it where it is."""
    return JobInFull(
        **structs.asdict(show_job(job, sight)),
        **structs.asdict(expected),
        held_s=job.held_until(now_s),
        left_s=_left_s(job, now_s),
        gpu_s=job.held_until(now_s) * job.spec.gpus,
        failures=job.failures + _has_failed_for_good(job),
        pause_s=_or_none(job.pause_s),
        resume_s=_or_none(job.resume_s),
        profile=None if job.profile is None else like(Profile, job.profile, processes=len(job.profile.parts)),
        idle_gpus=None if job.idle is None else like(IdleGpus, job.idle),
        recalls=tuple(like(Recall, one, expected_from=one.samples, back_s=_or_none(one.back_s)) for one in job.recalls),
        safeguards=safeguards,
        ended_starts=tuple(_show_start(at, one) for at, one in enumerate(job.stints, 1) if one.end_s < math.inf),
        master_addr=job.master_addr,
        master_port=job.master_port,
        spec=sight.spec(job.spec),
        tasks=tuple(
            like(
                Task,
                task,
                state=task.phase,
                cause=sight.words(task.cause),
                output=job.spec.output_path(job.job_id, task.rank),
            )
            for task in job.tasks
        ),
    )


def _show_start(number: int, one: RunInterval) -> EndedStart:
    told = one.iterations
    return EndedStart(
        start=number,
        begin_s=one.begin_s,
        end_s=one.end_s,
        nodes=len(one.places),
        spread=one.spread,
        is_spread=None if one.spread is None else one.spread > CONSOLIDATED,
        iterations=0 if told is None else told.count,
        iteration_s=None if told is None else told.median_s,
    )


def _has_failed_for_good(job: LiveJob) -> bool:
    """By itself: `LiveJob.failures` has those that were forgiven."""
    return job.phase is Phase.FAILED and job.stop_cause is log.StopCause.TASK_FAILED


def show_node(
    node: LiveNode,
    reserved: str = "",
    whose: Whose = NOBODYS,
    memory: NodeMemory | UnsetType = NO_MEMORY,
    sight: Sight = SEES_ALL,
) -> Node:
    """A node, and which job has which of its GPUs, the first where several have parts of one.

    ``reserved``: why and until when nothing starts there; empty: no. ``whose``: which partitions' it is. ``memory``:
    that it lends and has borrowed; unset: it is shown elsewhere. ``sight``: whose jobs have their numbers there.
    """
    held: dict[int, list[GpuShare]] = {}
    first: dict[int, str] = {}
    sees_all = sight.user is None  # asked once: a listing has tens of thousands of shares
    for share in node.shares:
        holder = share.holder[0]
        is_seen = sees_all or sight.sees(holder)
        held.setdefault(share.gpu, []).append(GpuShare(part=share.part, job=holder if is_seen else None))
        if is_seen and share.gpu not in first:
            first[share.gpu] = holder
    return like(
        Node,
        node,
        reason=node.why_not or reserved,
        partition=whose.partition,
        borrower=whose.borrower,
        donor=None if node.donor is None else node.donor.control,
        services=_show_services(node),
        gpus=tuple(
            # In full, as `like` would take as long as all the rest of a node.
            NodeGpu(
                index=gpu.index,
                model=gpu.model,
                uuid=gpu.uuid,
                healthy=gpu.healthy,
                reason=gpu.reason,
                job=first.get(gpu.index),
                parts=gpu.parts,
                shares=tuple(held.get(gpu.index, ())),
            )
            for gpu in node.gpus
        ),
        free_gpus=len(node.free_devices),
        topology=_show_topology(node),
        memory=memory,
    )


def _show_topology(node: LiveNode) -> Topology | None:
    """Its rack and its RDMA domain; None: neither is known."""
    rack, domain = node.rack or None, node.rdma_domain or node.rdma_subnet or None
    return Topology(rack=rack, rdma_domain=domain, lids=node.lids) if rack or domain else None


def _show_services(node: LiveNode) -> Mapping[str, Any]:
    """What each service of a node says, as it says it; of those that the log has in fields, these."""
    typed = {"borrower": node.swap, "donor": node.donor}
    raws = {name: Raw(raw.encode()) for name, raw in node.services.items()}
    return {**{name: said for name, said in typed.items() if said is not None}, **raws}


def show_reservation(one: Maintenance, state: LiveState, now_s: float, sight: Sight = SEES_ALL) -> Reservation:
    """A reservation; ``jobs`` run on its nodes and may still do so when it begins."""
    there = still_there(state, one, now_s) if one.is_pending(now_s) else []
    seen = tuple(filter(sight.sees, there))
    return like(
        Reservation,
        one,
        id=one.reservation_id,
        state=one.state(now_s),
        from_s=one.begin_s,
        to_s=one.end_s,
        jobs=seen,
        others=len(there) - len(seen),
    )


def show_entry(entry: log.Entry, sight: Sight = SEES_ALL) -> Entry:
    """One line of a job's or a node's history."""
    event = sight.event(entry.event)
    if isinstance(event, log.NodeInvited | log.NodeKeyed):
        event = structs.replace(event, key="")  # by which the node would take anybody for the manager
    return like(Entry, entry, type=tag_of(type(event)), event=event)


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
