"""Routes of /v1/jobs: submit, list, show, cancel, hold, release, explain, history."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request, Response
from msgspec import Struct, structs

from farside import admin
from farside.agent import protocol
from farside.agent.messages import EXECUTOR, TASKS_MAX
from farside.errors import FarsideError, LocalProtocolError
from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.lent_memory import promise_of
from farside.scheduler.manager.aggregation.state import MEMBERS_MAX
from farside.scheduler.manager.api.answer import Known, answer, listed, up_to_date
from farside.scheduler.manager.api.body import read_body
from farside.scheduler.manager.api.context import Context
from farside.scheduler.manager.api.idempotency import Key
from farside.scheduler.manager.api.openapi_document import lists, says, takes
from farside.scheduler.manager.api.route_arguments import CallersSight, OwnJob, Person, Shared
from farside.scheduler.manager.auth.caller import Caller
from farside.scheduler.manager.decider.colocated import can_group, size_of
from farside.scheduler.manager.decider.extension import run_limit_s, why_not_extended
from farside.scheduler.manager.decider.launch import FIRST_PORT
from farside.scheduler.manager.decider.scheduler_process import ASK
from farside.scheduler.manager.model.accounts import charged, quota_problems
from farside.scheduler.manager.model.event import (
    CancelRequested,
    HoldRequested,
    JobSubmitted,
    LimitExtended,
    ReleaseRequested,
)
from farside.scheduler.manager.model.record import ACTIVE, LiveJob, LiveNode, LiveTask, Phase
from farside.scheduler.manager.model.role import RoleBody, most_on_a_node
from farside.scheduler.manager.model.spec import (
    EXAMPLE,
    MAX_TIME_LIMIT_S,
    JobBody,
    JobSpec,
    Ranks,
    array_problems,
    spec_of,
    spec_problems,
)
from farside.scheduler.manager.model.state import LiveState, RequestKey
from farside.scheduler.manager.nodes.dispatch import meeting_of, start_of
from farside.scheduler.manager.view.groups import explain as explain_turns
from farside.scheduler.manager.view.listing import JobListing
from farside.scheduler.manager.view.safeguard import safeguards_of
from farside.scheduler.manager.view.sight import Sight
from farside.scheduler.manager.view.view import (
    NOTHING_EXPECTED,
    Expected,
    History,
    Job,
    JobInFull,
    JobList,
    Packlimit,
    show_entry,
    show_job,
    show_job_in_full,
)
from farside.units import format_bytes

EXPLAIN_LIMIT_S, EXPECTED_LIMIT_S = 5.0, 2.0
_NO_ANSWER = "the scheduler process does not answer"
router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
_Limit = Annotated[int, Query(ge=1, le=1_000_000)]
# What may be asked of the first job that was taken, as OpenAPI says it.
_FIRST = {"parameters": {"job_id": "$response.body#/ids/0"}}
_LINKS = {
    name: {"operationId": f"jobs_{name}", **_FIRST}
    for name in ("show", "history", "explain", "hold", "release", "cancel")
}


class Submitted(Struct, frozen=True, kw_only=True):
    """Jobs that were taken."""

    ids: tuple[str, ...]


class ExtendBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a lease shall be able to hold its GPU from now on."""

    left_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_TIME_LIMIT_S)]


class Explanation(Struct, frozen=True, kw_only=True):
    """Why a job waits, and by when it starts if everybody before it uses up their time limits.

    ``packlimit``: the limit by which its place is chosen, and what it follows from; null: its place goes by something
    else than skew.
    """

    lines: list[str]
    expected_start_s: float | None
    packlimit: Packlimit | None


