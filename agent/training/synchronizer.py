"""The synchroniser of a group: when all workers of a job have done a subtask, the next one is ready. PURE.

One in a group. All its nodes get the same order of what is ready, so that no job's iteration is the sum of its bad luck
on each of them [harmony §IV-A]. While a node is away nothing is ready and nobody waits: nobody knows what it would say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from farside.agent.training.subtask import Apart, Bound, Progress, Ready, Together, ToNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The group is now these nodes and these jobs; for each job how many workers it has."""

    epoch: int
    nodes: frozenset[str]
    jobs: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A node's link is there."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A node's link has ended or is silent."""

    node: str


Event = Progress | Members | Joined | Left


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far each worker of a job is that has been heard of under this epoch, and which position is ready."""

    workers: int
    done: Mapping[int, int] = field(default_factory=dict)
    released: int | None = None

    @property
    def next(self) -> int | None:
        """The position that all may begin; None while some worker is unknown."""
        return min(self.done.values()) + 1 if len(self.done) == self.workers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronizer:
    """All it knows. `number` is the last that was given to what is ready."""

    epoch: int = 0
    nodes: frozenset[str] = frozenset()
    there: frozenset[str] = frozenset()
    jobs: Mapping[str, JobProgress] = field(default_factory=dict)
    number: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all nodes are there."""
        return bool(self.nodes) and self.nodes <= self.there


Answer = tuple[Synchronizer, Sequence[ToNode]]


def step(state: Synchronizer, event: Event) -> Answer:
    """What follows from an event, and the messages to all nodes."""
    if isinstance(event, Progress):
        return _progress(state, event)
    if isinstance(event, Members):
        return _members(state, event)
    if isinstance(event, Joined):
        if event.node in state.there:
            return state, ()
        return _whole(replace(state, there=state.there | {event.node})) if event.node in state.nodes else (state, ())
    if event.node not in state.there:
        return state, ()
    left = replace(state, there=state.there - {event.node})
    return (left, (Apart(epoch=state.epoch),)) if state.is_whole else (left, ())


def _progress(state: Synchronizer, event: Progress) -> Answer:
    job = state.jobs.get(event.job)
    if event.epoch != state.epoch or job is None or not state.is_whole or not 0 <= event.worker < job.workers:
        return state, ()
    known = job.done.get(event.worker)
    if known is not None and event.position <= known:
        return state, ()
    was_bound = job.next is not None
    job = replace(job, done={**job.done, event.worker: event.position})
    told = list[ToNode]()
    if job.next is not None and not was_bound:
        told.append(Bound(epoch=state.epoch, job=event.job))
    state, ready = _released(replace(state, jobs={**state.jobs, event.job: job}), event.job)
    return state, (*told, *ready)


def _released(state: Synchronizer, name: str) -> Answer:
    job = state.jobs[name]
    if job.next is None or (job.released is not None and job.next <= job.released):
        return state, ()
    state = replace(state, jobs={**state.jobs, name: replace(job, released=job.next)}, number=state.number + 1)
    return state, (Ready(epoch=state.epoch, job=name, position=job.next, number=state.number),)


def _members(state: Synchronizer, event: Members) -> Answer:
    if event.epoch <= state.epoch:
        return state, ()
    jobs = {name: JobProgress(workers=workers) for name, workers in event.jobs.items()}
    return _whole(replace(state, epoch=event.epoch - 1, nodes=event.nodes, there=state.there & event.nodes, jobs=jobs))


def _whole(state: Synchronizer) -> Answer:
    """A new epoch begins, in which no worker is known before its node has spoken of it."""
    if not state.is_whole:
        return state, ()
    jobs = {name: JobProgress(workers=job.workers) for name, job in state.jobs.items()}
    state = replace(state, epoch=state.epoch + 1, jobs=jobs)
    return state, (Together(epoch=state.epoch),)
