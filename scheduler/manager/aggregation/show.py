"""Shared aggregation as people see it: the API, the page, the command line, and `farside explain`. PURE."""

from collections.abc import Callable, Iterator, Mapping, Set

from msgspec import Struct

from farside.agent.messages import ORDER_BYTES_MAX, AggregatedJob, AggregatorFacts
from farside.scheduler.manager.aggregation.orders import untold
from farside.scheduler.manager.aggregation.state import NOBODY, PROFILE_ITERATIONS, Aggregation, JobChunks
from farside.scheduler.sharing.aggregation.cost import WORDS
from farside.units import format_bytes

ROWS_MAX = 300


class AggregatorRow(Struct, frozen=True, kw_only=True):
    """A node's Aggregator.

    ``cores`` are those that the pool has, or that it offers where ``is_in_pool`` is false. ``planned_pct``: what the
    jobs on it need of its cores; null: not known. ``used_bytes``: null where its agent is not connected here.
    ``problem``: why what it offers is not taken; empty: it is.
    """

    node: str
    is_in_pool: bool
    cores: int
    memory_bytes: int
    used_bytes: int | None
    planned_pct: float | None
    chunks: int
    jobs: list[str]
    problem: str = ""


class AggregatedJobRow(Struct, frozen=True, kw_only=True):
    """A job that aggregates.

    ``state``: ``declaring`` (its members have not said their model), ``measured`` (on Aggregators of its own),
    ``placed`` or ``moving``. ``iteration_s`` lately, ``alone_s`` without others, ``loss_pct`` by that; null: not known.
    ``chunk_s`` and ``byte_s``: CPU seconds that its Aggregators take for each chunk, and for each byte that a member
    pushes; ``cost_note`` says where one of the two is all that is known. ``waits_for``: the rank that its Aggregators
    wait for; null: for none.
    """

    job: str
    state: str
    members: int
    aggregators: int
    nodes: list[str]
    chunks: int
    size_bytes: int
    moving_chunks: int
    iterations: int
    iteration_s: float | None
    alone_s: float | None
    loss_pct: float | None
    is_loss_accepted: bool
    waits_for: int | None
    problem: str
    chunk_s: float | None = None
    byte_s: float | None = None
    cost_note: str = ""


class AggregationReport(Struct, frozen=True, kw_only=True):
    """Shared aggregation at a glance."""

    aggregators: list[AggregatorRow] = []
    jobs: list[AggregatedJobRow] = []


def report(
    state: Aggregation,
    facts: Mapping[str, AggregatorFacts],
    may_see: Callable[[str], bool],
    words: Callable[[str], str] = str,
) -> AggregationReport:
    """The Aggregators, and the jobs that somebody may see; ``facts``: what agents that are connected said last.

    ``words``: a text as that somebody may read it.
    """
    held: dict[tuple[str, int], AggregatedJob] = {}
    for said in facts.values():
        for one in said.held:
            if one.waits_for is not None or (one.job, one.start) not in held:
                held[one.job, one.start] = one
    names = sorted({*state.pool, *(node for node, offer in state.offers.items() if offer.cores or offer.problem)})
    return AggregationReport(
        aggregators=[_aggregator(state, node, facts.get(node), may_see) for node in names[:ROWS_MAX]],
        jobs=[_job(state, job_id, held, words) for job_id in list(state.wanting)[:ROWS_MAX] if may_see(job_id)],
    )


def _aggregator(
    state: Aggregation, node: str, facts: AggregatorFacts | None, may_see: Callable[[str], bool]
) -> AggregatorRow:
    number, offer = state.numbers.get(node, NOBODY), state.offers.get(node)
    here = [job for job in state.jobs.values() if number in job.owners]
    cores = state.cores_of(node) or (0 if offer is None else offer.cores)
    return AggregatorRow(
        node=node,
        is_in_pool=node in state.pool,
        cores=cores,
        memory_bytes=0 if offer is None else offer.memory_bytes,
        used_bytes=None if facts is None else facts.used_bytes,
        planned_pct=_planned_pct(here, number, cores),
        chunks=sum(run.count for job in here for run in job.runs if run.owner == number),
        jobs=[job.job_id for job in here if may_see(job.job_id)],
        problem="" if offer is None else offer.problem,
    )


