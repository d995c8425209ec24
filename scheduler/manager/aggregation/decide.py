"""Decisions of shared aggregation: from what the log says to the next entries. PURE.

How it works
  `next_events` is asked after each entry that may matter, and answers with one kind of decision at a time, the most
  urgent first: moves that are complete, owners that are gone, jobs that have none, nodes that are to be left, then
  where jobs stay. All of it follows from state and time: who takes the lead decides as the one before would have.

  Where a job stays is decided by `scheduler/sharing/aggregation/`: a placement is made anew from the owners that the
  log has, and asked. A job's tasks are its runs of equal chunks, cut where one alone would be too much for balance.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from farside.agent.messages import ORDER_BYTES_MAX, PLANS_MAX
from farside.scheduler.manager.aggregation.orders import OrderRoom, full_words
from farside.scheduler.manager.aggregation.state import (
    CLUSTER_MAX,
    NOBODY,
    PROFILE_ITERATIONS,
    Aggregation,
    AssignedRun,
    Cause,
    ChunksAssigned,
    Event,
    JobChunks,
    PoolNode,
    PoolSized,
    Run,
    Step,
    stepped,
)
from farside.scheduler.sharing.aggregation.cost import Cost
from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Placement, Profile, Refused
from farside.scheduler.sharing.aggregation.tasks import Task, tasks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregationRules:
    """How the pool is kept.

    Attributes:
        loss_limit: Share of its speed that no job loses by sharing.
        fill: Share of an Aggregator's cores that is planned.
        cycle_multiple: A cycle is at most so many of the longest iterations.
        period_s: Time after which Aggregators without chunks are given back, but for those needed on average.
        keep_s: A job without processes keeps its chunks so long.
    """

    loss_limit: float = 0.1
    fill: float = 0.9
    cycle_multiple: int = 4
    period_s: float = 300.0
    keep_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node that offers an Aggregator. ``free_cpus``: that no job asked for; with those that the pool has."""

    node: str
    cores: int
    is_up: bool = True
    is_taking: bool = True
    has_gpus: bool = False
    free_cpus: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class WantingJob:
    """A job that wants shared aggregation. ``idle_s``: since when it has no processes; infinite: it has."""

    job_id: str
    start: int
    nodes: frozenset[str] = frozenset()
    idle_s: float = math.inf

    @property
    def is_active(self) -> bool:
        """Whether it has processes."""
        return self.idle_s == math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """All that decisions rest on."""

    state: Aggregation
    sites: Mapping[str, Site]
    jobs: Mapping[str, WantingJob]
    now_s: float
    rules: AggregationRules = field(default_factory=AggregationRules)

    def site(self, number: int) -> Site | None:
        """The node of an Aggregator that lives; None: it does not."""
        site = self.sites.get(self.state.node_of(number))
        return site if site is not None and site.is_up and site.cores else None

    def has_memory(self, node: str, job: JobChunks, size_bytes: int) -> bool:
        """Whether a node's Aggregator has the memory for these bytes of a job, beside those of others."""
        offer, number = self.state.offers.get(node), self.state.numbers.get(node, NOBODY)
        if offer is None or not offer.memory_bytes:
            return True
        others = (one for one in self.state.jobs.values() if one.job_id != job.job_id and number in one.owners)
        held = sum(one.needed_bytes(one.held(number)[1]) for one in others)
        return held + job.needed_bytes(size_bytes) <= offer.memory_bytes

    def has_place(self, node: str, job: JobChunks, size_bytes: int) -> bool:
        """Whether chunks of a job may come to a node's Aggregator: it has the memory, and its order the room.

        Half of the order is left to jobs with members there, and to moves, which cut plans into more parts.
        """
        number = self.state.numbers.get(node, NOBODY)
        others = [one for one in self.state.jobs.values() if one.job_id != job.job_id and number in one.owners]
        told_bytes = sum(one.plan_bytes for one in others)
        is_short = len(others) < PLANS_MAX // 2 and told_bytes + job.plan_bytes <= ORDER_BYTES_MAX // 2
        return is_short and self.has_memory(node, job, size_bytes)

    def full_node(self, job: JobChunks, steps: Sequence[AssignedRun]) -> str:
        """A node whose order has no room for a job's plan once these moves are done; empty: there is none."""
        runs = job.runs
        for step in steps:
            runs = stepped(runs, AssignedRun(step.first, step.count, Step.OWN, step.owner), 0)
        then = replace(job, runs=runs)
        room = OrderRoom(self.state, {name: view.nodes for name, view in self.jobs.items() if view.is_active})
        nodes = self.jobs[job.job_id].nodes | {self.state.node_of(number) for number in then.owners}
        return room.lacking(job.job_id, nodes, then.plan_bytes)

    def is_usable(self, number: int) -> bool:
        """Whether chunks may come to it."""
        site = self.site(number)
        return site is not None and site.is_taking and site.node in self.state.pool