@router.post(
    "",
    status_code=201,
    responses=says(Submitted, 413, 422, 429, status=201, links=_LINKS),
    openapi_extra=takes(JobBody, RoleBody, example=EXAMPLE),
)
async def submit(request: Request, caller: Person, sight: CallersSight, shared: Shared, key: Key = "") -> Response:
    """Submit a job, or several alike."""
    log, asked = shared.log, RequestKey(kind="job", user=caller.name, key=key)
    known = shared.idempotency.seq_of(asked)
    if known is None:
        shared.writes.expect(caller, await _size_of_body(request))
    told, body = await read_body(request, JobBody)
    _refuse_submitter(caller, shared)
    if known is not None:
        return answer(Submitted(ids=log.state.submitted[known]), 201)
    spec = after_arrays(spec_of(body, told), log.state, sight)
    spec = charged(spec, caller.name, shared.tenancy, shared.partitions)
    if shared.cpus_in_proportion and not {"cpus_per_gpu", "roles"} & {*told}:
        spec = with_cpus(spec, log.state, user=caller.name, partitions=shared.partitions)
    problems = await _problems(spec, body.count, caller, shared)
    if problems:
        raise HTTPException(422, "; ".join(problems))
    event = JobSubmitted(spec=spec, user=caller.name, uid=caller.uid, count=body.count, is_held=body.hold, key=key)
    async with shared.writes.turn(caller, spec.size_bytes):
        if forgotten := after_problems(spec, sight):  # while it waited
            raise HTTPException(422, "; ".join(forgotten))
        rates, is_free = log.state.submit_rates, caller.is_operator
        with shared.gate.passing(event, log.state.queued, rates, log.now_s(), is_free=is_free):
            place = await shared.idempotency.write(event, asked, caller.told)
    return answer(Submitted(ids=log.state.submitted[place]), 201)


async def _size_of_body(request: Request) -> int:
    """Bytes of a body, as it declares or, where it comes in chunks, as it is."""
    declared = request.headers.get("content-length", "")
    return int(declared) if declared.isdecimal() else len(await request.body())


def _refuse_submitter(caller: Caller, shared: Context) -> None:
    """Refuses who may not submit here, whatever the job."""
    only_uid = shared.only_uid
    if caller.uid < 0 and not shared.may_tokens_submit:
        raise HTTPException(403, "a token does not prove who you are: submit through the manager's unix socket")
    if only_uid is not None and caller.uid >= 0 and caller.uid != only_uid:
        whose = f"all jobs here run as uid {only_uid}, who started this manager, and only he submits"
        raise HTTPException(403, f"{whose}; start a sandbox of your own")
    if only_uid is None and caller.uid == 0:
        whose = f"{caller.name} is uid 0, and no task runs as that: submit as the user whose job it is"
        raise HTTPException(403, f"{whose} (runuser -u USER -- farside ...)")


async def _problems(spec: JobSpec, count: int, caller: Caller, shared: Context) -> list[str]:
    """Errors of a submission; what the cluster has is compared only with numbers that make sense by themselves."""
    state = shared.log.state
    if wrong := [*spec_problems(spec), *array_problems(spec, count)]:
        return wrong
    found = [
        *cluster_problems(
            spec, state, user=caller.name, set_aside=shared.colocation_nodes, partitions=shared.partitions
        ),
        *after_problems(spec, shared.overviews.sight_of(caller)),
        *quota_problems(spec, caller.name, shared.tenancy),
        *room_problems(spec, state, user=caller.name),
    ]
    found = found or command_problems(spec, caller, state)
    if not found and spec.checkpoint_dir:
        return [*filter(None, [await shared.sessions.checkpoint_problem(caller.name, spec.checkpoint_dir)])]
    return found


@router.get("", responses=lists(JobList, 422))
async def jobs(
    request: Request,
    caller: Person,
    shared: Shared,
    everything: Annotated[bool, Query(alias="all", description="Also those that are over")] = False,
    user: str | None = None,
    limit: _Limit = 100_000,
    known: Known = "",
) -> Response:
    """Jobs, the oldest first."""
    whose = caller.name if not caller.is_operator else user

    def look() -> JobListing:
        state, now_s, is_operator = shared.log.state, time.monotonic(), caller.is_operator
        return shared.jobs.of(state, whose, everything=everything, now_s=now_s, is_operator=is_operator)

    listing = await up_to_date(look)
    if listing.has_others_than(caller.name):
        await shared.access_log.looked(caller, request, f"jobs of {user or 'all'}")
        listing = await up_to_date(look)
    return listed(f"{listing.mark}-{limit}", lambda: listing.pieces(limit), known)


@router.get("/{job_id}", responses=says(JobInFull, 404))
async def show(job: OwnJob, sight: CallersSight, shared: Shared) -> Response:
    """One job with its processes."""
    expected = await _expected(job, shared) if shared.goes_by_run_times else NOTHING_EXPECTED
    state = shared.log.state
    return answer(show_job_in_full(job, shared.log.now_s(), expected, safeguards_of(job, state), sight))


