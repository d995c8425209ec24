"""Shared aggregation as the log says it: its events, and what follows from them for jobs and Aggregators. PURE.

How it works
  A job's model is cut into chunks, numbered from 0. Each chunk has an owner, the Aggregator of a node, by its number;
  while it moves it has a next owner as well. Chunks next to each other that are alike are one `Run`: no entry of the
  log names a chunk alone.

  An owner has its chunks under an epoch: generation of the scheduler process and place of the entry that named it. A
  move gives the next owner its epoch at once, and the entry that completes the move keeps it; every other change of
  owner has a new one. So epochs grow by themselves, also after a backup was restored.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct, field
from msgspec.structs import replace

from farside.scheduler.sharing.aggregation.cost import Basis, Cost, mean_cost
from farside.scheduler.sharing.aggregation.tasks import TASKS_MAX, ChunkRun

NOBODY = -1
EPOCH_SHIFT = 40
WATCHED_ITERATIONS = 100
"""After a change, so many iterations of each job concerned are looked at before it is judged [autops §4.3.3.2]."""
PROFILE_ITERATIONS = 20
"""So many iterations of a new job on Aggregators of its own say what it needs."""
CLUSTER_MAX = 50
"""Aggregators of one cluster; a job has all its chunks in one [autops §4.3.3.4]."""
CHUNKS_MAX = 65_536
# Bytes that an Aggregator needs for each byte of a member's gradients: parameters and the optimizer's state, of the
# version served and of the one that is made (`kmod_shim/engine/aggregator.c`).
_NEEDED = {"sgd": 4, "adam": 6, "adamw": 6}
# What a node is told of a job takes at most so many bytes (`orders.plan_of`): names, digest and key; an address with a
# path of 108 characters; a run that stays, and one that moves.
_PLAN_BYTES, _ADDRESS_BYTES, _RUN_BYTES, _MOVE_BYTES = 640, 480, 72, 124
MEMBERS_MAX = 64
"""Members of one job, as the engine has it."""
OWNERS_MAX = 64
"""Aggregators of one job: its members hold a lane to each."""


class EpochRun(Struct, frozen=True, array_like=True):
    """Chunks of one epoch, as an Aggregator reports them."""

    first: int
    count: int
    epoch: int


class Step(StrEnum):
    """What an assignment does with chunks."""

    OWN = "own"  # this Aggregator owns them from here on, under a new epoch; a move that was under way is withdrawn
    MOVE = "move"  # it is to own them next
    COMMIT = "commit"  # it owns them: what was to move is there
    RELEASE = "release"  # nobody owns them


class AssignedRun(Struct, frozen=True, array_like=True):
    """What becomes of chunks next to each other; ``owner`` is `NOBODY` where they are released."""

    first: int
    count: int
    step: Step
    owner: int = NOBODY


class Cause(StrEnum):
    """Why chunks are assigned."""

    PROFILING = "profiling"  # a new job: Aggregators of its own, until it is known what it needs
    PLACED = "placed"  # where it stays
    REVERTED = "reverted"  # somebody lost too much by it
    ACCEPTED = "accepted"  # somebody loses too much, and nothing can be done
    COMMITTED = "committed"  # a move is complete
    BROKEN = "broken"  # an end of a move came anew
    LOST = "lost"  # an owner, or a next one, is gone
    LEAVING = "leaving"  # the node of an owner drains, or is to sleep
    RECYCLED = "recycled"  # an Aggregator can be done without
    RELEASED = "released"  # the job has no processes any more


class PoolNode(Struct, frozen=True, kw_only=True):
    """A node whose Aggregator the pool has: its number for ever, and its cores that jobs' processes do not get."""

    node: str
    number: int
    cores: int


# ---------------------------------------------------------------------------------------------- told


class ModelDeclared(Struct, frozen=True, kw_only=True):
    """The members of a start of a job say what is to be aggregated: chunks in their order, and what becomes of them."""

    node: str
    job_id: str
    start: int
    digest: str
    rule: str
    members: int
    chunks: tuple[ChunkRun, ...]


