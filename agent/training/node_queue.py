"""The queues of a node: one worker computes and one is on the network at a time, by permissions that end. PURE.

A permission ends by what its holder says, by its deadline, by its holder's death, or by a new epoch. It makes jobs
quicker and is never a condition: a worker without an executor to ask goes on without permissions [harmony §IV-A].

On the network pulls go before pushes. Computing comes after a pull, so a processor that is idle gets work; after a push
comes a pull alone. A push has to wait for one pull of each other job at most: before that job's next one comes its next
push, which is behind. A job that has pushed pulls next, so for a moment the network is kept for that. A job that gives
way gets its permission again after all who are ready at that moment, whatever they wait for.

Anybody may ask for permissions, so each owner (a user of the node) has a bound. Time in which a permission was held
without work is the owner's idle time: from `LAST_FROM_S` on its jobs come last, and from `IDLE_MOST_S` on they are let
through at once and keep nobody waiting. Idle time is forgiven slowly, as time passes. An owner that has had permissions
for `ROW_MOST_S` in a row while another one waited comes after that one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from farside.agent.training.subtask import (
    FIRST,
    LAST,
    Apart,
    Bound,
    Progress,
    Ready,
    Resource,
    Together,
    phase_of,
    resource_of,
)

Place = Literal["away", "door", "held", "late"]
UNKNOWN_LEASE_S = 60.0
LEAST_LEASE_S = 1.0
LEASE_TIMES = 4
IDLE_MOST_S = 60.0
"""Idle time of an owner from which on its jobs run without permissions."""
FORGIVEN_SHARE = 0.02
"""How much of the time that passes is taken off an owner's idle time."""
LAST_FROM_S = 1.0
"""Idle time of an owner from which on its jobs come after those of others."""
ROW_MOST_S = 60.0
"""Permissions that an owner has in a row while another one waits, by how long they may last."""
PULL_GRACE_S = 0.005
"""How long pushes of others wait for a job that has pushed to ask for its pull: longer than a kernel's time slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A worker has come: the position that it will ask for first, and whether its whole job begins there.

    ``is_only``: its job has no other worker. ``owner``: whose job it is, by which idle time is counted.
    """

    job: str
    worker: int
    position: int
    is_first: bool
    is_only: bool = False
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """A worker asks for its next subtask, having done the one before."""

    job: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A worker has done a subtask."""

    job: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Yield:
    """A worker gives its permission back, and asks for it again, behind all who are ready."""

    job: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """The time of a permission is over; `lease` is its number."""

    job: str
    lease: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullDue:
    """`PULL_GRACE_S` have passed since a job has pushed; `position` is that of the pull which follows."""

    job: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOver:
    """A job that begins has waited for all its workers for long enough."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """A worker is dead, or its job has left the group."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How long a job's steps take by now, so that its permissions last a few times as long."""

    job: str
    comp_s: float
    net_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Idled:
    """A job has held a permission for this long without work; said before what ended it, or after its deadline."""

    job: str
    held_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Time has passed, for which owners are forgiven idle time."""

    seconds: float


Event = (
    Hello
    | Want
    | Done
    | Yield
    | Deadline
    | PullDue
    | StartOver
    | Died
    | Measured
    | Idled
    | Passed
    | Ready
    | Bound
    | Together
    | Apart
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A worker may begin; without a time where nobody keeps the order."""

    job: str
    position: int
    lease: int | None
    lease_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """A worker has said what cannot be: it goes on alone."""

    job: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A subtask was done within its permission, so that its time is worth noting."""

    job: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overdue:
    """A permission has ended by its deadline."""

    job: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """The network is kept for a job's pull at this position, until that is granted or `PullDue` is taken."""

    job: str
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypassed:
    """An owner has reached `IDLE_MOST_S`: its jobs run without permissions until it is forgiven some."""

    owner: str