async def _expected(job: LiveJob, shared: Context) -> Expected:
    """What the scheduler process expects of a job, or that it does not answer: the job is shown all the same."""
    try:
        told = await admin.ask(shared.folder / ASK, "expected", timeout_s=EXPECTED_LIMIT_S, job_id=job.job_id)
    except FarsideError as error:
        return Expected(expected_problem=f"{_NO_ANSWER}: {error}")
    return msgspec.convert(told, Expected)


@router.get("/{job_id}/history", responses=says(History, 404))
async def history(job: OwnJob, sight: CallersSight, shared: Shared) -> Response:
    """All that happened to a job."""
    entries = await asyncio.to_thread(shared.log.store.history, job.job_id, at=job.submitted_at)
    return answer(History(entries=tuple(show_entry(entry, sight) for entry in entries)))


@router.get("/{job_id}/explain", responses=says(Explanation, 404))
async def explain(job: OwnJob, sight: CallersSight, shared: Shared) -> Response:
    """Why a job waits, in words."""
    try:
        told = await admin.ask(shared.folder / ASK, "explain", timeout_s=EXPLAIN_LIMIT_S, job_id=job.job_id)
    except FarsideError as error:
        raise HTTPException(503, f"{_NO_ANSWER}: {error}") from error
    told["lines"] = [*map(sight.words, told["lines"]), *explain_turns(shared.overviews.turns(), job.job_id)]
    return answer(told)


@router.post("/{job_id}/cancel", responses=says(Job, 404, 409))
async def cancel(job: OwnJob, caller: Person, shared: Shared) -> Response:
    """End a job."""
    _refuse_over(job)
    if not job.cancelled_by:  # otherwise, the log has it already
        async with shared.writes.cancelling(caller):
            job = _after_wait(job, shared)
            _refuse_over(job)
            if not job.cancelled_by:
                await shared.log.write([CancelRequested(job_id=job.job_id, by=caller.name)], caller.told)
    return _shown(job, caller, shared)


@router.post(
    "/{job_id}/extend", responses=says(Job, 403, 404, 409, 413, 422, 429, 503), openapi_extra=takes(ExtendBody)
)
async def extend(request: Request, job: OwnJob, caller: Person, shared: Shared) -> Response:
    """Let a lease that runs go on for so long from now, where nobody else is to have its GPU by then."""
    _, body = await read_body(request, ExtendBody)
    _refuse_extension(job, body.left_s, caller, shared)
    async with shared.writes.turn(caller):
        await _refuse_promised(job, shared)
        job = _after_wait(job, shared)
        _refuse_extension(job, body.left_s, caller, shared)
        limit_s = run_limit_s(job, body.left_s, shared.log.now_s())
        event = LimitExtended(job_id=job.job_id, start=job.start, time_limit_s=limit_s, by=caller.name)
        await shared.log.write([event], caller.told)
    after = _after_wait(job, shared)
    if after.start != job.start or after.extended_s < limit_s:  # its end was decided just before
        raise HTTPException(409, f"job {job.job_id} is {after.phase}: it was not extended")
    return _shown(job, caller, shared)


def _refuse_extension(job: LiveJob, left_s: float, caller: Caller, shared: Context) -> None:
    if caller.name != job.user:
        raise HTTPException(403, f"job {job.job_id} is {job.user}'s, and nobody else extends it")
    _refuse_over(job)
    if why := why_not_extended(shared.log.state, job, left_s, shared.log.now_s()):
        raise HTTPException(409, why)


async def _refuse_promised(job: LiveJob, shared: Context) -> None:
    try:
        told = await admin.ask(shared.folder / ASK, "promised", timeout_s=EXPECTED_LIMIT_S, job_id=job.job_id)
    except FarsideError as error:
        raise HTTPException(503, f"{_NO_ANSWER}: {error}") from error
    if told["job"]:
        raise HTTPException(409, f"another job has waited long, and is to have the GPU of job {job.job_id} at its end")


@router.post("/{job_id}/hold", responses=says(Job, 404, 409, 429))
async def hold(job: OwnJob, caller: Person, shared: Shared) -> Response:
    """Keep a job from starting."""
    if _is_to_hold(job):
        async with shared.writes.turn(caller):
            if _is_to_hold(_after_wait(job, shared)):
                await _write_counted(HoldRequested(job_id=job.job_id, by=caller.name), caller, shared)
    return _shown(job, caller, shared)