@dataclass(frozen=True, slots=True)
class _Free:
    """An Aggregator without chunks that a job may get; ``is_new``: the pool does not have it yet."""

    number: int
    node: str
    cores: int
    is_new: bool


def next_events(outlook: Outlook) -> tuple[Event, ...]:
    """The next decisions; none: there is nothing to decide."""
    state = outlook.state
    if not (state.jobs or state.pool):
        return ()
    for rule in (_settled, _released, _rescued, _first_groups, _emptied, _placed, _reverted, _recycled, _sized):
        found = tuple(rule(outlook))
        if found:
            return found
    return ()


def next_wake_s(outlook: Outlook) -> float:
    """When to ask again though nothing has happened; infinite: never."""
    state, rules = outlook.state, outlook.rules
    idle = (outlook.jobs[name].idle_s for name, job in state.jobs.items() if job.owners)
    ends = [since_s + rules.keep_s for since_s in idle if since_s < math.inf]
    if state.pool.keys() - {state.node_of(number) for number in state.in_use()}:
        ends.append(state.begin_s + rules.period_s)
    return min(ends, default=math.inf)


def admission(outlook: Outlook, job_id: str) -> str:
    """Why a job can't have the Aggregators that it asked for; empty: it can [autops §4.3.3.5]."""
    state, servers = outlook.state, outlook.state.wanting.get(job_id, 0)
    if not servers:
        return ""
    usable = [one for one in outlook.sites.values() if one.is_up and one.is_taking and one.cores]
    usable = [one for one in usable if one.node in state.pool or one.free_cpus >= one.cores]
    taken = {state.node_of(number) for number in state.in_use()}
    expected = sum(
        state.wanting[other]
        for other, view in outlook.jobs.items()
        if other != job_id and view.is_active and not (other in state.jobs and state.jobs[other].is_assigned)
    )
    free = max(0, sum(one.node not in taken for one in usable) - expected)
    if servers <= free:
        return ""
    return f"waits for Aggregators: it asks for {servers}, and {free} of {len(usable)} that can be had are free"


# ---------------------------------------------------------------------------------------------- moves


def _settled(outlook: Outlook) -> Iterator[Event]:
    """Moves that are complete, and those of which an end came anew."""
    for job in outlook.state.jobs.values():
        done = [run for run in job.runs if run.is_copied and run.is_pushed and not run.broken]
        if done:
            steps = tuple(_step(run, Step.COMMIT, run.next_owner) for run in done)
            yield _assigned(job, Cause.COMMITTED, steps, "its chunks are at their next Aggregators")
            return
        broken = [run for run in job.runs if run.broken and run.next_owner != NOBODY]
        if broken:
            steps = tuple(_step(run, Step.OWN, run.next_owner if run.broken == "here" else run.owner) for run in broken)
            yield _assigned(job, Cause.BROKEN, steps, "an Aggregator began anew during a move")
            return