class ChunksMoved(Struct, frozen=True, kw_only=True):
    """An Aggregator reports how far moves are; each run with the epoch under which this Aggregator has it."""

    node: str
    job_id: str
    start: int
    copied: tuple[EpochRun, ...] = ()
    pushed: tuple[EpochRun, ...] = ()
    broken_here: tuple[EpochRun, ...] = ()  # the owner came anew during the move, which ends at the next owner
    broken_there: tuple[EpochRun, ...] = ()  # the next owner came anew, and the move ends at the owner


class AggregationMeasured(Struct, frozen=True, kw_only=True):
    """A node reports what a start of a job needs; 0: it can't say.

    ``iterations`` were done by its members, of which the last took ``iteration_s``. ``byte_s`` and ``chunk_s``: CPU
    seconds that its Aggregator takes for each byte that a member pushes, and for each chunk; ``basis``: how they were
    found.
    """

    node: str
    job_id: str
    start: int
    iterations: int = 0
    iteration_s: float = 0.0
    byte_s: float = 0.0
    chunk_s: float = 0.0
    basis: Basis = Basis.UNTOLD


# ---------------------------------------------------------------------------------------------- decided


class ChunksAssigned(Struct, frozen=True, kw_only=True):
    """Chunks of a job get other owners. ``other``: the job that a loss is accepted of, or was too large."""

    job_id: str
    start: int
    cause: Cause
    steps: tuple[AssignedRun, ...]
    reason: str
    other: str = ""
    avoids: int = NOBODY  # an Aggregator that the job does not come back to


class PoolSized(Struct, frozen=True, kw_only=True):
    """The nodes whose Aggregators the pool has from here on: all of them."""

    nodes: tuple[PoolNode, ...]
    reason: str


Event = ModelDeclared | ChunksMoved | AggregationMeasured | ChunksAssigned | PoolSized

# ---------------------------------------------------------------------------------------------- what follows


class Run(Struct, frozen=True, kw_only=True):
    """Chunks next to each other with the same owner, under one epoch, and the same next one.

    ``is_copied``, ``is_pushed``: the next owner has their contents; all members push to it. ``broken``: an end of the
    move came anew: ``here`` the owner, ``there`` the next one.
    """

    first: int
    count: int
    owner: int = NOBODY
    epoch: int = 0
    next_owner: int = NOBODY
    next_epoch: int = 0
    is_copied: bool = False
    is_pushed: bool = False
    broken: str = ""

    @property
    def end(self) -> int:
        """The chunk behind the last."""
        return self.first + self.count

    @property
    def target(self) -> int:
        """Who owns them once all moves are done."""
        return self.owner if self.next_owner == NOBODY else self.next_owner


class Offer(Struct, frozen=True, kw_only=True):
    """What a node's Aggregator offers, and where it is reached; ``machine`` is equal on one host. 0 cores: nothing.

    ``problem``: why what it says it offers is not taken. ``takes_grants``: it serves jobs whose key alone it is told.
    """

    cores: int = 0
    memory_bytes: int = 0
    unix: str = ""
    tcp: str = ""
    machine: str = ""
    problem: str = ""
    takes_grants: bool = False


class Measured(Struct, frozen=True, kw_only=True):
    """The last that a node has said of a job."""

    iterations: int = 0
    iteration_s: float = 0.0
    byte_s: float = 0.0
    chunk_s: float = 0.0
    basis: Basis = Basis.UNTOLD
    at_s: float = 0.0

    @property
    def cost(self) -> Cost | None:
        """What the node's Aggregator takes for the job; None: it has not said."""
        if not (self.byte_s or self.chunk_s):
            return None
        return Cost(chunk_s=self.chunk_s, byte_s=self.byte_s, basis=self.basis)


class Seen(Struct, frozen=True, kw_only=True):
    """A job that is watched since a change: from which iteration on, and how long an iteration took; 0: not yet."""

    since: int
    iteration_s: float = 0.0