Output = Grant | HangUp | Served | Overdue | Pushed | Bypassed | Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A job's worker on this node.

    Attributes:
        worker: Its number in its job.
        place: `away` has and asks nothing, `door` asks, `held` has a permission, `late` had one, and has not said so.
        position: What it asks for, has or had; of `away` the last it has done.
        done: All up to this position are done.
        ready: The position that is ready, with its number.
        is_bound: Whether all workers of its job are known, so that it waits for what is ready.
        is_starting: Whether its job begins, so that it waits for all of its workers to be known.
        is_only: Whether its job has no other, so that its pull is ready once it has pushed.
        pulls_next: Whether the network is kept for its pull.
        gave_way_to: Jobs and positions that were ready when it gave way, and have had no permission since.
        lease: Number of its permission.
        lease_s: How long its permissions last, by what they are for.
        is_measured: Whether they last by what its steps take; otherwise each deadline that it meets shortens them.
        owner: Whose job it is.
    """

    worker: int
    place: Place = "away"
    position: int
    done: int
    ready: tuple[int, int] | None = None
    is_bound: bool = False
    is_starting: bool = False
    is_only: bool = False
    pulls_next: bool = False
    gave_way_to: frozenset[tuple[str, int]] = frozenset()
    lease: int | None = None
    lease_s: Mapping[Resource, float] = field(default_factory=lambda: {"cpu": UNKNOWN_LEASE_S, "net": UNKNOWN_LEASE_S})
    is_measured: bool = False
    owner: str = ""

    @property
    def waits(self) -> bool:
        """Whether it keeps the order; otherwise it is let through."""
        return self.is_bound or self.is_starting


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeQueue:
    """All that a node knows.

    Attributes:
        epoch: Of the group.
        is_apart: Whether a node of the group is away, so that all run without permissions.
        workers: By job.
        leases: How many permissions there were.
        net_permits: How many jobs may be on the network at once.
        idle_s: By owner, the time in which its jobs held permissions without work, less what is forgiven.
        rows: By resource, who had the last permission, and for how long such could last in a row while others waited.
    """

    epoch: int = 0
    is_apart: bool = True
    workers: Mapping[str, Worker] = field(default_factory=dict)
    leases: int = 0
    net_permits: int = 1
    idle_s: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[Resource, tuple[str, float]] = field(default_factory=dict)

    def lets_through(self, one: Worker) -> bool:
        """Whether a worker goes on at once, without a permission."""
        return self.is_apart or not one.waits or self.idle_s.get(one.owner, 0.0) >= IDLE_MOST_S

    def lease_s(self, one: Worker, resource: Resource) -> float:
        """How long a permission lasts: no longer than what is left of its owner's idle time."""
        return min(one.lease_s[resource], max(LEAST_LEASE_S, IDLE_MOST_S - self.idle_s.get(one.owner, 0.0)))

    def comes_last(self, one: Worker, resource: Resource) -> bool:
        """Whether jobs of other owners go first."""
        owner, row_s = self.rows.get(resource, ("", 0.0))
        return self.idle_s.get(one.owner, 0.0) > LAST_FROM_S or (owner == one.owner and row_s >= ROW_MOST_S)

    def holders(self, resource: Resource) -> list[str]:
        """Jobs that have a permission for it."""
        return [
            job for job, one in self.workers.items() if one.place == "held" and resource_of(one.position) == resource
        ]

    def ready(self, resource: Resource) -> dict[str, Worker]:
        """Workers that ask for it, and for what is ready."""
        return {
            job: one
            for job, one in self.workers.items()
            if one.place == "door"
            and one.ready is not None
            and one.ready[0] == one.position
            and resource_of(one.position) == resource
        }


Answer = tuple[NodeQueue, Sequence[Output]]


def step(state: NodeQueue, event: Event) -> Answer:
    """What follows from an event: permissions, and messages to the synchroniser and the log."""
    if isinstance(event, Together | Apart):
        return _group(state, event)
    if isinstance(event, Hello):
        return _hello(state, event)
    if isinstance(event, Passed):
        return _forgiven(state, event), ()
    one = state.workers.get(event.job)
    if one is None:
        return state, ()
    if isinstance(event, Ready | Bound):
        return _told(state, event, one)
    if isinstance(event, Measured):
        lease_s: Mapping[Resource, float] = {"cpu": _lease_s(event.comp_s), "net": _lease_s(event.net_s)}
        return _with(state, event.job, replace(one, lease_s=lease_s, is_measured=True)), ()
    if isinstance(event, Idled):
        return _idled(state, event, one)
    if isinstance(event, Died):
        rest = {job: other for job, other in state.workers.items() if job != event.job}
        return _filled(replace(state, workers=rest))
    if isinstance(event, StartOver):
        if not one.is_starting or one.is_bound:
            return state, ()
        return _let_through(_with(state, event.job, replace(one, is_starting=False)), event.job)
    if isinstance(event, Deadline | PullDue):
        return _due(state, event, one)
    return _said(state, event, one)


def _lease_s(step_s: float) -> float:
    """How long the permission for a step lasts that takes so long by now."""
    return min(UNKNOWN_LEASE_S, max(LEAST_LEASE_S, LEASE_TIMES * step_s))


