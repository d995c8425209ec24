"""Use of a resource over time, from the start and length of each use. PURE.

The use of many jobs is a staircase. Its integral is exact at each step and linear between them, so the mean over any
interval comes from two points of it, and a million jobs cost one sort.
"""

import numpy as np

from farside.scheduler.table import Floats


def mean_use(start_s: Floats, duration_s: Floats, amount: Floats, edges_s: Floats) -> Floats:
    """Mean amount in use between each two edges; an entry without a start never counts."""
    times_s, level = _staircase(start_s, duration_s, amount)
    if not len(times_s):
        return np.zeros(len(edges_s) - 1)
    integral = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times_s))))
    return np.diff(np.interp(edges_s, times_s, integral)) / np.diff(edges_s)


def peak_use(start_s: Floats, duration_s: Floats, amount: Floats) -> float:
    """Peak amount in use at once; an entry that ends as another begins does not overlap it."""
    _, level = _staircase(start_s, duration_s, amount)
    return float(level.max(initial=0.0))


def _staircase(start_s: Floats, duration_s: Floats, amount: Floats) -> tuple[Floats, Floats]:
    """Times of change, ascending and different, and the level from each on."""
    there = ~np.isnan(start_s) & (duration_s > 0) & (amount > 0)
    begin_s, amount = start_s[there], amount[there]
    times_s = np.concatenate((begin_s, begin_s + duration_s[there]))
    order = np.argsort(times_s, kind="stable")
    times_s = times_s[order]
    level = np.cumsum(np.concatenate((amount, -amount))[order])
    # Of changes at one instant only the level after all of them counts, so that a use that ends as another begins does
    # not overlap it.
    is_last = np.append(np.diff(times_s) > 0, True) if len(times_s) else np.zeros(0, dtype=bool)
    return times_s[is_last], level[is_last]


def bounded_step_s(first_s: float, last_s: float, step_s: float, most: int) -> float:
    """Step length, doubled until at most ``most`` steps fit into the time."""
    while (last_s - first_s) / step_s > most:
        step_s *= 2
    return step_s


def edges(first_s: float, last_s: float, step_s: float) -> Floats:
    """Multiples of a step that hold all of the time between, at least one interval."""
    low = np.floor(first_s / step_s)
    high = max(np.ceil(last_s / step_s), low + 1)
    return np.asarray(np.arange(low, high + 1) * step_s)