class JobChunks(Struct, frozen=True, kw_only=True):
    """A job that has declared its model.

    Attributes:
        start: The start of the job that declared it last.
        servers: Aggregators that its user asked for.
        runs: Who owns which chunks, in their order, all of them.
        is_placed: It is where it stays; before that it is alone on Aggregators, and measured.
        measured: By node.
        alone_s: Seconds of an iteration on Aggregators of its own: the paper's D_j; 0: not known.
        watched: By job, those that may have become slower by its placement.
        avoided: Aggregators that it was taken away from, in this placement.
        accepted: Share of its speed that it loses, which is accepted; 0: nothing is.
        problem: Why it could not be placed; empty: it is, or was not tried.
        numbering: The Aggregators that it ever had. Its members and Aggregators know each by its place here.
    """

    job_id: str
    start: int
    servers: int
    digest: str
    rule: str
    members: int
    chunks: tuple[ChunkRun, ...]
    runs: tuple[Run, ...]
    is_placed: bool = False
    measured: Mapping[str, Measured] = field(default_factory=dict)
    alone_s: float = 0.0
    watched: Mapping[str, Seen] = field(default_factory=dict)
    avoided: tuple[int, ...] = ()
    accepted: float = 0.0
    problem: str = ""
    numbering: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Chunks."""
        return self.runs[-1].end

    @property
    def size_bytes(self) -> int:
        """Bytes of one member's gradients."""
        return sum(run.count * run.size_bytes for run in self.chunks)

    def needed_bytes(self, size_bytes: int) -> int:
        """Memory that an Aggregator needs for chunks of this size."""
        return size_bytes * _NEEDED.get(self.rule, 1)

    @property
    def plan_bytes(self) -> int:
        """Upper bound of the bytes that its plan takes in a node's order."""
        runs = sum(_RUN_BYTES if run.next_owner == NOBODY else _MOVE_BYTES for run in self.runs)
        return _PLAN_BYTES + _ADDRESS_BYTES * len(self.owners) + runs

    @property
    def iterations(self) -> int:
        """Those that all members have done, as far as is known."""
        return min((one.iterations for one in self.measured.values() if one.iterations), default=0)

    @property
    def iteration_s(self) -> float:
        """Seconds of an iteration lately, of the slowest member; 0: not known."""
        return max((one.iteration_s for one in self.measured.values()), default=0.0)

    @property
    def cost(self) -> Cost | None:
        """What Aggregators take for its chunks, on average; None: not known."""
        return mean_cost([one.cost for one in self.measured.values() if one.cost is not None])

    @property
    def is_known(self) -> bool:
        """Whether it has been measured: an iteration alone, and what aggregation costs."""
        return self.alone_s > 0 and self.cost is not None

    def work_s(self, chunks: int, size_bytes: int) -> float:
        """CPU seconds that chunks of this size, of one member, take in an iteration; 0: not known."""
        cost = self.cost
        return 0.0 if cost is None else cost.work_s(chunks, size_bytes * self.members)

    def bytes_of(self, first: int, count: int) -> int:
        """Bytes of chunks next to each other."""
        found, at = 0, 0
        for run in self.chunks:
            found += max(0, min(at + run.count, first + count) - max(at, first)) * run.size_bytes
            at += run.count
        return found

    def held(self, number: int) -> tuple[int, int]:
        """Chunks, and their bytes, that an Aggregator has once all moves are done."""
        runs = [run for run in self.runs if run.target == number]
        return sum(run.count for run in runs), sum(self.bytes_of(run.first, run.count) for run in runs)

    @property
    def owners(self) -> frozenset[int]:
        """Aggregators that own chunks of it, or are to."""
        return frozenset({run.owner for run in self.runs} | {run.next_owner for run in self.runs}) - {NOBODY}

    @property
    def is_assigned(self) -> bool:
        """Whether each of its chunks has an owner."""
        return all(run.owner != NOBODY for run in self.runs)

    @property
    def is_moving(self) -> bool:
        """Whether a move is under way."""
        return any(run.next_owner != NOBODY for run in self.runs)


