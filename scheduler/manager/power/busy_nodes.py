"""Busy nodes in each interval of the past, counted from the run intervals of the log's jobs. PURE."""

import math
from collections.abc import Container, Iterable

import numpy as np

from farside.scheduler.manager.model.record import LiveJob


def busy_nodes(
    jobs: Iterable[LiveJob], names: Container[str], begin_s: float, now_s: float, step_s: float
) -> tuple[float, ...]:
    """Number of these nodes with a job, in each interval from ``begin_s`` on, without the present one."""
    steps = max(0, math.floor((now_s - begin_s) / step_s))
    by_node: dict[str, np.ndarray[tuple[int], np.dtype[np.bool_]]] = {}
    for job in jobs:
        for run_interval in job.stints:
            first = max(0, math.floor((run_interval.begin_s - begin_s) / step_s))
            last = min(steps - 1, math.floor((min(run_interval.end_s, now_s) - begin_s) / step_s))
            if first > last:
                continue
            for place in (one for one in run_interval.places if one.node in names):
                by_node.setdefault(place.node, np.zeros(steps, dtype=np.bool_))[first : last + 1] = True
    total = np.zeros(steps)
    for busy in by_node.values():
        total += busy
    return tuple(total.tolist())