def _is_to_hold(job: LiveJob) -> bool:
    _refuse_over(job)
    if job.phase in ACTIVE:
        raise HTTPException(409, f"job {job.job_id} runs; cancel it, or hold it while it waits")
    return not job.held_by


@router.post("/{job_id}/release", responses=says(Job, 404, 409, 429))
async def release(job: OwnJob, caller: Person, shared: Shared) -> Response:
    """Let a held job start."""
    if _is_to_release(job, caller):
        async with shared.writes.turn(caller):
            if _is_to_release(_after_wait(job, shared), caller):
                await _write_counted(ReleaseRequested(job_id=job.job_id, by=caller.name), caller, shared)
    return _shown(job, caller, shared)


def _is_to_release(job: LiveJob, caller: Caller) -> bool:
    _refuse_over(job)
    if job.held_by and job.held_by != caller.name and not caller.is_operator:
        raise HTTPException(403, f"{job.held_by} holds job {job.job_id}, and only an operator may release it")
    return bool(job.held_by)


async def _write_counted(event: HoldRequested | ReleaseRequested, caller: Caller, shared: Context) -> None:
    log = shared.log
    with shared.gate.asking(caller.name, log.state.submit_rates, log.now_s(), is_free=caller.is_operator):
        await log.write([event], caller.told)


def _after_wait(job: LiveJob, shared: Context) -> LiveJob:
    """The job as the log has it now: meanwhile it may have started, ended, or been forgotten."""
    found = shared.log.state.jobs.get(job.job_id)
    if found is None:
        raise HTTPException(404, f"job {job.job_id}: you have no such job")
    return found


def _shown(job: LiveJob, caller: Caller, shared: Context) -> Response:
    return answer(show_job(_after_wait(job, shared), shared.overviews.sight_of(caller)))


def _refuse_over(job: LiveJob) -> None:
    if job.is_over:
        raise HTTPException(409, f"job {job.job_id} is over: {job.phase}")


def after_arrays(spec: JobSpec, state: LiveState, sight: Sight) -> JobSpec:
    """The job, where it waits for an array of those that its submitter sees, waiting for each of its tasks."""
    if all(map(sight.has, spec.after)):
        return spec
    # What is neither job nor array stays, and is refused by its name.
    each = ([task.job_id for task in sight.array(state, other)] or [other] for other in dict.fromkeys(spec.after))
    return structs.replace(spec, after=tuple(chain.from_iterable(each)))


def with_cpus(spec: JobSpec, state: LiveState, *, user: str, partitions: Partitions = NO_PARTITIONS) -> JobSpec:
    """A job with its GPUs' part of the CPUs of a node that it may use, of all these nodes the fewest. [helios §2.1]

    CPUs of an Aggregator in the pool are not the node's to give. One that no node suits is as it was.
    """
    parts = (
        max(0, node.cpus - state.aggregation.cores_of(node.name)) // node.device_count
        for node in state.nodes.values()
        if node.device_count and partitions.owner_of(node.name) == spec.partition and node.suits(spec, user)
    )
    return spec if spec.colocate else structs.replace(spec, cpus_per_gpu=float(min(parts, default=0)))


def cluster_problems(
    spec: JobSpec,
    state: LiveState,
    *,
    user: str,
    set_aside: frozenset[str] = frozenset(),
    partitions: Partitions = NO_PARTITIONS,
) -> list[str]:
    """Reasons why a job of this user can never run on this cluster, without nodes ``set_aside`` or on these alone."""
    if spec.colocate:
        return colocation_problems(spec, state, set_aside)
    problems = choice_problems(spec, state, partitions)
    known = [
        node
        for node in state.nodes.values()
        if node.name not in set_aside and partitions.owner_of(node.name) == spec.partition
    ]
    there = [node for node in known if node.runs_jobs_of(user)]
    whose = f" that {user} may use" if len(there) < len(known) else ""
    what = f"partition {spec.partition}" if partitions else "the cluster"
    fitting = sum(node.device_count for node in there if node.suits(spec, user))
    if spec.gpus > fitting and not problems:
        which = (f" of model {spec.gpu_model}" if spec.gpu_model else "") + whose
        which += f" {spec.choice.words}" if spec.choice else ""
        has = f"{what} has {fitting:,}{which}" if fitting else f"{what} has none{which}"
        problems.append(f"gpus: it asks for {spec.gpus:,}, and {has}; ask for {'fewer' if fitting else 'others'}")
    nodes = [node for node in there if node.gpus]
    if nodes and not any(
        node.cpus >= spec.cpus_per_gpu and node.memory_bytes >= spec.memory_bytes_per_gpu for node in nodes
    ):
        problems.append("cpus_per_gpu, memory_bytes_per_gpu: no node has that much for a single GPU")
    if spec.swap_bytes_per_gpu:
        problems += swap_problems(spec, nodes, state)
    return [*problems, *aggregation_problems(spec, state, set_aside)]


