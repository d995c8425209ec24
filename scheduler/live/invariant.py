"""What must hold of any log, checked from the log alone. PURE.

It shares no code with what decides and applies: a fault there shall not hide itself here.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from farside.scheduler.live.event import (
    Entry,
    JobEnded,
    JobRequeued,
    JobStarted,
    JobSubmitted,
    NodeClosed,
    NodeJoined,
    PowerChanged,
    TaskChanged,
    TaskPhase,
)

_Holder = tuple[str, int, int]  # job, start, rank


@dataclass(slots=True)
class _Job:
    starts: int = 0
    is_started: bool = False
    is_over: bool = False


@dataclass(slots=True)
class _Check:
    """What the log has said so far."""

    seq: int = 0
    at_s: float = 0.0
    generation: int = 0
    number: int = 1
    jobs: dict[str, _Job] = field(default_factory=dict)
    holders: dict[tuple[str, int], _Holder] = field(default_factory=dict)  # by node and GPU
    boots: dict[str, str] = field(default_factory=dict)
    drains: dict[str, int] = field(default_factory=dict)  # by node, the order to empty it that stands
    closed: set[str] = field(default_factory=set)


def violations(entries: Iterable[Entry], *, is_complete: bool = False) -> Iterator[str]:
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


def _one(check: _Check, entry: Entry) -> Iterator[str]:
    if entry.seq <= check.seq:
        yield f"comes after entry {check.seq}"
    if entry.at_s < check.at_s:
        yield "is older than the one before"
    if entry.generation and entry.generation < check.generation:
        yield f"was decided by generation {entry.generation} when {check.generation} led"
    check.seq, check.at_s = entry.seq, max(check.at_s, entry.at_s)
    check.generation = max(check.generation, entry.generation)
    match entry.event:
        case JobSubmitted():
            _submitted(check, entry.event)
        case JobStarted():
            yield from _started(check, entry.event)
        case JobRequeued() | JobEnded():
            yield from _stopped(check, entry.event)
        case TaskChanged():
            _task(check, entry.event)
        case NodeJoined():
            if check.boots.get(entry.event.node) != entry.event.boot_id:
                _boot(check, entry.event)
            check.boots[entry.event.node] = entry.event.boot_id
        case PowerChanged():
            yield from _powered(check, entry.event)
        case NodeClosed():
            if check.drains.get(entry.event.node) == entry.event.number:
                check.closed.add(entry.event.node)
        case _:
            pass


def _powered(check: _Check, event: PowerChanged) -> Iterator[str]:
    if event.generation != check.generation:
        return  # it came too late, and counts for nothing
    note = event.note
    if note.drain_number != check.drains.get(event.node, 0):
        check.closed.discard(event.node)
    check.drains[event.node] = note.drain_number
    if note.command not in ("soft-off", "force-off"):
        return
    if event.node not in check.closed:
        yield f"node {event.node} is told to go off, and jobs may start there"
    for (node, _), holder in check.holders.items():
        if node == event.node:
            yield f"node {event.node} is told to go off, and job {holder[0]} runs there"
            break


def _boot(check: _Check, event: NodeJoined) -> None:
    _free(check, lambda node, _: node == event.node)


def _submitted(check: _Check, event: JobSubmitted) -> None:
    ids = [str(check.number)] if event.count == 1 else [f"{check.number}_{at}" for at in range(event.count)]
    check.number += 1
    check.jobs.update((job_id, _Job()) for job_id in ids)


def _started(check: _Check, event: JobStarted) -> Iterator[str]:
    job = check.jobs.get(event.job_id)
    if job is None:
        yield f"job {event.job_id} was started, and never submitted"
        return
    if job.is_started:
        yield f"job {event.job_id} was started twice"
    if job.is_over:
        yield f"job {event.job_id} was started after its end"
    if event.start != job.starts + 1:
        yield f"job {event.job_id}: start {event.start} follows start {job.starts}"
    job.starts, job.is_started = event.start, True
    for task in event.tasks:
        if task.node in check.closed:
            yield f"job {event.job_id} was started on node {task.node}, which is to go off"
        for gpu in task.gpus:
            holder = check.holders.get((task.node, gpu))
            if holder is not None:
                yield f"GPU {gpu} of {task.node} is given to job {event.job_id}, and job {holder[0]} holds it"
            check.holders[task.node, gpu] = (event.job_id, event.start, task.rank)


def _stopped(check: _Check, event: JobRequeued | JobEnded) -> Iterator[str]:
    job = check.jobs.get(event.job_id)
    if job is None or job.is_over:
        yield f"job {event.job_id} ended, and {'was never submitted' if job is None else 'had ended before'}"
        return
    job.is_started = False
    job.is_over = isinstance(event, JobEnded)


def _task(check: _Check, event: TaskChanged) -> None:
    if event.phase in (TaskPhase.EXITED, TaskPhase.LOST):
        key = (event.job_id, event.start, event.rank)
        _free(check, lambda node, holder: node == event.node and holder == key)


def _free(check: _Check, is_free: Callable[[str, _Holder], bool]) -> None:
    for place, holder in list(check.holders.items()):
        if is_free(place[0], holder):
            del check.holders[place]
