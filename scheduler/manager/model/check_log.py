"""Checks of any log: the invariants that must hold, tested from the log alone. PURE.

It shares no code with what decides and applies: a fault there shall not hide itself here.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from farside.agent.messages import EndKind
from farside.scheduler.manager.model import event as log
from farside.scheduler.power.state import Phase

_Process = tuple[str, int, int]  # job, start, rank
# So much longer than its grace a job may take until its last process is reported gone: it is killed, and its agent
# says so.
LEAVING_S = 30.0


@dataclass(slots=True)
class _Job:
    may_be_cancelled: bool  # it waits for others, or somebody asked for its end
    is_colocated: bool = False
    workers: tuple[int, int] = (1, 1)  # nodes that a co-located one may have, fewest and most
    places: tuple[log.NodeAllocation, ...] = ()  # given, and not started on yet
    nodes: list[tuple[str, ...]] = field(default_factory=list)  # of each start, by rank
    started_at: int = 0
    is_started: bool = False
    is_stopping: bool = False
    is_over: bool = False
    grace_s: float = 0.0
    swap_bytes_per_gpu: float = 0.0
    memory_bytes_per_gpu: float = 0.0
    host: str = ""  # the partition that lends it its places
    asked_back_s: float = math.inf  # when that wanted them
    time_limit_s: float = 0.0  # as it was asked for
    limit_s: float = 0.0  # of its latest start that was extended, from its begin on; 0: none was
    begun_s: float = 0.0  # when its latest start was decided
    extended_s: float = 0.0  # when that was extended last
    is_timed_out: bool = False  # its agent has ended it by the limit that it knew
    ends_s: float | None = None  # what it was warned of, while that stands: it ends then, as its GPUs are idle


@dataclass(slots=True)
class _Chunk:
    """Owner and next owner by their numbers, each under its epoch, and what was reported of a move; -1: nobody."""

    owner: int = -1
    epoch: int = 0
    next_owner: int = -1
    next_epoch: int = 0
    reported: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Model:
    """What a job has declared, and who owns its chunks."""

    start: int
    declared: tuple[object, ...]
    chunks: list[_Chunk]


@dataclass(slots=True)
class _Check:
    """State of the check after the entries so far."""

    seq: int = 0
    at_s: float = 0.0
    generation: int = 0
    number: int = 1
    jobs: dict[str, _Job] = field(default_factory=dict)
    processes: dict[_Process, log.TaskAllocation] = field(default_factory=dict)  # that were not reported gone
    holders: dict[tuple[str, int], dict[str, _Process]] = field(default_factory=dict)  # by node and GPU, and by part
    boots: dict[str, str] = field(default_factory=dict)
    lost_at: dict[str, int] = field(default_factory=dict)  # the last entry by which a node was away
    drains: dict[str, int] = field(default_factory=dict)  # by node, the order to empty it that stands
    closed: set[str] = field(default_factory=set)
    offers: dict[str, int] = field(default_factory=dict)  # cores of each node's Aggregator
    pool: dict[str, int] = field(default_factory=dict)  # number of each node's Aggregator, while the pool has it
    aggregators: dict[str, int] = field(default_factory=dict)  # of all that it ever had
    models: dict[str, _Model] = field(default_factory=dict)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by co-located job, the nodes of its group
    counts_lent: bool = False  # who leads promises no more memory than donors lend
    capacity: dict[str, int] = field(default_factory=dict)  # of each node's donor, as the node said last
    bounds: dict[str, int] = field(default_factory=dict)  # the most that some of these may lend
    own_swap: dict[str, int] = field(default_factory=dict)  # what each node's own programs have swapped out
    copies: dict[str, int] = field(default_factory=dict)  # donors that have each page of a node
    away: set[str] = field(default_factory=set)  # nodes that were lost, or are off
    drained: set[str] = field(default_factory=set)
    closing: set[str] = field(default_factory=set)  # nodes that are to go off, are off or come up
    promised: dict[str, Mapping[str, int]] = field(default_factory=dict)  # by job that has begun, and its node
    taken: dict[str, Mapping[str, int]] = field(default_factory=dict)  # the same, of its nodes' own memory
    memory: dict[str, int] = field(default_factory=dict)  # of each node that says it
    epochs: dict[tuple[str, ...], int] = field(default_factory=dict)  # of the last plan's groups of several nodes
    last_epoch: int = 0


def violations(entries: Iterable[log.Entry], *, is_complete: bool = False) -> Iterator[str]:
    """Each way in which a log says that something was lost, done twice, or given to two; nothing for a sound one.

    ``is_complete``: all jobs are supposed to have ended.
    """
    check = _Check()
    for entry in entries:
        for what in _one(check, entry):
            yield f"entry {entry.seq}: {what}"
    if is_complete:
        for job_id, job in check.jobs.items():
            if not job.is_over:
                yield f"job {job_id} was lost: it never ended"


def _order(check: _Check, entry: log.Entry) -> Iterator[str]:
    """Which entry it is, when it was written, and by whom."""
    event = entry.event
    if entry.seq != check.seq + 1:
        yield f"does not follow entry {check.seq}"
    if entry.at_s < check.at_s:
        yield "is older than the one before"
    check.seq, check.at_s = entry.seq, max(check.at_s, entry.at_s)
    if isinstance(event, log.SchedulerTookLead):
        if event.generation <= check.generation:
            yield f"generation {event.generation} took the lead when {check.generation} had led"
        check.counts_lent = event.counts_lent
        check.generation = max(check.generation, event.generation)
    elif entry.generation not in (0, check.generation):
        yield f"was decided by generation {entry.generation} when {check.generation or 'none'} led"


def _one(check: _Check, entry: log.Entry) -> Iterator[str]:
    event = entry.event
    yield from _order(check, entry)
    match event:
        case log.JobSubmitted():
            _submitted(check, event)
        case log.GroupsPlanned():
            yield from _grouped(check, event)
        case log.CancelRequested():
            if event.job_id in check.jobs:
                check.jobs[event.job_id].may_be_cancelled = True
        case log.LimitExtended():
            _extended(check, event)
        case log.JobAllocated() | log.AllocationReleased():
            yield from _allocated(check, event)
        case log.JobStarted():
            yield from _started(check, event)
        case log.JobStopping():
            yield from _stopping(check, event)
        case log.JobRequeued() | log.JobEnded():
            yield from _stopped(check, event)
        case log.JobIdleWarned() | log.IdleWarningLifted():
            yield from _warned(check, event)
        case log.TaskChanged():
            yield from _task(check, event)
        case log.NodeJoined():
            if check.boots.get(event.node) != event.boot_id:
                _boot(check, event)
            check.boots[event.node] = event.boot_id
            check.away.discard(event.node)
            check.memory[event.node] = event.memory_bytes
            _lending(check, event)
        case log.NodeChanged():
            _lending(check, event)
        case log.NodeLost():
            check.lost_at[event.node] = check.seq
            check.away.add(event.node)
        case log.DrainRequested():
            if event.node in check.boots:  # of others nobody knows anything
                check.drained.add(event.node)
        case log.UndrainRequested():
            check.drained.discard(event.node)
        case log.LendingOrdered():
            _bound(check, event)
        case log.PowerChanged():
            yield from _powered(check, event)
        case log.NodeClosed():
            if check.drains.get(event.node) == event.number:
                check.closed.add(event.node)
        case _:
            yield from _aggregation(check, entry)


# ---- nodes


def _powered(check: _Check, event: log.PowerChanged) -> Iterator[str]:
    if event.generation != check.generation:
        return  # it came too late, and counts for nothing
    note = event.note
    if note.drain_number != check.drains.get(event.node, 0):
        check.closed.discard(event.node)
    check.drains[event.node] = note.drain_number
    is_open = note.phase is Phase.ON and not note.drain_number
    (check.closing.discard if is_open else check.closing.add)(event.node)
    if note.phase is Phase.OFF:
        check.lost_at[event.node] = check.seq
        check.away.add(event.node)
    if note.command not in ("soft-off", "force-off"):
        return
    if event.node not in check.closed:
        yield f"node {event.node} is ordered off, and jobs may start there"
    for process, place in check.processes.items():
        if place.node == event.node:
            yield f"node {event.node} is ordered off, and job {process[0]} runs there"
            break


def _boot(check: _Check, event: log.NodeJoined) -> None:
    for process, place in list(check.processes.items()):
        if place.node == event.node:
            _free(check, process)


# ---- memory that is lent


def _bound(check: _Check, event: log.LendingOrdered) -> None:
    check.bounds.pop(event.node, None)
    if event.lend_bytes is not None and event.node in check.boots:  # of others nobody knows anything
        check.bounds[event.node] = event.lend_bytes


def _lending(check: _Check, event: log.NodeJoined | log.NodeChanged) -> None:
    check.capacity[event.node] = 0 if event.donor is None else event.donor.capacity_bytes
    check.own_swap[event.node] = 0 if event.swap is None else event.swap.own_bytes
    check.copies[event.node] = 1 if event.swap is None else max(1, event.swap.copies)


def _promised(check: _Check, job: _Job, job_id: str) -> Iterator[str]:
    """What a job that starts is promised, beside what all were promised whose processes have not gone.

    Where others lack something, it is wrong if they lack more by the memory that it takes, not if they did before.
    """
    needs, takes = _by_node(job, job.swap_bytes_per_gpu), _by_node(job, job.memory_bytes_per_gpu)
    is_asked = any(check.promised.values()) or any(check.own_swap.values())
    is_counted = check.counts_lent and bool(needs or (takes and is_asked))
    before = {name: lacking for name, lacking, _ in _lacking(check)} if is_counted else {}
    check.promised[job_id], check.taken[job_id] = needs, takes
    if is_counted:
        what = "is promised memory" if needs else "takes memory that is promised"
        for name, lacking, words in _lacking(check):
            is_its_own = bool(needs) and (name in needs or name in ("", "twice"))
            if lacking > (0 if is_its_own else before.get(name, 0)):
                yield f"job {job_id} {what}{words}"


def _by_node(job: _Job, each_bytes: float) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for place in job.places if each_bytes else ():
        found[place.node] += math.ceil(place.gpus * each_bytes)
    return found


def _lends(check: _Check) -> dict[str, int]:
    """What donors lend: none more than the jobs on its node leave of its memory."""
    out = check.away | check.drained | check.closing
    lends = {node: min(size, check.bounds.get(node, size)) for node, size in check.capacity.items() if node not in out}
    taken: Counter[str] = Counter()
    for one in check.taken.values():
        taken.update(one)
    for node in lends.keys() & taken.keys():
        if check.memory.get(node) and taken[node]:
            lends[node] = min(lends[node], max(0, check.memory[node] - taken[node]))
    return lends


def _lacking(check: _Check) -> Iterator[tuple[str, int, str]]:
    """What is short of what all were promised: its name, how many bytes, and words."""
    lends, pages = (
        _lends(check),
        Counter({node: size for node, size in check.own_swap.items() if node not in check.away}),
    )
    for promised in check.promised.values():
        pages.update(promised)
    wanted = {node: size * check.copies.get(node, 1) for node, size in pages.items()}
    all_lend, total = sum(lends.values()), sum(wanted.values())
    if total > all_lend:
        yield "", total - all_lend, f": {total} bytes in all, and donors lend {all_lend}"
    for node, size in sorted(wanted.items()):
        others = all_lend - lends.get(node, 0)
        if size > others:
            yield node, size - others, f" on {node}: {size} bytes in all, and others lend {others}"
    twice = sum(size for node, size in pages.items() if check.copies.get(node, 1) > 1)
    largest = max(lends, key=lambda node: lends[node], default="")
    if largest and twice > all_lend - lends[largest]:
        words = f": {twice} bytes of it twice, and donors but {largest} lend too little"
        yield "twice", twice - all_lend + lends[largest], words


# ---- shared aggregation


def _aggregation(check: _Check, entry: log.Entry) -> Iterator[str]:
    match entry.event:
        case log.ServiceChanged(node=node, name="aggregator", raw=raw):
            check.offers[node] = int(json.loads(raw).get("cores", 0)) if raw else 0
        case log.ModelDeclared() as event:
            _declared(check, event)
        case log.ChunksMoved() as event:
            _moved(check, event)
        case log.ChunksAssigned() as event:
            yield from _assigned(check, event, entry.generation << 40 | entry.seq)
        case log.PoolSized() as event:
            yield from _sized(check, event)
        case _:
            pass


def _declared(check: _Check, event: log.ModelDeclared) -> None:
    job, before = check.jobs.get(event.job_id), check.models.get(event.job_id)
    if job is None or job.is_over or (before is not None and before.start >= event.start):
        return
    declared = (event.digest, event.rule, event.members, event.chunks)
    if before is not None and before.declared == declared:
        before.start = event.start
        return
    count = sum(count for count, _ in ((run.count, run.size_bytes) for run in event.chunks))
    check.models[event.job_id] = _Model(event.start, declared, [_Chunk() for _ in range(count)])


def _moved(check: _Check, event: log.ChunksMoved) -> None:
    model, number = check.models.get(event.job_id), check.aggregators.get(event.node)
    if model is None or model.start != event.start:
        return
    for what, runs in (("copied", event.copied), ("pushed", event.pushed)):
        for run in runs:
            for chunk in model.chunks[run.first : run.first + run.count]:
                if (chunk.next_owner, chunk.next_epoch) == (number, run.epoch):
                    chunk.reported.add(what)


def _assigned(check: _Check, event: log.ChunksAssigned, epoch: int) -> Iterator[str]:
    model = check.models.get(event.job_id)
    if model is None or model.start != event.start:
        return  # it came too late, and counts for nothing
    for first, count, step, owner in ((run.first, run.count, run.step, run.owner) for run in event.steps):
        where = f"chunk {first} of job {event.job_id}"
        if owner not in check.pool.values() and step != "release":
            yield f"{where} is given to Aggregator {owner}, which the pool does not have"
        if not 0 <= first < first + count <= len(model.chunks):
            yield f"{where} is assigned with {count} of {len(model.chunks)}"
        for chunk in model.chunks[first : first + count]:
            if step == "move":
                if chunk.next_owner != -1 or chunk.owner in (-1, owner):
                    yield f"{where} is to move to {owner} from {chunk.owner}, and to {chunk.next_owner}"
                chunk.next_owner, chunk.next_epoch, chunk.reported = owner, epoch, set()
                continue
            if step == "commit" and (owner != chunk.next_owner or chunk.reported != {"copied", "pushed"}):
                yield f"{where} is moved to {owner} before all of it is there"
            chunk.owner, chunk.epoch = owner, chunk.next_epoch if step == "commit" else epoch
            chunk.next_owner, chunk.next_epoch, chunk.reported = -1, 0, set()


def _sized(check: _Check, event: log.PoolSized) -> Iterator[str]:
    now = {one.node: one.number for one in event.nodes}
    if len({*now.values()}) < len(event.nodes):
        yield "two Aggregators of the pool have one number"
    for one in event.nodes:
        if check.aggregators.setdefault(one.node, one.number) != one.number:
            yield f"the Aggregator of {one.node} was {check.aggregators[one.node]} and is {one.number}"
        if one.cores > check.offers.get(one.node, 0) and one.node not in check.pool:
            yield f"the pool takes {one.cores} cores of {one.node}, which offers {check.offers.get(one.node, 0)}"
    owners = {chunk.owner for model in check.models.values() for chunk in model.chunks}
    for node, number in check.pool.items():
        if node not in now and number in owners:
            yield f"the Aggregator of {node} leaves the pool, and has chunks"
    check.pool = now


# ---- jobs


def _submitted(check: _Check, event: log.JobSubmitted) -> None:
    ids = [str(check.number)] if event.count == 1 else [f"{check.number}_{at}" for at in range(event.count)]
    check.number += 1
    least, _, most = (event.spec.workers or "1").partition("-")
    check.jobs.update(
        (
            job_id,
            _Job(
                may_be_cancelled=bool(event.spec.after),
                is_colocated=event.spec.colocate,
                grace_s=event.spec.grace_s,
                time_limit_s=event.spec.time_limit_s,
                swap_bytes_per_gpu=event.spec.swap_bytes_per_gpu,
                memory_bytes_per_gpu=event.spec.memory_bytes_per_gpu,
                workers=(int(least), int(most or least)),
            ),
        )
        for job_id in ids
    )


def _grouped(check: _Check, event: log.GroupsPlanned) -> Iterator[str]:
    check.groups, nodes = {}, set[str]()
    before, check.epochs, epochs = check.epochs, {}, set[int]()
    for group in event.groups:
        together = (group.node, *group.beside)
        for node in together:
            if node in nodes:
                yield f"node {node} has two groups"
            nodes.add(node)
            if node not in check.boots:
                yield f"a group is on node {node}, which never joined"
        for job_id in group.jobs:
            job = check.jobs.get(job_id)
            if job is None or job.is_over or not job.is_colocated:
                yield f"job {job_id} is in a group, and is no co-located job, or is over"
            elif not job.workers[0] <= len(together) <= job.workers[1]:
                yield f"job {job_id} is on {len(together)} nodes, and asked for {job.workers[0]} to {job.workers[1]}"
            if job_id in check.groups:
                yield f"job {job_id} is in two groups"
            check.groups[job_id] = together
        if len(together) == 1:
            continue
        is_new = before.get(together) != group.epoch
        if group.epoch in epochs or (is_new and group.epoch <= check.last_epoch):
            yield f"the group of {', '.join(together)} has epoch {group.epoch}, which another one had"
        epochs.add(group.epoch)
        check.epochs[together] = group.epoch
    check.last_epoch = max([check.last_epoch, *epochs])
    strangers = {*event.measuring} - check.groups.keys()
    if strangers:
        yield f"job {min(strangers)} is measured, and in no group"
    both = {*event.waiting} & check.groups.keys()
    if both:
        yield f"job {min(both)} is in a group, and waits for one"


def _allocated(check: _Check, event: log.JobAllocated | log.AllocationReleased) -> Iterator[str]:
    job = check.jobs.get(event.job_id)
    what = "was given an allocation" if isinstance(event, log.JobAllocated) else "lost its allocation"
    if job is None or job.is_over:
        yield f"job {event.job_id} {what}, and {'was never submitted' if job is None else 'had ended before'}"
        return
    if job.is_started:
        yield f"job {event.job_id} {what} while it runs"
    if isinstance(event, log.JobAllocated) and job.places:
        yield f"job {event.job_id} was given two allocations"
    if isinstance(event, log.AllocationReleased) and not job.places:
        yield f"job {event.job_id} {what}, and had none"
    job.places = event.places if isinstance(event, log.JobAllocated) else ()
    job.host = event.host if isinstance(event, log.JobAllocated) else ""
    given = [(place.node, place.gpus) for place in job.places]
    if job.places and job.is_colocated and given != [(node, 0) for node in check.groups.get(event.job_id, ())]:
        yield f"job {event.job_id} was given another place than its group's nodes, without GPUs"


def _started(check: _Check, event: log.JobStarted) -> Iterator[str]:
    job = check.jobs.get(event.job_id)
    if job is None:
        yield f"job {event.job_id} was started, and never submitted"
        return
    if job.is_started:
        yield f"job {event.job_id} was started twice"
    if job.is_over:
        yield f"job {event.job_id} was started after its end"
    if event.start != len(job.nodes) + 1:
        yield f"job {event.job_id}: start {event.start} follows start {len(job.nodes)}"
    given = Counter({place.node: place.gpus for place in job.places})
    if given != Counter(task.node for task in event.tasks for _ in task.gpus):
        yield f"job {event.job_id} was started on other GPUs than it was given"
    if job.is_colocated and [task.node for task in event.tasks] != [place.node for place in job.places]:
        yield f"job {event.job_id} was started elsewhere than on its group's nodes"
    if [task.rank for task in event.tasks] != list(range(len(event.tasks))):
        yield f"job {event.job_id} was started with ranks missing"
    yield from _promised(check, job, event.job_id)
    job.nodes.append(tuple(task.node for task in event.tasks))
    job.started_at, job.is_started, job.is_stopping, job.places = check.seq, True, False, ()
    job.ends_s, job.begun_s = None, check.at_s
    job.limit_s, job.is_timed_out = job.time_limit_s if job.limit_s else 0.0, False
    for task in event.tasks:
        if task.node not in check.boots:
            yield f"job {event.job_id} was started on node {task.node}, which never joined"
        if task.node in check.closed:
            yield f"job {event.job_id} was started on node {task.node}, which is to go off"
        process = event.job_id, event.start, task.rank
        check.processes[process] = task
        for at, gpu in enumerate(task.gpus):
            part = task.parts[at] if task.parts else ""
            held = check.holders.setdefault((task.node, gpu), {})
            for other, holder in held.items():
                if "" in (part, other) or part == other:
                    yield f"GPU {gpu} of {task.node} is given to job {event.job_id}, and job {holder[0]} holds it"
            held[part] = process


def _stopping(check: _Check, event: log.JobStopping) -> Iterator[str]:
    job = check.jobs.get(event.job_id)
    if job is None or not job.is_started or job.is_stopping or event.start != len(job.nodes):
        yield f"job {event.job_id} is ordered to stop start {event.start}, which does not run"
        return
    if event.cause is log.StopCause.CANCELLED and not job.may_be_cancelled:
        yield f"job {event.job_id} is cancelled, and nobody asked for it"
    early_s = job.begun_s + job.limit_s - check.at_s
    # The end may be decided as it is extended, and an agent that is away does not hear of that.
    knew = check.at_s > job.extended_s + LEAVING_S and not job.is_timed_out
    if event.cause is log.StopCause.TIME_LIMIT and early_s > LEAVING_S and knew:
        yield f"job {event.job_id} is ended {early_s:.0f} s before the limit to which it was extended"
    if event.cause is log.StopCause.IDLE_GPUS:
        yield from _ended_for_idle_gpus(check, job, event.job_id)
    job.is_stopping = True
    if job.host and event.cause is log.StopCause.PREEMPTED:
        job.asked_back_s = check.at_s


def _extended(check: _Check, event: log.LimitExtended) -> None:
    job = check.jobs.get(event.job_id)
    if job is not None and job.is_started and not job.is_stopping and event.start == len(job.nodes):
        job.limit_s, job.extended_s = max(job.limit_s, event.time_limit_s), check.at_s


def _warned(check: _Check, event: log.JobIdleWarned | log.IdleWarningLifted) -> Iterator[str]:
    job = check.jobs.get(event.job_id)
    if job is None or not job.is_started or job.is_stopping or event.start != len(job.nodes):
        yield f"job {event.job_id} is told of idle GPUs in start {event.start}, which does not run"
        return
    job.ends_s = event.ends_s if isinstance(event, log.JobIdleWarned) else None


def _ended_for_idle_gpus(check: _Check, job: _Job, job_id: str) -> Iterator[str]:
    job.may_be_cancelled = True
    if job.ends_s is None:
        yield f"job {job_id} is ended for idle GPUs, and was not warned"
    elif check.at_s < job.ends_s:
        yield f"job {job_id} is ended for idle GPUs {job.ends_s - check.at_s:.0f} s before the time it was told"


def _stopped(check: _Check, event: log.JobRequeued | log.JobEnded) -> Iterator[str]:
    job = check.jobs.get(event.job_id)
    if job is None or job.is_over:
        yield f"job {event.job_id} ended, and {'was never submitted' if job is None else 'had ended before'}"
        return
    ending = event.ending if isinstance(event, log.JobEnded) else None
    if job.is_started:
        if not job.is_stopping and ending is not log.Ending.DONE:
            yield f"job {event.job_id} was taken from its nodes, and never ordered to stop"
        yield from _left_behind(check, job, event.job_id)
        late_s = check.at_s - job.asked_back_s - job.grace_s
        if late_s > LEAVING_S and not any(check.lost_at.get(node, 0) > job.started_at for node in job.nodes[-1]):
            yield f"job {event.job_id} kept nodes of partition {job.host} {late_s:.0f} s longer than its grace"
        job.asked_back_s = math.inf
    elif ending is not log.Ending.CANCELLED:
        yield f"job {event.job_id} ended as {ending or 'to wait again'}, and did not run"
    if ending is log.Ending.CANCELLED and not job.may_be_cancelled:
        yield f"job {event.job_id} is cancelled, and nobody asked for it"
    job.is_started, job.is_over, job.places = False, ending is not None, ()
    check.promised.pop(event.job_id, None)
    check.taken.pop(event.job_id, None)
    if job.is_over:
        check.models.pop(event.job_id, None)


def _left_behind(check: _Check, job: _Job, job_id: str) -> Iterator[str]:
    """Processes that were not reported gone, on nodes that were never away meanwhile."""
    start = len(job.nodes)
    for rank, node in enumerate(job.nodes[-1]):
        if (job_id, start, rank) in check.processes and check.lost_at.get(node, 0) < job.started_at:
            yield f"job {job_id} was taken from its nodes, and its process {rank} on {node} is not gone"


def _task(check: _Check, event: log.TaskChanged) -> Iterator[str]:
    job = check.jobs.get(event.job_id)
    nodes = job.nodes[event.start - 1] if job is not None and 1 <= event.start <= len(job.nodes) else ()
    if not 0 <= event.rank < len(nodes) or nodes[event.rank] != event.node:
        start = f"start {event.start}, rank {event.rank}"
        yield f"node {event.node} reports a process of job {event.job_id}, {start}, that was not started there"
        return
    if job is not None and event.start == len(job.nodes) and event.kind is EndKind.TIME_LIMIT:
        job.is_timed_out = True
    if event.phase in (log.TaskPhase.EXITED, log.TaskPhase.LOST):
        _free(check, (event.job_id, event.start, event.rank))


def _free(check: _Check, process: _Process) -> None:
    place = check.processes.pop(process, None)
    if place is None:
        return
    for gpu in place.gpus:
        held = check.holders[place.node, gpu]
        check.holders[place.node, gpu] = {part: holder for part, holder in held.items() if holder != process}
