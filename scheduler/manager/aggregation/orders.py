"""Offers of Aggregators and reports of nodes as events, and what each node gets to know of plans. PURE."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Set

import msgspec
from msgspec.structs import replace

from farside.agent import messages as m
from farside.agent.aggregator.plan import AggregatorAddress, JobPlan, job_key
from farside.agent.aggregator.plan import Run as PlanRun
from farside.scheduler.manager.aggregation.state import (
    NOBODY,
    PROFILE_ITERATIONS,
    WATCHED_ITERATIONS,
    Aggregation,
    AggregationMeasured,
    ChunksMoved,
    EpochRun,
    Event,
    JobChunks,
    Measured,
    ModelDeclared,
    Offer,
    marked,
)
from farside.scheduler.sharing.aggregation.cost import Counted, fitted
from farside.scheduler.sharing.aggregation.tasks import ChunkRun
from farside.units import format_bytes

AGGREGATOR = m.AGGREGATOR
STEP = 0.05
"""A measured figure is written again when it differs by more than this share,"""
PERIOD_S = 60.0
"""and no sooner than so long after it was last written, unless a decision waits for it."""
PUSHES = 10
"""An Aggregator that has had so many gradients of each of its chunks knows what they cost."""
_OFFER = msgspec.json.Decoder(Offer)
_DECLARED = msgspec.json.Decoder(m.DeclaredModel)
_ANY_HOSTS = ("0.0.0.0", "[::]", "::", "*")


def offer_of(raw: str, *, cpus: int, memory_bytes: int) -> Offer | None:
    """The offer of a node's Aggregator as the log has it; None: it has no such service any more.

    ``cpus`` and ``memory_bytes`` are the node's; 0: not known. An offer of more is none.
    """
    try:
        offer = _OFFER.decode(raw) if raw else None
    except msgspec.MsgspecError:
        return None
    if offer is None:
        return None
    problem = ""
    if 0 < cpus < offer.cores:
        problem = f"its Aggregator says {offer.cores} cores, and the node has {cpus}; lower `cores` there"
    elif 0 < memory_bytes < offer.memory_bytes:
        said, has = format_bytes(offer.memory_bytes), format_bytes(memory_bytes)
        problem = f"its Aggregator says {said} of memory, and the node has {has}; lower `memory_bytes` there"
    return replace(offer, problem=problem, cores=0 if problem else offer.cores)


# ---------------------------------------------------------------------------------------------- node to log


def declared(state: Aggregation, node: str, told: m.Told) -> Iterator[Event]:
    """The model that a node's members declare; nothing if the log has one of this start."""
    known = state.jobs.get(told.job)
    if told.job not in state.wanting or (known is not None and known.start >= told.start):
        return
    try:
        model = _DECLARED.decode(told.raw)
    except (msgspec.MsgspecError, RecursionError):
        return
    yield ModelDeclared(
        node=node,
        job_id=told.job,
        start=told.start,
        digest=model.digest,
        rule=model.rule,
        members=model.members,
        chunks=tuple(ChunkRun(count, size_bytes) for count, size_bytes in model.chunks if count),
    )


def news_of(
    state: Aggregation, node: str, facts: m.AggregatorFacts, at_s: float, written_s: dict[str, float]
) -> Iterator[Event]:
    """What a node's Aggregator and members report that the log does not have, as far as it is worth an entry.

    ``at_s``: by the node's clock. ``written_s``: by job, when a figure of this node was written last; kept up here.
    """
    number = state.numbers.get(node, NOBODY)
    for held in facts.held:
        job = state.jobs.get(held.job)
        if job is None or job.start != held.start:
            continue
        moved = _moved(job, node, number, held)
        if moved is not None:
            yield moved
        costs = _costs(job, node, number, held, at_s - written_s.get(held.job, 0.0))
        if costs is not None:
            written_s[held.job] = at_s
            yield costs
    for told in facts.readings:
        job = state.jobs.get(told.job)
        if job is None or job.start != told.start or told.iterations < PROFILE_ITERATIONS or not told.iteration_s:
            continue
        known = job.measured.get(node, Measured())
        is_news = _is_news(known.iteration_s, told.iteration_s, at_s - written_s.get(told.job, 0.0))
        if is_news or _is_awaited(state, job, known.iterations, told.iterations):
            written_s[told.job] = at_s
            yield AggregationMeasured(
                node=node,
                job_id=told.job,
                start=told.start,
                iterations=told.iterations,
                iteration_s=told.iteration_s,
            )


