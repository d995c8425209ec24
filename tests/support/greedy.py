"""A slow restatement: at every event all jobs are sorted, and an empty cluster is filled from the first to the last.

Only counts of GPUs matter, preemption is free. It shares no code with the cycle; what it finds, the cycle must find.
"""

import math
from collections.abc import Callable, Sequence

from farside.scheduler.sim.trace.job import TraceJob

# (row, executed seconds, remaining seconds, first start) -> the policy's keys
Keys = Callable[[int, float, float, float], tuple[float, ...]]


def greedy_ends(
    jobs: Sequence[TraceJob], gpus: int, keys: Keys, limits_gpu_s: Sequence[float] = ()
) -> tuple[list[float], int]:
    """When each job ends, and how often one was preempted. Queue limits are noticed in whole seconds."""
    count = len(jobs)
    need = [job.job.gpus for job in jobs]
    submit = [job.job.submit_s for job in jobs]
    remaining = [job.duration_s for job in jobs]
    executed = [0.0] * count
    first_start = [math.inf] * count
    end = [math.nan] * count
    alive: list[int] = []
    running: set[int] = set()
    now, arrived, preemptions = 0.0, 0, 0
    while arrived < count or alive:
        at = submit[arrived] if arrived < count else math.inf
        for row in running:
            limit = next((x for x in limits_gpu_s if x > executed[row] * need[row]), math.inf)
            crossing = now + math.ceil(limit / need[row] - executed[row]) if limit < math.inf else math.inf
            at = min(at, now + remaining[row], crossing)
        for row in running:
            remaining[row] -= at - now
            executed[row] += at - now
        now = at
        for row in [row for row in running if remaining[row] <= 0]:
            running.discard(row)
            alive.remove(row)
            end[row] = now
        while arrived < count and submit[arrived] == now:
            alive.append(arrived)
            arrived += 1
        free, chosen = gpus, set[int]()
        for row in sorted(
            alive, key=lambda r: (*keys(r, executed[r], remaining[r], first_start[r]), submit[r], jobs[r].job.sequence)
        ):
            if need[row] <= free:
                free -= need[row]
                chosen.add(row)
                first_start[row] = min(first_start[row], now)
        preemptions += len(running - chosen)
        running = chosen
    return end, preemptions