def _released(outlook: Outlook) -> Iterator[Event]:
    for job in outlook.state.jobs.values():
        view = outlook.jobs[job.job_id]
        if job.owners and not view.is_active and view.idle_s + outlook.rules.keep_s <= outlook.now_s:
            steps = (AssignedRun(0, job.count, Step.RELEASE),)
            yield _assigned(job, Cause.RELEASED, steps, f"no processes for {outlook.rules.keep_s:g} s")
            return


def _rescued(outlook: Outlook) -> Iterator[Event]:
    """Chunks of which the owner, or the next one, is gone."""
    for job in outlook.state.jobs.values():
        gone = {number for number in job.owners if outlook.site(number) is None}
        if not gone:
            continue
        withdrawn = [run for run in job.runs if run.next_owner in gone and run.owner not in gone]
        inherited = [run for run in job.runs if run.owner in gone and run.next_owner not in {NOBODY, *gone}]
        orphans = [run for run in job.runs if run.owner in gone and run.next_owner in {NOBODY, *gone}]
        steps = [_step(run, Step.OWN, run.owner) for run in withdrawn]
        steps += [_step(run, Step.OWN, run.next_owner) for run in inherited]
        sized, others = _elsewhere(outlook, job, orphans, without=gone)
        steps += [AssignedRun(first, count, Step.OWN, owner) for first, count, owner in others]
        if steps:
            yield from sized
            named = ", ".join(sorted(filter(None, map(outlook.state.node_of, gone))))
            yield _assigned(job, Cause.LOST, steps, f"the Aggregator of {named} is gone")
            return


def _emptied(outlook: Outlook) -> Iterator[Event]:
    """Chunks at nodes that are to be left. What was on its way there stays where it is."""
    for job in outlook.state.jobs.values():
        if not outlook.jobs[job.job_id].is_active:
            continue  # nobody would push to the next owner; they are released soon, or come back
        leaving = {number for number in job.owners if not outlook.is_usable(number)}
        named = ", ".join(sorted(filter(None, map(outlook.state.node_of, leaving))))
        # Jobs that left one Aggregator together fit on one again: what is known of them says so.
        is_known = job.is_placed and job.is_known and not job.is_moving
        if leaving and job.owners == leaving and is_known:
            placed = tuple(_place(outlook, job, Cause.LEAVING, f"{named} is to be left"))
            if placed:
                yield from placed
                return
        back = [run for run in job.runs if run.next_owner in leaving]
        steps = [_step(run, Step.OWN, run.owner) for run in back]
        away = [run for run in job.runs if run.owner in leaving and run.next_owner == NOBODY]
        sized, others = _elsewhere(outlook, job, away, without=leaving)
        steps += [AssignedRun(first, count, Step.MOVE, owner) for first, count, owner in others]
        if steps:
            yield from sized
            yield _assigned(job, Cause.LEAVING, steps, f"{named} is to be left")
            return


def _elsewhere(
    outlook: Outlook, job: JobChunks, runs: Sequence[Run], *, without: Iterable[int]
) -> tuple[list[Event], list[tuple[int, int, int]]]:
    """For chunks that have to go somewhere: nodes that the pool takes for that, and runs with their new owners.

    As many new Aggregators as the job leaves; where there are none, the least loaded of those there are.
    """
    if not runs:
        return [], []
    left = {run.owner for run in runs}
    size_bytes = sum(job.bytes_of(run.first, run.count) for run in runs)
    free = [one for one in _free(outlook, job) if outlook.has_place(one.node, job, size_bytes)][: len(left)]
    held = _held_bytes(outlook.state)
    used = [number for number in _shared(outlook, job, size_bytes) if number not in without]
    # A job that loses one of several has the others already; one that loses its only one shares before it waits.
    chosen = [one.number for one in free] or used
    if not chosen:
        return [], []
    found = []
    for run in _cut(job, runs):
        owner = min(chosen, key=lambda number: (held[number], number))
        held[owner] += job.bytes_of(run.first, run.count)
        found.append((run.first, run.count, owner))
    taken = [one for one in free if one.is_new and any(owner == one.number for _, _, owner in found)]
    return _grown(outlook, taken, f"job {job.job_id} needs another Aggregator"), found