def _idled(state: NodeQueue, event: Idled, one: Worker) -> Answer:
    """Counts idle time; at the bound all jobs of the owner that ask are let through."""
    before_s = state.idle_s.get(one.owner, 0.0)
    now_s = min(IDLE_MOST_S + UNKNOWN_LEASE_S, before_s + event.held_s)
    state = replace(state, idle_s={**state.idle_s, one.owner: now_s})
    if not before_s < IDLE_MOST_S <= now_s:
        return state, ()
    jobs = [job for job, other in state.workers.items() if other.owner == one.owner]
    state, told = _all_let_through(state, jobs)
    return _after(state, (Bypassed(owner=one.owner), *told))


def _forgiven(state: NodeQueue, event: Passed) -> NodeQueue:
    if not state.idle_s:
        return state
    less = {owner: idle_s - FORGIVEN_SHARE * event.seconds for owner, idle_s in state.idle_s.items()}
    return replace(state, idle_s={owner: idle_s for owner, idle_s in less.items() if idle_s > 0})


def _due(state: NodeQueue, event: Deadline | PullDue, one: Worker) -> Answer:
    """A time is over."""
    if isinstance(event, PullDue):
        if not one.pulls_next or event.position != one.done + 1:
            return state, ()
        return _filled(_with(state, event.job, replace(one, pulls_next=False)))
    if one.place != "held" or one.lease != event.lease:
        return state, ()
    lease_s = dict(one.lease_s)
    if not one.is_measured:
        resource = resource_of(one.position)
        lease_s[resource] = max(LEAST_LEASE_S, lease_s[resource] / LEASE_TIMES)
    late = replace(one, place="late", lease=None, lease_s=lease_s)
    return _after(_with(state, event.job, late), (Overdue(job=event.job, position=one.position),))


def _said(state: NodeQueue, event: Want | Done | Yield, one: Worker) -> Answer:
    """What a worker says of itself."""
    if isinstance(event, Want):
        return _want(state, event, one)
    if isinstance(event, Done):
        if one.place == "away" or event.position <= one.done:
            return state, ()
        if one.place == "door" or event.position != one.position:
            return _fault(state, event.job, f"it says that {event.position} is done")
        return _done(state, event.job, one)
    if one.place not in ("held", "late") or event.position != one.position:
        return state, ()
    ready = state.ready(resource_of(one.position))
    gave_way_to = frozenset((job, other.position) for job, other in ready.items())
    state = _with(state, event.job, replace(one, place="door", lease=None, gave_way_to=gave_way_to))
    if state.lets_through(one):
        return _after(*_let_through(state, event.job))
    return _filled(state)


def _hello(state: NodeQueue, event: Hello) -> Answer:
    if not FIRST <= event.position <= LAST:
        return state, (HangUp(job=event.job, why=f"there is no position {event.position}"),)
    # One that was here before is dead, whatever it held.
    one = Worker(
        worker=event.worker, position=event.position - 1, done=event.position - 1, is_starting=event.is_first,
        is_only=event.is_only, owner=event.owner,
    )  # fmt: skip
    return _after(_with(state, event.job, one), (_progress(state, event.job, one),))


def _want(state: NodeQueue, event: Want, one: Worker) -> Answer:
    if one.place == "door" and event.position == one.position:
        return state, ()
    if one.place in ("held", "late") and event.position == one.position + 1:
        state, told = _done(state, event.job, one)
        state, more = _want(state, event, state.workers[event.job])
        return state, (*told, *more)
    if one.place != "away" or event.position <= one.done or event.position > LAST:
        return _fault(state, event.job, f"it asks for {event.position} at {one.position}")
    one = replace(one, place="door", position=event.position, done=event.position - 1, gave_way_to=frozenset())
    state = _with(state, event.job, one)
    told = (_progress(state, event.job, one),)
    if state.lets_through(one):
        state, more = _let_through(state, event.job)
        return _after(state, (*told, *more))
    return _after(state, told)


def _done(state: NodeQueue, job: str, one: Worker) -> Answer:
    told: tuple[Output, ...] = (Served(job=job, position=one.position),) if one.place == "held" else ()
    pulls_next = one.is_only and one.place == "held" and _pushes(one)
    if pulls_next:
        told = (*told, Pushed(job=job, position=one.position + 1))
    one = replace(one, place="away", done=one.position, lease=None, pulls_next=pulls_next)
    state = _with(state, job, one)
    return _after(state, (*told, _progress(state, job, one)))


def _told(state: NodeQueue, event: Ready | Bound, one: Worker) -> Answer:
    if event.epoch != state.epoch or state.is_apart:
        return state, ()
    if isinstance(event, Bound):
        return _with(state, event.job, replace(one, is_bound=True, is_starting=False)), ()
    # One that has a permission may yet give way, and then asks for the same position once more.
    if one.ready is not None and event.position <= one.ready[0]:
        return state, ()
    return _filled(_with(state, event.job, replace(one, ready=(event.position, event.number))))