class Aggregation(Struct, kw_only=True):
    """All of it at one entry of the log.

    Attributes:
        wanting: Jobs that are not over and want shared aggregation, with the Aggregators that each asked for.
        jobs: Those that have declared a model.
        offers: By node.
        pool: By node, those whose Aggregators the pool has.
        numbers: By node, of every Aggregator that the pool ever had.
        version: Grows with each change of what nodes are told.
        left: The last entry with which a job left.
        recycled: The last entry with which chunks were gathered after that.
        used_s: Aggregators with chunks, times seconds, from ``begin_s`` to ``since_s``: of this period.
    """

    wanting: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, JobChunks] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)
    pool: dict[str, PoolNode] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    version: int = 0
    left: int = 0
    recycled: int = 0
    begin_s: float = 0.0
    since_s: float = 0.0
    used_s: float = 0.0

    def plan_bytes(self, job_id: str) -> int:
        """Upper bound of what a job's plan takes in a node's order; of one without owners, once it has its first."""
        job, servers = self.jobs.get(job_id), self.wanting.get(job_id, 1)
        if job is not None and job.is_assigned:
            return job.plan_bytes
        return _PLAN_BYTES + _ADDRESS_BYTES * servers + _RUN_BYTES * (1 if servers == 1 else TASKS_MAX)

    def node_of(self, number: int) -> str:
        """The node of an Aggregator; empty: the pool never had it."""
        return next((node for node, known in self.numbers.items() if known == number), "")

    def cores_of(self, node: str) -> int:
        """Cores of a node that the pool has."""
        held = self.pool.get(node)
        return 0 if held is None else held.cores

    def in_use(self) -> frozenset[int]:
        """Aggregators that own chunks, or are to."""
        return frozenset(number for job in self.jobs.values() for number in job.owners)

    def mean_used(self, now_s: float) -> float:
        """Aggregators with chunks on average since the period began."""
        used_s = self.used_s + len(self.in_use()) * (now_s - self.since_s)
        length_s = now_s - self.begin_s
        return used_s / length_s if length_s > 0 else float(len(self.in_use()))

    # ---- what other events mean for it

    def want(self, job_id: str, servers: int) -> None:
        """A job was submitted that wants shared aggregation."""
        self.wanting[job_id] = servers

    def forget(self, job_id: str, seq: int, at_s: float) -> None:
        """A job is over."""
        self.wanting.pop(job_id, None)
        if job_id in self.jobs:
            self._pass(at_s)
            del self.jobs[job_id]
            self.left = seq
            self.version += 1

    def offered(self, node: str, offer: Offer | None) -> None:
        """What a node's Aggregator offers; None: nothing any more."""
        if offer is None:
            self.offers.pop(node, None)
        else:
            self.offers[node] = offer
        self.version += 1

    # ---- its own events

    def take(self, event: Event, seq: int, generation: int, at_s: float) -> str:
        """Moves on by one of its events; returns why a decided one does not fit, empty where all is well.

        What was told and makes no sense changes nothing, nor does an assignment for a start that is over by now.
        """
        if isinstance(event, ModelDeclared):
            self._declare(event)
        elif isinstance(event, ChunksMoved):
            self._note_moves(event)
        elif isinstance(event, AggregationMeasured):
            self._measure(event, at_s)
        elif isinstance(event, ChunksAssigned):
            return self._assign(event, seq, generation, at_s)
        else:
            return self._size(event, at_s)
        return ""

    def _declare(self, event: ModelDeclared) -> None:
        before, servers = self.jobs.get(event.job_id), self.wanting.get(event.job_id)
        count = sum(run.count for run in event.chunks)
        if servers is None or not 0 < count <= CHUNKS_MAX or (before is not None and before.start >= event.start):
            return
        said = {name: getattr(event, name) for name in ("start", "digest", "rule", "members", "chunks")}
        if before is not None and all(getattr(before, name) == said[name] for name in said if name != "start"):
            # The same model: its contents are still where they were, and this start goes on from them.
            now = replace(before, start=event.start, measured={})
        else:
            runs = (Run(first=0, count=count),)
            now = JobChunks(job_id=event.job_id, servers=servers, runs=runs, **said)
        self.jobs[event.job_id] = now
        self.version += 1

    def _note_moves(self, event: ChunksMoved) -> None:
        job, number = self.jobs.get(event.job_id), self.numbers.get(event.node, NOBODY)
        if job is None or job.start != event.start:
            return
        runs = job.runs
        for name in ("copied", "pushed"):
            for told in getattr(event, name):
                runs = marked(runs, told, next_owner=number, **{f"is_{name}": True})
        for told in event.broken_here:
            runs = marked(runs, told, owner=number, broken="here")
        for told in event.broken_there:
            runs = marked(runs, told, owner=number, broken="there")
        self.jobs[job.job_id] = replace(job, runs=runs)

    def _measure(self, event: AggregationMeasured, at_s: float) -> None:
        job = self.jobs.get(event.job_id)
        if job is None or job.start != event.start:
            return
        before = job.measured.get(event.node, Measured())
        costs = event if event.byte_s or event.chunk_s else before
        now = Measured(
            iterations=event.iterations or before.iterations,
            iteration_s=event.iteration_s or before.iteration_s,
            byte_s=costs.byte_s,
            chunk_s=costs.chunk_s,
            basis=costs.basis,
            at_s=at_s,
        )
        job = replace(job, measured={**job.measured, event.node: now})
        # One that is not placed yet is alone; later it can only show that it was slower then than it need be.
        if job.iterations >= PROFILE_ITERATIONS and (not job.is_placed or job.iteration_s < 0.95 * job.alone_s):
            job = replace(job, alone_s=job.iteration_s)
        self.jobs[job.job_id] = job
        for placed in list(self.jobs.values()):
            seen = placed.watched.get(job.job_id)
            if seen is None or seen.iteration_s or job.iterations < seen.since + WATCHED_ITERATIONS:
                continue
            watched = {**placed.watched, job.job_id: replace(seen, iteration_s=job.iteration_s)}
            self.jobs[placed.job_id] = replace(placed, watched=watched)

    def _assign(self, event: ChunksAssigned, seq: int, generation: int, at_s: float) -> str:
        job = self.jobs.get(event.job_id)
        if job is None or job.start != event.start:
            return ""  # it declared another model, or began anew, a moment ago
        known = {one.number for one in self.pool.values()}
        runs, epoch = job.runs, generation << EPOCH_SHIFT | seq
        for step in event.steps:
            problem = "" if step.step is Step.RELEASE or step.owner in known else f"{step.owner} is not in the pool"
            problem = problem or _misfit(runs, step)
            if problem:
                return f"job {job.job_id}, chunk {step.first}: {problem}"
            runs = stepped(runs, step, epoch)
        self._pass(at_s)
        self.jobs[job.job_id] = renumbered(replace(job, runs=runs))
        self._judge(self.jobs[job.job_id], event)
        if event.cause is Cause.RECYCLED:
            self.recycled = seq
        if event.cause is Cause.RELEASED:
            self.left = seq
        self.version += 1
        return ""

    def _judge(self, job: JobChunks, event: ChunksAssigned) -> None:
        """What an assignment says of a job's place besides its owners."""
        match event.cause:
            case Cause.PLACED | Cause.REVERTED:
                # Its alone_s is known by now: without it there is no such entry.
                avoided = job.avoided if event.cause is Cause.REVERTED else ()
                avoided = avoided if event.avoids == NOBODY else (*avoided, event.avoids)
                problem = "" if event.steps or event.cause is Cause.REVERTED else event.reason
                job = replace(job, is_placed=True, avoided=avoided, problem=problem, watched=self._near(job))
            case Cause.ACCEPTED:
                seen, slowed = job.watched.get(event.other), self.jobs.get(event.other)
                self.jobs[job.job_id] = replace(job, watched={})
                if slowed is not None and seen is not None and seen.iteration_s:
                    lost = max(1 - slowed.alone_s / seen.iteration_s, 1e-9)
                    self.jobs[event.other] = replace(self.jobs[event.other], accepted=lost)
                return
            case Cause.LOST | Cause.LEAVING | Cause.RECYCLED:
                job = replace(job, watched=self._near(job) if job.is_placed else {})
            case Cause.RELEASED:
                job = replace(job, is_placed=False, watched={}, avoided=(), accepted=0.0, alone_s=0.0, problem="")
            case _:
                return
        self.jobs[job.job_id] = job

    def _near(self, job: JobChunks) -> dict[str, Seen]:
        """The job, and those that share an Aggregator with it, but for those whose loss was accepted."""
        near = (one for one in self.jobs.values() if one.owners & job.owners and not one.accepted)
        return {one.job_id: Seen(since=one.iterations) for one in near}

    def _size(self, event: PoolSized, at_s: float) -> str:
        now = {one.node: one for one in event.nodes}
        numbers = Counter(one.number for one in event.nodes)
        for one in event.nodes:
            if self.numbers.get(one.node, one.number) != one.number or numbers[one.number] > 1:
                return f"the Aggregator of {one.node} has another number"
        gone = {one.number for name, one in self.pool.items() if name not in now} & self.in_use()
        if gone:
            return f"{self.node_of(min(gone))} leaves the pool and has chunks"
        self._pass(at_s)
        self.begin_s, self.used_s = at_s, 0.0
        self.pool = now
        self.numbers |= {one.node: one.number for one in event.nodes}
        self.version += 1
        return ""

    def _pass(self, at_s: float) -> None:
        self.used_s += len(self.in_use()) * (at_s - self.since_s)
        self.since_s = at_s