# ---------------------------------------------------------------------------------------------- places


def _first_groups(outlook: Outlook) -> Iterator[Event]:
    """Aggregators of its own for a job that has none, as many as it asked for, to measure what it needs."""
    for job in outlook.state.jobs.values():
        if any(run.owner != NOBODY for run in job.runs) or not outlook.jobs[job.job_id].is_active:
            continue
        each_bytes = -(-job.size_bytes // job.servers)
        free = [one for one in _free(outlook, job) if outlook.has_place(one.node, job, each_bytes)][: job.servers]
        held = _held_bytes(outlook.state)
        used = _shared(outlook, job, job.size_bytes)
        chosen = [one.number for one in free] or sorted(used, key=lambda number: (held[number], number))[: job.servers]
        if not chosen:
            continue
        group = dict.fromkeys(chosen, 0)
        steps = []
        for task in sorted(tasks_of(job.chunks), key=lambda task: (-task.size_bytes, task.first)):
            owner = min(group, key=lambda number: (group[number], chosen.index(number)))
            group[owner] += task.size_bytes
            steps.append(AssignedRun(task.first, task.count, Step.OWN, owner))
        yield from _grown(outlook, [one for one in free if one.is_new], f"job {job.job_id} begins")
        yield _assigned(job, Cause.PROFILING, steps, f"on Aggregators of its own for {PROFILE_ITERATIONS} iterations")
        return


def _placed(outlook: Outlook) -> Iterator[Event]:
    """Jobs that were measured go where they stay."""
    for job in outlook.state.jobs.values():
        if not (job.is_placed or job.is_moving) and _may_move(outlook, job) and job.is_known:
            yield from _place(outlook, job, Cause.PLACED, f"measured over {job.iterations} iterations")
            return


def _reverted(outlook: Outlook) -> Iterator[Event]:
    """Jobs whose place costs somebody too much are placed anew, away from the Aggregator that they fill most."""
    state, limit = outlook.state, outlook.rules.loss_limit
    for job in state.jobs.values():
        slowed = [
            state.jobs[name]
            for name, seen in job.watched.items()
            if name in state.jobs and seen.iteration_s and not state.jobs[name].accepted
            and 1 - state.jobs[name].alone_s / seen.iteration_s >= limit
        ]  # fmt: skip
        if not slowed or job.is_moving or not _may_move(outlook, job):
            continue
        other = slowed[0]
        lost = 1 - other.alone_s / job.watched[other.job_id].iteration_s
        reason = f"job {other.job_id} lost {100 * lost:.0f} % of its speed"
        shared = (other.owners & job.owners) if other is not job else job.owners
        if len(job.avoided) < job.servers and shared:
            held = Counter({number: job.held(number)[1] for number in shared})
            avoids = max(shared, key=lambda number: (held[number], -number))
            events = list(_place(outlook, job, Cause.REVERTED, reason, avoids=avoids, other=other.job_id))
            if events:
                yield from events
                return
        yield _assigned(job, Cause.ACCEPTED, (), f"{reason}, and no other place helps", other=other.job_id)
        return


def _may_move(outlook: Outlook, job: JobChunks) -> bool:
    return outlook.jobs[job.job_id].is_active and job.is_assigned and all(map(outlook.is_usable, job.owners))


def _place(
    outlook: Outlook, job: JobChunks, cause: Cause, reason: str, *, avoids: int = NOBODY, other: str = ""
) -> Iterator[Event]:
    """The best place for a job that is known; nothing but for `Cause.PLACED`, if there is no other than it has."""
    why = ""
    forbidden = {*job.avoided, avoids} - {NOBODY}
    for cluster in _clusters(outlook, job):
        placement = _placement(outlook, cluster, job.job_id)
        free = [one for one in _free(outlook, job) if _cluster(one.cores, one.number) == cluster]
        free = [one for one in free if one.number not in forbidden and one.number not in placement.aggregators]
        free = [one for one in free if outlook.has_place(one.node, job, -(-job.size_bytes // job.servers))]
        away = {number for number in placement.aggregators if not _is_shareable(outlook, number, job.job_id)}
        away |= set(placement.aggregators) - set(_shared(outlook, job, job.size_bytes))
        base = placement.next_number
        answer = placement.add(
            _profile(job), new_max=len(free), forbidden=forbidden | away, near=_near(outlook, job, placement)
        )
        if isinstance(answer, Refused):
            why = why or answer.reason
            continue
        new = {base + at: one for at, one in enumerate(free)}
        tasks = tasks_of(job.chunks)
        owners = [new[owner].number if owner in new else owner for owner in placement.owners(job.job_id)]
        steps = _moves(job, tasks, owners)
        if cause is not Cause.PLACED and not steps:
            return
        if full := outlook.full_node(job, steps):
            why = why or full_words(full)
            continue
        used = {one.number for one in new.values() if one.number in owners and one.is_new}
        yield from _grown(outlook, [one for one in free if one.number in used], f"job {job.job_id} needs it")
        yield _assigned(job, cause, steps, reason if steps else "", avoids=avoids, other=other)
        return
    if cause is Cause.PLACED:
        yield _assigned(job, cause, (), why or "no Aggregator can be had")


def _recycled(outlook: Outlook) -> Iterator[Event]:
    """After a job has left: Aggregators whose chunks fit on others are emptied, the least loaded first."""
    state = outlook.state
    if state.left <= state.recycled or any(job.is_moving for job in state.jobs.values()):
        return
    placed = [job for job in state.jobs.values() if job.is_placed and _may_move(outlook, job)]
    for cluster in sorted({_cluster_of(outlook, number) for job in placed for number in job.owners}):
        placement = _placement(outlook, cluster, "")
        apart = {number for number in placement.aggregators if not _is_shareable(outlook, number, "")}
        if apart or not placement.recycle():
            continue
        for job in placed:
            if job.job_id not in placement.profiles:
                continue
            owners = placement.owners(job.job_id)
            steps = _moves(job, tasks_of(job.chunks), owners)
            if steps and not set(owners) & set(job.avoided) and not outlook.full_node(job, steps):
                yield _assigned(job, Cause.RECYCLED, steps, "an Aggregator can be done without")
                return  # one job at a time: the next decision rests on where this one is


def _sized(outlook: Outlook) -> Iterator[Event]:
    """Nodes whose Aggregators the pool gives back, or that offer another number of cores."""
    state, used = outlook.state, outlook.state.in_use()
    idle = [one for one in state.pool.values() if one.number not in used]
    gone = {one.node for one in idle if not outlook.is_usable(one.number)}
    is_over = bool(idle) and outlook.now_s >= state.begin_s + outlook.rules.period_s
    if is_over:
        # A mean of whole numbers that differs in its last bits is no need for one more.
        needed = math.ceil(state.mean_used(outlook.now_s) - 1e-9) - len(used)
        spare = sorted((one for one in idle if one.node not in gone), key=lambda one: one.number)
        gone |= {one.node for one in spare[max(0, needed) :]}
    kept = [one for one in state.pool.values() if one.node not in gone]
    now = [PoolNode(node=one.node, number=one.number, cores=_cores(outlook, one)) for one in kept]
    # At the end of a period also if all stay: the next one begins.
    if is_over or now != list(state.pool.values()):
        yield PoolSized(nodes=tuple(now), reason=f"{len(used)} of {len(state.pool)} Aggregators have chunks")


# ---------------------------------------------------------------------------------------------- parts


def _cores(outlook: Outlook, held: PoolNode) -> int:
    site = outlook.site(held.number)
    return held.cores if site is None else site.cores


def _cluster(cores: int, number: int) -> tuple[int, int]:
    """Aggregators of one cluster have the same cores: a placement knows one capacity."""
    return cores, number // CLUSTER_MAX


def _cluster_of(outlook: Outlook, number: int) -> tuple[int, int]:
    return _cluster(outlook.state.cores_of(outlook.state.node_of(number)), number)


def _clusters(outlook: Outlook, job: JobChunks) -> list[tuple[int, int]]:
    """Where a job could be, the cluster with the least free time that is enough first, as the pool of the simulator.

    Free time is measured by cores without work; where nothing of it is left, most first.
    """
    state = outlook.state
    load: defaultdict[tuple[int, int], float] = defaultdict(float)
    room: Counter[tuple[int, int]] = Counter()
    for held in state.pool.values():
        room[_cluster(held.cores, held.number)] += held.cores
    for other in state.jobs.values():
        if other.job_id != job.job_id and other.is_known:
            for number in other.owners:
                load[_cluster_of(outlook, number)] += other.work_s(*other.held(number)) / other.alone_s
    needed = job.work_s(job.count, job.size_bytes) / job.alone_s
    for one in _free(outlook, job):
        room[_cluster(one.cores, one.number)] += one.cores * one.is_new
    free = {cluster: cores * outlook.rules.fill - load[cluster] for cluster, cores in room.items()}
    enough = sorted((left, cluster) for cluster, left in free.items() if left >= needed)
    others = sorted(((left, cluster) for cluster, left in free.items() if left < needed), reverse=True)
    return [cluster for _, cluster in (*enough, *others)]


def _placement(outlook: Outlook, cluster: tuple[int, int], without: str) -> Placement:
    """The jobs that are placed in a cluster, where they are or are about to be, without one."""
    rules = outlook.rules
    limits = Limits(
        loss_limit=rules.loss_limit,
        capacity=cluster[0] * rules.fill,
        job_capacity=rules.fill,  # an Aggregator serves each job by one thread
        cycle_multiple=rules.cycle_multiple,
    )
    placement = Placement(limits)
    for name, job in sorted(outlook.state.jobs.items()):
        if name != without and job.is_placed and job.is_known and job.is_assigned:
            owners = targets(job)
            if all(_cluster_of(outlook, number) == cluster for number in owners):
                placement.restore(_profile(job), owners)
    placement.settle(max(outlook.state.numbers.values(), default=-1) + 1)
    return placement


def _is_shareable(outlook: Outlook, number: int, job_id: str) -> bool:
    """Whether jobs may come to an Aggregator: its node stays, and nobody is being measured there."""
    others = (job for name, job in outlook.state.jobs.items() if name != job_id and number in job.owners)
    return outlook.is_usable(number) and all(job.is_placed for job in others)


def _shared(outlook: Outlook, job: JobChunks, size_bytes: int) -> list[int]:
    """Aggregators with chunks of others that have the memory for these bytes of a job as well."""
    used = (number for number in sorted(outlook.state.in_use()) if outlook.is_usable(number))
    return [number for number in used if outlook.has_place(outlook.state.node_of(number), job, size_bytes)]


def _near(outlook: Outlook, job: JobChunks, placement: Placement) -> int | None:
    """The Aggregator on the node of all its members, where there is one: memory is shared with it."""
    nodes = outlook.jobs[job.job_id].nodes
    number = outlook.state.numbers.get(next(iter(nodes)), NOBODY) if len(nodes) == 1 else NOBODY
    return number if number in placement.aggregators else None


def _free(outlook: Outlook, job: JobChunks) -> Iterator[_Free]:
    """Aggregators that nobody else has: first those of the job, of its nodes, of the pool, of nodes without GPUs."""
    state, near = outlook.state, outlook.jobs[job.job_id].nodes
    taken = {number for other in state.jobs.values() if other.job_id != job.job_id for number in other.owners}
    number = max(state.numbers.values(), default=-1) + 1

    def rank(site: Site) -> tuple[object, ...]:
        is_own = state.numbers.get(site.node, NOBODY) in job.owners
        return (not is_own, site.node not in near, site.node not in state.pool, site.has_gpus, site.node)

    for site in sorted(outlook.sites.values(), key=rank):
        if not (site.is_up and site.is_taking and site.cores):
            continue
        if site.node in state.pool:
            held = state.pool[site.node]
            if held.number not in taken and held.number not in job.avoided:
                yield _Free(held.number, site.node, held.cores, False)
        elif site.free_cpus >= site.cores:
            known = state.numbers.get(site.node)
            yield _Free(number if known is None else known, site.node, site.cores, True)
            number += known is None


def _grown(outlook: Outlook, taken: Sequence[_Free], reason: str) -> list[Event]:
    if not taken:
        return []
    new = (PoolNode(node=one.node, number=one.number, cores=one.cores) for one in taken)
    return [PoolSized(nodes=(*outlook.state.pool.values(), *new), reason=reason)]


def _profile(job: JobChunks) -> Profile:
    cost = job.cost or Cost()
    tasks_s = tuple(cost.work_s(task.count, task.size_bytes * job.members) for task in tasks_of(job.chunks))
    return Profile(job=job.job_id, iteration_s=job.alone_s, tasks_s=tasks_s, servers=job.servers)


def targets(job: JobChunks) -> list[int]:
    """For each task of a job the Aggregator that has its first chunk once all moves are done."""
    return [next(run.target for run in job.runs if run.first <= task.first < run.end) for task in tasks_of(job.chunks)]


def _moves(job: JobChunks, tasks: Sequence[Task], owners: Sequence[int]) -> tuple[AssignedRun, ...]:
    """The moves of chunks that are elsewhere; those next to each other are one."""
    found: list[AssignedRun] = []
    for task, owner in zip(tasks, owners, strict=True):
        for run in job.runs:
            first, end = max(run.first, task.first), min(run.end, task.first + task.count)
            if first >= end or run.owner == owner:
                continue
            last = found[-1] if found else None
            if last is not None and (last.first + last.count, last.owner) == (first, owner):
                found[-1] = AssignedRun(last.first, last.count + end - first, Step.MOVE, owner)
            else:
                found.append(AssignedRun(first, end - first, Step.MOVE, owner))
    return tuple(found)


def _cut(job: JobChunks, runs: Iterable[Run]) -> Iterator[Run]:
    """Runs cut where tasks end."""
    for run in runs:
        for task in tasks_of(job.chunks):
            first, end = max(run.first, task.first), min(run.end, task.first + task.count)
            if first < end:
                yield Run(first=first, count=end - first, owner=run.owner)


def _held_bytes(state: Aggregation) -> Counter[int]:
    """Bytes that each Aggregator has, or will have."""
    held: Counter[int] = Counter()
    for job in state.jobs.values():
        for run in job.runs:
            held[run.target] += job.bytes_of(run.first, run.count)
    return held


def _step(run: Run, step: Step, owner: int) -> AssignedRun:
    return AssignedRun(run.first, run.count, step, owner)


def _assigned(
    job: JobChunks, cause: Cause, steps: Iterable[AssignedRun], reason: str, *, avoids: int = NOBODY, other: str = ""
) -> ChunksAssigned:
    return ChunksAssigned(
        job_id=job.job_id, start=job.start, cause=cause, steps=tuple(steps), reason=reason, avoids=avoids, other=other
    )
