"""Shared aggregation as people see it: the API, the page, the command line, and `farside explain`. PURE."""

from collections.abc import Iterator

from farside.scheduler.manager.aggregation.state import PROFILE_ITERATIONS, Aggregation, JobChunks


def explain(state: Aggregation, job_id: str) -> Iterator[str]:
    """Lines about where a job's tensors are aggregated, and what it loses by that."""
    job = state.jobs.get(job_id)
    if job is None:
        if job_id in state.wanting:
            yield "aggregation: its members have not declared a model yet"
        return
    where = ", ".join(state.node_of(number) for number in sorted(job.owners)) or "nowhere"
    if not job.is_placed:
        done = min(job.iterations, PROFILE_ITERATIONS)
        yield f"aggregation: measured on {where}, {done} of {PROFILE_ITERATIONS} iterations"
        return
    yield f"aggregation: on {where}{_loss(job)}"
    if job.is_moving:
        moving = sum(run.count for run in job.runs if run.target != run.owner)
        yield f"aggregation: {moving} of {job.count} chunks are on their way to another Aggregator"
    if job.problem:
        yield f"aggregation: it stays where it was measured: {job.problem}"


def loss_of(job: JobChunks) -> float | None:
    """Share of its speed that a job loses by sharing, as measured lately; None: not known."""
    if not (job.is_placed and job.alone_s and job.iteration_s):
        return None
    return max(0.0, 1 - job.alone_s / job.iteration_s)


def _loss(job: JobChunks) -> str:
    lost = loss_of(job)
    if lost is None:
        return ""
    accepted = ", which is accepted: no other place helps" if job.accepted else ""
    return f"; an iteration takes {job.iteration_s:.4g} s, alone {job.alone_s:.4g} s: {100 * lost:.0f} % lost{accepted}"