def _group(state: NodeQueue, event: Together | Apart) -> Answer:
    if isinstance(event, Apart):
        if event.epoch < state.epoch or state.is_apart:
            return state, ()
        return _all_let_through(replace(state, is_apart=True), list(state.workers))
    if event.epoch <= state.epoch:
        return state, ()
    workers = {job: replace(one, ready=None, is_bound=False) for job, one in state.workers.items()}
    state = replace(state, epoch=event.epoch, is_apart=False, workers=workers)
    told: list[Output] = [_progress(state, job, one) for job, one in workers.items()]
    # Until all workers of a job are known each is let through: one may sit in a pull that waits for another's push. A
    # job that begins waits for all of them instead.
    state, more = _all_let_through(state, [job for job, one in workers.items() if not one.is_starting])
    return _after(state, [*told, *more])


def _all_let_through(state: NodeQueue, jobs: Sequence[str]) -> Answer:
    told = list[Output]()
    for job in jobs:
        state, more = _let_through(state, job)
        told += more
    return state, told


def _let_through(state: NodeQueue, job: str) -> Answer:
    """Lets a worker that asks go on without a deadline; one that has a permission keeps it, and its deadline."""
    one = state.workers[job]
    if one.place != "door":
        return state, ()
    state = _with(state, job, replace(one, place="away", pulls_next=False))
    return state, (Grant(job=job, position=one.position, lease=None, lease_s=None),)


def _fault(state: NodeQueue, job: str, why: str) -> Answer:
    rest = {name: one for name, one in state.workers.items() if name != job}
    return _after(replace(state, workers=rest), (HangUp(job=job, why=why),))


def _after(state: NodeQueue, told: Sequence[Output]) -> Answer:
    """First the messages there are, then what is free is given."""
    state, more = _filled(state)
    return state, (*told, *more)


def _filled(state: NodeQueue) -> Answer:
    """What is free is given to those at the door, in order."""
    told = list[Output]()
    for resource in ("cpu", "net"):
        permits = 1 if resource == "cpu" else state.net_permits
        while len(state.holders(resource)) < permits and (job := _first_at_door(state, resource)) is not None:
            one, number = state.workers[job], state.leases + 1
            lease_s = state.lease_s(one, resource)
            rows: Mapping[Resource, tuple[str, float]] = {
                **state.rows,
                resource: _row(state, resource, one.owner, lease_s),
            }
            held = replace(one, place="held", lease=number, pulls_next=False)
            state = replace(_with(_waited_for(state, job, one.position), job, held), leases=number, rows=rows)
            told.append(Grant(job=job, position=one.position, lease=number, lease_s=lease_s))
    return state, told


def _row(state: NodeQueue, resource: Resource, owner: str, lease_s: float) -> tuple[str, float]:
    """The owner that gets a permission now, and how long its permissions in a row may last while another waits."""
    if all(one.owner == owner for one in state.ready(resource).values()):
        return owner, 0.0
    before, row_s = state.rows.get(resource, ("", 0.0))
    return owner, lease_s + (row_s if before == owner else 0.0)


def _waited_for(state: NodeQueue, job: str, position: int) -> NodeQueue:
    """Nobody is behind this one any more: should it give way itself, it will be behind those."""
    workers = {
        name: replace(one, gave_way_to=one.gave_way_to - {(job, position)}) if one.gave_way_to else one
        for name, one in state.workers.items()
    }
    return replace(state, workers=workers)


def _first_at_door(state: NodeQueue, resource: Resource) -> str | None:
    """The job that gets the next permission: pulls before pushes, then the one that has been ready longest.

    Jobs of an owner that has had more than its part come after all of these. One that gave way is behind those to whom
    it did. None: no job that asks may have it now.
    """
    is_kept = resource == "net" and any(one.pulls_next for one in state.workers.values())
    ready = state.ready(resource)
    asked = {(job, one.position) for job, one in ready.items()}
    first = [
        (state.comes_last(one, resource), _pushes(one), one.ready[1], job)
        for job, one in ready.items()
        if one.ready is not None and not (is_kept and _pushes(one)) and not one.gave_way_to & asked
    ]
    return min(first)[3] if first else None


def _pushes(one: Worker) -> bool:
    return phase_of(one.position) in ("PUSH", "INIT_PUSH")


def _progress(state: NodeQueue, job: str, one: Worker) -> Progress:
    return Progress(epoch=state.epoch, job=job, worker=one.worker, position=one.done)


def _with(state: NodeQueue, job: str, one: Worker) -> NodeQueue:
    return replace(state, workers={**state.workers, job: one})