def after_problems(spec: JobSpec, sight: Sight) -> list[str]:
    """The error of a job that waits for others that are not there, or not known any more.

    Others' jobs are not there either, but for an operator: whether they are is none of a user's business.
    """
    unknown = [other for other in spec.after if not sight.has(other)]
    whose = "" if sight.user is None else " of yours"
    more = f", and {len(unknown) - 1:,} others are not there" if len(unknown) > 1 else ""
    return [f"after: there is no job {unknown[0]:.60}{whose}{more}"] if unknown else []


def swap_problems(spec: JobSpec, nodes: Sequence[LiveNode], state: LiveState) -> Iterator[str]:
    """Why none of its nodes can ever have the swap that a job asks for, or why all donors never lend as much.

    A donor can lend its node's memory at most; what it lends now is what a job waits for.
    """
    if not any(node.swap_bytes >= spec.swap_bytes_per_gpu for node in nodes):
        most = max((node.swap_bytes for node in nodes), default=0)
        has = f"the largest is {format_bytes(most)}" if most else "none has any"
        yield f"swap: no node has {format_bytes(int(spec.swap_bytes_per_gpu))} of Farside swap; {has}"
        return
    lenders = {node.name: node.memory_bytes for node in state.nodes.values() if node.donor is not None}
    most, asked = sum(lenders.values()), promise_of(spec.gpus, spec.swap_bytes_per_gpu)
    copies = min((node.swap_copies for node in nodes if node.swap_bytes), default=1)
    asks = f"swap: it asks for {format_bytes(asked)} of other nodes' memory"
    if copies > 1:
        asks, asked = f"{asks}, each page in that of two nodes", copies * asked
    if not lenders:
        yield f"{asks}, and no node has a donor; run `farside daemon` on nodes whose memory may be lent"
    elif asked > most:
        yield f"{asks}, and all nodes with a donor have {format_bytes(most)}; ask for less"
    elif all(
        most - lenders.get(node.name, 0) < node.swap_copies * spec.swap_bytes_per_gpu
        for node in nodes
        if node.swap_bytes
    ):
        yield f"{asks}, and a node does not borrow from its own donor: the others have too little; ask for less"


def choice_problems(spec: JobSpec, state: LiveState, partitions: Partitions) -> list[str]:
    """What a job names that is not there: a node, or a feature that nobody has."""
    problems = []
    features = {one for node in state.nodes.values() for one in node.labels}
    has = f"there are {', '.join(sorted(features))}" if features else "there are none"
    unknown = next((name for name in spec.nodes if name not in state.nodes), None)
    if unknown is not None:
        problems.append(f"nodes: there is no node {unknown:.60}; `farside nodes` lists those that have joined")
    unknown = next((name for name in spec.exclude if name not in state.nodes and name not in features), None)
    if unknown is not None:
        words = f"there is no node {unknown:.60}, and as a feature no node has it"
        problems.append(f"exclude: {words}; `farside nodes` lists nodes, and of features {has:.300}")
    other = next((name for name in spec.nodes if partitions.owner_of(name) != spec.partition), None)
    if other is not None and other in state.nodes:
        has = partitions.owner_of(other) or "none"
        problems.append(f"nodes: {other} is not in partition {spec.partition}; its partition is {has}")
    nobodys = next((name for name in spec.features if name not in features), None)
    if nobodys is not None:
        problems.append(f"features: no node has {nobodys:.60}; {has:.300}")
    return problems