# ---------------------------------------------------------------------------------------------- runs


def _misfit(runs: Sequence[Run], step: AssignedRun) -> str:
    """Why chunks can't be assigned so; empty: they can."""
    if not (0 <= step.first < step.first + step.count <= runs[-1].end):
        return f"there are {runs[-1].end} chunks"
    for run in _within(runs, step.first, step.count):
        if step.step is Step.MOVE and (run.next_owner != NOBODY or run.owner in (NOBODY, step.owner)):
            return "it can't move now"
        if step.step is Step.COMMIT and (run.next_owner != step.owner or not (run.is_copied and run.is_pushed)):
            return "its move is not complete"
    return ""


def renumbered(job: JobChunks) -> JobChunks:
    """The job with a number of its own for each of its Aggregators; once all are given, those of past ones again."""
    numbering = list(job.numbering)
    for number in sorted(job.owners - set(numbering)):
        if len(numbering) < OWNERS_MAX:
            numbering.append(number)
        else:
            numbering[next(at for at, past in enumerate(numbering) if past not in job.owners)] = number
    return replace(job, numbering=tuple(numbering))


def stepped(runs: Sequence[Run], step: AssignedRun, epoch: int) -> tuple[Run, ...]:
    """The runs after a step."""
    return _changed(runs, step.first, step.count, lambda run: _after(run, step, epoch))