def _planned_pct(jobs: list[JobChunks], number: int, cores: int) -> float | None:
    if not cores or not all(job.is_known for job in jobs):
        return None
    needed = sum(job.work_s(*job.held(number)) / job.alone_s for job in jobs)
    return round(100 * needed / cores, 1)


def _job(
    state: Aggregation, job_id: str, held: Mapping[tuple[str, int], AggregatedJob], words: Callable[[str], str]
) -> AggregatedJobRow:
    job = state.jobs.get(job_id)
    if job is None:
        return AggregatedJobRow(
            job=job_id, state="declaring", members=0, aggregators=state.wanting[job_id], nodes=[], chunks=0,
            size_bytes=0, moving_chunks=0, iterations=0, iteration_s=None, alone_s=None, loss_pct=None,
            is_loss_accepted=False, waits_for=None, problem="",
        )  # fmt: skip
    told, lost, cost = held.get((job_id, job.start)), loss_of(job), job.cost
    return AggregatedJobRow(
        job=job_id,
        state="moving" if job.is_moving else "placed" if job.is_placed else "measured",
        members=job.members,
        aggregators=job.servers,
        nodes=[state.node_of(number) for number in sorted(job.owners)],
        chunks=job.count,
        size_bytes=job.size_bytes,
        moving_chunks=_moving(job),
        iterations=job.iterations,
        iteration_s=job.iteration_s or None,
        alone_s=job.alone_s or None,
        loss_pct=None if lost is None else round(100 * lost, 1),
        is_loss_accepted=bool(job.accepted),
        waits_for=None if told is None else told.waits_for,
        problem=words(job.problem),
        chunk_s=None if cost is None else cost.chunk_s,
        byte_s=None if cost is None else cost.byte_s,
        cost_note="" if cost is None else WORDS[cost.basis],
    )


def explain(state: Aggregation, job_id: str, members: Mapping[str, Set[str]]) -> Iterator[str]:
    """Lines about where a job's gradients are aggregated, and what it loses by that; ``members`` as of `order_of`."""
    job = state.jobs.get(job_id)
    if job is None:
        if job_id in state.wanting:
            yield "aggregation: its members have not declared a model yet"
        return
    where = ", ".join(state.node_of(number) for number in sorted(job.owners))
    if not where:
        needed = format_bytes(job.needed_bytes(job.size_bytes) / job.servers)
        yield (
            f"aggregation: no Aggregator has {needed} of memory for it and place for one more job, or none is there: "
            "see `farside aggregation`"
        )
        return
    if (node := untold(state, members).get(job_id)) is not None:
        yield f"aggregation: the order of {node} is full ({ORDER_BYTES_MAX >> 10} KiB of plans), and has not this job's"
    if not job.is_placed:
        done = min(job.iterations, PROFILE_ITERATIONS)
        yield f"aggregation: measured on {where}, {done} of {PROFILE_ITERATIONS} iterations"
    else:
        yield f"aggregation: on {where}{_loss(job)}"
    if job.is_moving:
        yield f"aggregation: {_moving(job)} of {job.count} chunks are on their way to another Aggregator"
    if job.problem:
        yield f"aggregation: it stays where it was measured: {job.problem}"


def loss_of(job: JobChunks) -> float | None:
    """Share of its speed that a job loses by sharing, as measured lately; None: not known."""
    if not (job.is_placed and job.alone_s and job.iteration_s):
        return None
    return max(0.0, 1 - job.alone_s / job.iteration_s)


def _moving(job: JobChunks) -> int:
    return sum(run.count for run in job.runs if run.next_owner != NOBODY)


def _loss(job: JobChunks) -> str:
    lost = loss_of(job)
    if lost is None:
        return ""
    accepted = ", which is accepted: no other place helps" if job.accepted else ""
    return f"; an iteration takes {job.iteration_s:.4g} s, alone {job.alone_s:.4g} s: {100 * lost:.0f} % lost{accepted}"