def _moved(job: JobChunks, node: str, number: int, held: m.AggregatedJob) -> ChunksMoved | None:
    """How far moves are, without what the log has; None: no further."""
    found: dict[str, tuple[EpochRun, ...]] = {}
    for name, role, flags in (
        ("copied", "next_owner", {"is_copied": True}),
        ("pushed", "next_owner", {"is_pushed": True}),
        ("broken_here", "owner", {"broken": "here"}),
        ("broken_there", "owner", {"broken": "there"}),
    ):
        runs = (EpochRun(*run) for run in getattr(held, name))
        changes: Mapping[str, object] = flags
        found[name] = tuple(run for run in runs if marked(job.runs, run, **{role: number}, **changes) != job.runs)  # type: ignore[arg-type]
    if not any(found.values()):
        return None
    return ChunksMoved(node=node, job_id=held.job, start=held.start, **found)


def _costs(job: JobChunks, node: str, number: int, held: m.AggregatedJob, age_s: float) -> AggregationMeasured | None:
    """What the Aggregator takes for the job; None: not known well enough, or as the log has it."""
    known, told = job.measured.get(node, Measured()).cost, fitted(_counted(held))
    if told is None or (known is not None and 0 <= age_s < PERIOD_S):
        return None
    owned = [run for run in job.runs if run.owner == number]
    chunks, size_bytes = sum(run.count for run in owned), sum(job.bytes_of(run.first, run.count) for run in owned)
    size_bytes *= job.members
    is_enough = held.pushed_bytes >= PUSHES * size_bytes > 0
    if not is_enough or (known is not None and not known.differs(told, chunks, size_bytes, STEP)):
        return None
    return AggregationMeasured(
        node=node, job_id=held.job, start=held.start, byte_s=told.byte_s, chunk_s=told.chunk_s, basis=told.basis
    )


def _counted(held: m.AggregatedJob) -> Counted:
    if held.size_squares:
        return Counted(
            updates=held.updates,
            size_bytes=held.result_bytes,
            busy_s=held.busy_s,
            size_squares=held.size_squares,
            size_times=held.size_times,
        )
    # An Aggregator of before; what was pushed and is not summed yet is little of it.
    return Counted(updates=max(1, held.updates), size_bytes=held.pushed_bytes, busy_s=held.busy_s)


def _is_news(known: float, told: float, age_s: float) -> bool:
    return not known or (abs(told - known) > STEP * known and not 0 <= age_s < PERIOD_S)


def _is_awaited(state: Aggregation, job: JobChunks, known: int, told: int) -> bool:
    """Whether a decision waits for this number of iterations of a job."""
    watches = (one.watched.get(job.job_id) for one in state.jobs.values())
    ends = (seen.since + WATCHED_ITERATIONS for seen in watches if seen is not None and not seen.iteration_s)
    return any(known < end <= told for end in ends)


# ---------------------------------------------------------------------------------------------- log to node


def order_of(
    state: Aggregation, node: str, members: Mapping[str, Set[str]], addresses: Mapping[str, str], secret: bytes
) -> m.AggregatorOrder:
    """All plans that a node has part in, by its Aggregator or by members on it.

    Args:
        state: Of shared aggregation.
        node: The node.
        members: By job, the nodes of its members.
        addresses: By node, where it is reached.
        secret: From which the keys of jobs follow.
    """
    number = state.numbers.get(node, NOBODY)
    found: list[m.NumberedPlan] = []
    for job in _shares(state, node, members)[0]:
        own = job.numbering.index(number) if number in job.owners else None
        has_members = node in members.get(job.job_id, frozenset())
        found.append(m.NumberedPlan(plan=plan_of(state, job, addresses, secret), number=own, has_members=has_members))
    return m.AggregatorOrder(plans=tuple(found))


def untold(state: Aggregation, members: Mapping[str, Set[str]]) -> dict[str, str]:
    """Jobs whose plan is missing from a node's order, since the order is full; with the node's name.

    ``members`` as of `order_of`. Decisions keep Aggregators from that (`decide.Outlook.has_place`), so it takes a node
    with members of very many jobs.
    """
    nodes = {node for there in members.values() for node in there} | {
        state.node_of(number) for number in state.in_use()
    }
    return {job.job_id: node for node in sorted(nodes) for job in _shares(state, node, members)[1]}