def _after(run: Run, step: AssignedRun, epoch: int) -> Run:
    if step.step is Step.MOVE:
        return replace(run, next_owner=step.owner, next_epoch=epoch)
    if step.step is Step.COMMIT:
        epoch = run.next_epoch
    elif step.step is Step.RELEASE:
        return Run(first=run.first, count=run.count)
    return Run(first=run.first, count=run.count, owner=step.owner, epoch=epoch)


def marked(
    runs: Sequence[Run], told: EpochRun, *, owner: int = NOBODY, next_owner: int = NOBODY, **flags: bool | str
) -> tuple[Run, ...]:
    """The runs with flags, where the owner or the next one has them under the reported epoch."""

    def change(run: Run) -> Run:
        if run.next_owner == NOBODY:
            return run
        fits = (run.owner, run.epoch) == (owner, told.epoch) or (run.next_owner, run.next_epoch) == (
            next_owner,
            told.epoch,
        )
        return replace(run, **flags) if fits else run

    if not (0 <= told.first < told.first + told.count <= runs[-1].end):
        return tuple(runs)
    return _changed(runs, told.first, told.count, change)


def _within(runs: Iterable[Run], first: int, count: int) -> Iterator[Run]:
    return (run for run in runs if run.first < first + count and first < run.end)


def _changed(runs: Sequence[Run], first: int, count: int, change: Callable[[Run], Run]) -> tuple[Run, ...]:
    """The runs with those of some chunks changed; neighbours that are alike become one."""
    found: list[Run] = []
    end = first + count
    for run in runs:
        cuts = sorted({run.first, run.end, *(at for at in (first, end) if run.first < at < run.end)})
        for begin, behind in pairwise(cuts):
            part = replace(run, first=begin, count=behind - begin)
            _append(found, change(part) if first <= begin < end else part)
    return tuple(found)


def _append(found: list[Run], run: Run) -> None:
    if found and replace(found[-1], first=run.first, count=run.count) == run:
        found[-1] = replace(found[-1], count=found[-1].count + run.count)
    else:
        found.append(run)