def colocation_problems(spec: JobSpec, state: LiveState, set_aside: frozenset[str]) -> list[str]:
    """Reasons why a co-located job can never run on the nodes that are set aside for such jobs."""
    if not set_aside:
        return ["colocate: no node is set aside for such jobs; an operator names some in colocation_nodes"]
    nodes = [state.nodes[name] for name in sorted(set_aside) if name in state.nodes]
    if not nodes:
        return ["colocate: no node that is set aside for such jobs has joined; an operator starts an agent there"]
    too_large = size_of(state, set_aside).problems(spec.threads, spec.memory_bytes)
    problems = [f"{key}: {why}; ask for less" for key, why in too_large]
    least, able = spec.worker_range[0], can_group(state, set_aside)
    if least > max(able, 1):
        has = f"{able} of the nodes that are set aside can be a group: each needs an executor with --group-listen"
        problems.append(f"workers: it asks for {least}, and {has} and an Aggregator with a tcp address; ask for fewer")
    if not any(node.services.get(EXECUTOR) for node in nodes):
        problems.append("colocate: no node for such jobs has an executor; an operator starts `farside executor` there")
    return problems


def aggregation_problems(spec: JobSpec, state: LiveState, set_aside: frozenset[str] = frozenset()) -> list[str]:
    """Reasons why a job can never have shared aggregation on this cluster, without nodes ``set_aside``."""
    if not spec.aggregation:
        return []
    told = {name: offer for name, offer in state.aggregation.offers.items() if name not in set_aside}
    offers = {name: offer for name, offer in told.items() if offer.cores}
    # Its agent is of the version before, or has no socket for it: tasks there would not be told where to go.
    known = [node for node in state.nodes.values() if node.name not in set_aside]
    older = [node.name for node in known if node.is_up and node.name not in told]
    members = spec.gpus if spec.roles or spec.ranks is Ranks.GPU else min(spec.gpus, MEMBERS_MAX)
    if not offers:
        wrong = ((name, one.problem) for name, one in told.items() if one.problem)
        why = next((f"of {name} {problem}" for name, problem in wrong), "start `farside aggregator` on one")
        return [f"aggregation: no node offers an Aggregator; {why}, or leave it out"]
    if older:
        way = "update its agent, or set aggregation_socket there"
        return [f"aggregation: tasks on {older[0]} do not reach it; {way}, or leave aggregation out"]
    if not 2 <= members <= MEMBERS_MAX:
        return [f"aggregation: of 2 to {MEMBERS_MAX} processes with GPUs, and this job has {members}; leave it out"]
    if spec.aggregators > len(offers):
        has = f"it asks for {spec.aggregators}, and {len(offers)} nodes offer one"
        return [f"aggregators: {has}; ask for fewer"]
    return []


def room_problems(spec: JobSpec, state: LiveState, *, user: str) -> list[str]:
    """The error of a job that would put too many processes on one node."""
    there = (node.device_count for node in state.nodes.values() if node.runs_jobs_of(user))
    most = most_on_a_node(spec.roles, max(there, default=0))
    if most <= TASKS_MAX:
        return []
    return [f"roles: {most:,} processes would stand on one node, which takes {TASKS_MAX}; lower their count"]


def command_problems(spec: JobSpec, caller: Caller, state: LiveState) -> list[str]:
    """Reasons why a node could not start the job, found at submission already."""
    job = LiveJob(
        job_id="1", sequence=0, spec=spec, user=caller.name, uid=caller.uid, submit_s=0.0, phase=Phase.STARTING,
        since_s=0.0, tasks=_foreseen(spec, state),
    )  # fmt: skip
    meeting = meeting_of(job)
    try:
        for task in meeting.masters.values():
            protocol.encode(start_of(job, task, 1, meeting))
    except LocalProtocolError as error:
        told = str(error).removeprefix("START cannot be sent: ").removeprefix("no frame of this protocol: ")
        return [f"a node can't be told to start it, which puts all that it needs into one message: {told}"]
    return []


def _foreseen(spec: JobSpec, state: LiveState) -> tuple[LiveTask, ...]:
    """Its processes, as long as they can get: all at the node with the longest address."""
    address = max((node.address for node in state.nodes.values()), key=len, default="")
    one = LiveTask(job_id="1", start=1, rank=0, node="n", gpus=(0,), address=address, port=FIRST_PORT)
    standing = (structs.replace(one, role=role.name, role_rank=at) for role in spec.roles for at in range(role.count))
    return tuple(standing) or (one,)
