"""Memory that donors take back before a job starts on their nodes: which, how much, and until when it waits. PURE.

How it works
  What a node's donor has lent counts as memory for jobs (`agent/sense/headroom.py`). A job that was placed where the
  rest is too little has it recalled at once, while others may still leave its GPUs: `MemoryRecalled` bounds what the
  donor lends as long as the job has its place, so that it is not lent again before the job uses it. The bound is
  loosened as far as the jobs of the node leave more by then, as others have ended. The job starts when the node says
  that its donor has no more than that, or when the wait is over: then the donor has taken it by force, or does so when
  the job needs it.
"""

from collections.abc import Iterator, Mapping

from farside.scheduler.lent_memory import memory_of, to_recall
from farside.scheduler.manager.model.event import MemoryRecalled
from farside.scheduler.manager.model.record import LiveJob, LiveNode, MemoryRecall, Phase
from farside.scheduler.manager.model.state import LiveState
from farside.units import format_bytes, format_seconds

FORCE_S = 10.0
"""After the time that borrowers get to move their pages: until a donor that takes its memory by force has said so."""
# Its agent knows of their memory only when it has started them.
_UNKNOWN = (Phase.ALLOCATED, Phase.STARTING)


def recalls(state: LiveState, job: LiveJob, now_s: float, move_s: float) -> Iterator[MemoryRecalled]:
    """What is to be recalled for a job that has its place, on nodes where nothing was yet.

    ``move_s``: borrowers get so long to move their pages; 0: nothing is recalled.
    """
    each, known = job.spec.memory_bytes_per_gpu, {one.node for one in job.recalls}
    for place in job.places if each and move_s else ():
        node = state.nodes[place.node]
        if not node.borrowed_bytes or place.node in known:
            continue
        recalled_bytes = to_recall(memory_of(place.gpus, each), _free_bytes(state, node, job), node.borrowed_bytes)
        if recalled_bytes:
            yield MemoryRecalled(
                job_id=job.job_id,
                node=node.name,
                lend_bytes=node.borrowed_bytes - recalled_bytes,
                recalled_bytes=recalled_bytes,
                expected_s=state.recall_times.expected_s(node.name, recalled_bytes),
                samples=len(state.recall_times.samples(node.name)),
                until_s=now_s + move_s + FORCE_S,
            )


def _free_bytes(state: LiveState, node: LiveNode, but: LiveJob) -> int:
    """Memory for a job on a node, with what its donor has lent, and without what others are about to get there."""
    others = (state.jobs[job_id] for job_id in state.jobs_on(node.name) if job_id != but.job_id)
    placed = [(job, place) for job in others if job.phase in _UNKNOWN for place in job.places]
    taken = (memory_of(place.gpus, job.spec.memory_bytes_per_gpu) for job, place in placed if place.node == node.name)
    return node.headroom_bytes - sum(taken)


def awaited_recalls(job: LiveJob, now_s: float) -> tuple[MemoryRecall, ...]:
    """What a job still waits for before it starts."""
    return tuple(one for one in job.recalls if one.is_awaited(now_s))


def next_end_s(jobs: Mapping[str, LiveJob], allocated: Iterator[str] | dict[str, None], now_s: float) -> float:
    """When the first of those that have a place waits for memory no longer, whatever has come back; infinite: never."""
    ends = (one.until_s for job_id in allocated for one in awaited_recalls(jobs[job_id], now_s))
    return min(ends, default=float("inf"))


def recall_lines(job: LiveJob, now_s: float) -> tuple[str, ...]:
    """What donors took back for a job, or are to, in words."""
    return tuple(_words(one, now_s) for one in job.recalls)


def _words(one: MemoryRecall, now_s: float) -> str:
    what = f"{format_bytes(one.recalled_bytes)} that the donor of {one.node} had lent"
    times = "one recall" if one.samples == 1 else f"{one.samples} recalls"
    by = "no recall was measured yet" if one.expected_s is None else (
        f"expected to take {format_seconds(one.expected_s)}, by {times} before"
    )  # fmt: skip
    if one.is_back:
        return f"{what} came back in {format_seconds(one.back_s - one.ordered_s)}; {by}"
    since = format_seconds(max(0.0, now_s - one.ordered_s))
    if not one.is_awaited(now_s):
        return f"{what} did not come back in {format_seconds(one.until_s - one.ordered_s)}; {by}"
    least = format_seconds(max(0.0, one.until_s - now_s))
    return f"{what} have been recalled for {since} so far; {by}; it waits for that {least} more at most"
