"""A slow restatement of SRTF by a count of GPUs, with Helios's consolidation: what the cycle finds, it must find.

It shares no code with the cycle. Whole seconds; a preempted job holds its GPUs for the cost before it makes progress.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from farside.scheduler.sim.trace.job import TraceJob

NODE_GPUS = 8
NOT_YET = 1 << 60


@dataclass(slots=True)
class _Job:
    submit_s: int
    left_s: int
    gpus: int
    cost_s: int = 0
    held: list[tuple[int, int]] = field(default_factory=list)
    end_s: int = NOT_YET


def _place(free: list[int], gpus: int) -> list[tuple[int, int]]:
    """Best fit on one node; of a wider job whole nodes, and the rest on the fullest free one."""
    whole, rest = divmod(gpus, NODE_GPUS)
    if whole == 0 or gpus == NODE_GPUS:
        fitting = [at for at, has in enumerate(free) if has >= gpus]
        return [(min(fitting, key=lambda at: free[at]), gpus)] if fitting else []
    idle = [at for at, has in enumerate(free) if has == NODE_GPUS][:whole]
    if len(idle) < whole:
        return []
    held = [(at, NODE_GPUS) for at in idle]
    if rest:
        others = [at for at, has in enumerate(free) if at not in idle and has >= rest]
        if not others:
            return []
        held.append((max(others, key=lambda at: free[at]), rest))
    return held


def _stop_and_start(jobs: list[_Job], alive: list[int], free: list[int], costs_s: tuple[int, int, int]) -> int:
    """One decision; returns how many were preempted."""
    left, stopping, starting = NODE_GPUS * len(free), list[_Job](), list[_Job]()
    for row in sorted(alive, key=lambda row: (jobs[row].left_s, row)):
        job = jobs[row]
        if job.gpus <= left:
            left -= job.gpus
            if not job.held:
                starting.append(job)
        elif job.held:
            stopping.append(job)
    for job in stopping:
        for at, gpus in job.held:
            free[at] += gpus
        job.held, job.cost_s = [], costs_s[(job.gpus > 1) + (job.gpus > NODE_GPUS)]
    for job in starting:
        job.held = _place(free, job.gpus)
        for at, gpus in job.held:
            free[at] -= gpus
    return len(stopping)


def counted_ends(trace: Sequence[TraceJob], nodes: int, costs_s: tuple[int, int, int]) -> tuple[list[int], int]:
    """When each job ends, and how many preemptions there were, at a cost by GPUs: one, up to a node, more."""
    jobs = [_Job(int(one.job.submit_s), int(one.duration_s), one.job.gpus) for one in trace]
    free, alive, arrived, now_s, preemptions = [NODE_GPUS] * nodes, list[int](), 0, 0, 0
    while alive or arrived < len(jobs):
        at_s = jobs[arrived].submit_s if arrived < len(jobs) else NOT_YET
        at_s = min([at_s, *(now_s + jobs[row].left_s + jobs[row].cost_s for row in alive if jobs[row].held)])
        assert at_s < NOT_YET, "a job that never fits"
        for row in alive:
            if jobs[row].held:
                paid_s = min(jobs[row].cost_s, at_s - now_s)
                jobs[row].cost_s -= paid_s
                jobs[row].left_s -= at_s - now_s - paid_s
        now_s = at_s
        for row in [row for row in alive if jobs[row].left_s == 0]:
            alive.remove(row)
            jobs[row].end_s = now_s
            for at, gpus in jobs[row].held:
                free[at] += gpus
        while arrived < len(jobs) and jobs[arrived].submit_s == now_s:
            alive.append(arrived)
            arrived += 1
        preemptions += _stop_and_start(jobs, alive, free, costs_s)
    return [job.end_s for job in jobs], preemptions