class OrderRoom:
    """Room in the orders of nodes, for plans of jobs that are about to start, or to have a longer one.

    Plans have half of an order. The other half is for what can't wait: chunks that move, and those whose Aggregator is
    gone, cut a plan into more runs. A job that is in a node's order and falls out of it can't go on.
    """

    def __init__(self, state: Aggregation, members: Mapping[str, Set[str]]) -> None:
        """``members``: by job, the nodes of its members: of all that have processes, those without a model too."""
        self._state = state
        self._told: defaultdict[str, set[str]] = defaultdict(set)
        self._plans: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        for job_id, nodes in members.items():
            self.take(job_id, nodes)
        for job_id, job in state.jobs.items():
            self.take(job_id, {state.node_of(number) for number in job.owners})

    def lacking(self, job_id: str, nodes: Set[str], size_bytes: int = 0) -> str:
        """The first of these nodes whose order has no room for this job's plan; empty: all have.

        ``size_bytes``: of the plan that it is to have; 0: of the one that it has.
        """
        now_bytes = self._state.plan_bytes(job_id)
        size_bytes = size_bytes or now_bytes
        for node in sorted(nodes):
            is_told = node in self._told[job_id]
            more_bytes = size_bytes - now_bytes * is_told
            is_full = self._plans[node] + (not is_told) > m.PLANS_MAX
            if more_bytes > 0 and (is_full or self._bytes[node] + more_bytes > m.ORDER_BYTES_MAX // 2):
                return node
        return ""

    def take(self, job_id: str, nodes: Set[str]) -> None:
        """The job has a part there."""
        new = nodes - self._told[job_id]
        self._told[job_id] |= new
        for node in new:
            self._plans[node] += 1
            self._bytes[node] += self._state.plan_bytes(job_id)


def full_words(node: str) -> str:
    """That a node's order has no room for one more plan, for people."""
    most = f"{m.PLANS_MAX}, or {m.ORDER_BYTES_MAX >> 11} KiB of plans"
    return f"{node} has part in as many jobs with shared aggregation as it can be told of ({most})"


def _shares(state: Aggregation, node: str, members: Mapping[str, Set[str]]) -> tuple[list[JobChunks], list[JobChunks]]:
    """Jobs whose plans are in a node's order, and those that its order has no room for.

    The oldest first: their tasks run already.
    """
    number, left_bytes = state.numbers.get(node, NOBODY), m.ORDER_BYTES_MAX
    told: list[JobChunks] = []
    others: list[JobChunks] = []
    for job in state.jobs.values():
        if not job.is_assigned or not (number in job.owners or node in members.get(job.job_id, frozenset())):
            continue
        if others or job.plan_bytes > left_bytes or len(told) == m.PLANS_MAX:
            others.append(job)
        else:
            told.append(job)
            left_bytes -= job.plan_bytes
    return told, others


def plan_of(state: Aggregation, job: JobChunks, addresses: Mapping[str, str], secret: bytes) -> JobPlan:
    """A job's plan, the same for all that have part in it."""
    place = {number: at for at, number in enumerate(job.numbering)}
    runs: list[PlanRun] = []
    for run in job.runs:
        told = PlanRun(
            first=run.first,
            count=run.count,
            owner=place[run.owner],
            epoch=run.epoch,
            next_owner=None if run.next_owner == NOBODY else place[run.next_owner],
            next_epoch=run.next_epoch,
        )
        # How far a move is tells them nothing: it is they that tell it.
        if runs and replace(runs[-1], first=told.first, count=told.count) == told:
            runs[-1] = replace(runs[-1], count=runs[-1].count + told.count)
        else:
            runs.append(told)
    return JobPlan(
        job=job.job_id,
        start=job.start,
        key=job_key(secret, job.job_id, job.start),
        members=job.members,
        digest=job.digest,
        aggregators=tuple(_address(state, number, place[number], addresses) for number in sorted(job.owners)),
        runs=tuple(runs),
    )


def _address(state: Aggregation, number: int, place: int, addresses: Mapping[str, str]) -> AggregatorAddress:
    node = state.node_of(number)
    offer = state.offers.get(node, Offer())
    tcp = reached_at(offer.tcp, addresses.get(node, "127.0.0.1"))
    return AggregatorAddress(number=place, unix=offer.unix, tcp=tcp, machine=offer.machine)


def reached_at(tcp: str, address: str) -> str:
    """HOST:PORT where others reach what listens there on a node with this address; empty: nowhere."""
    host, _, port = tcp.rpartition(":")
    return f"{_in_brackets(address)}:{port}" if host in _ANY_HOSTS else tcp


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
