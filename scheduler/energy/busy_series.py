"""Series of busy nodes: one number for each interval, with gaps filled without knowledge of the future. PURE.

A monitoring system that fails reports zeros, or nothing. Whoever takes a zero for an empty cluster puts all of it to
sleep. So what is missing is missing: the last value that was seen stands until the next one.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from farside.scheduler.table import Floats

STEP_S = 600.0  # decisions are made every ten minutes [helios §4.3.2]
DAY_S = 86400.0
# A total that falls to less than this share of what it was is a monitoring fault (Philly, November 5: 174 of 420).
LOST_SHARE = 0.5
# After this time a lower total is believed: the cluster has shrunk.
BELIEVED_AFTER_S = DAY_S

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Places = np.ndarray[Any, np.dtype[np.intp]]


class Zeros(Enum):
    """Meaning of a sample with zero busy nodes."""

    GAP = "gap"
    REAL = "real"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeries:
    """Busy and existing nodes in intervals of ``step_s`` from ``start_s`` on (seconds of the cluster's local time).

    ``active`` is the most that were busy at once in the interval, never above ``total``; where ``is_gap``, both are the
    last that were seen. ``above_rows``: rows that said otherwise, and were taken as all busy.
    """

    start_s: float
    step_s: float
    active: Floats
    total: Floats
    is_gap: Flags
    above_rows: int = 0

    def __len__(self) -> int:
        return len(self.active)

    @property
    def end_s(self) -> float:
        """The end of the last interval."""
        return self.start_s + len(self) * self.step_s

    @property
    def steps_a_day(self) -> float:
        """Intervals in a day."""
        return DAY_S / self.step_s

    def index(self, at_s: float) -> int:
        """The interval that an instant lies in, or the nearest end."""
        return int(min(max(0.0, (at_s - self.start_s) // self.step_s), len(self)))


def from_samples(
    time_s: Floats, active: Floats, total: Floats, *, step_s: float = STEP_S, zeros: Zeros = Zeros.GAP
) -> NodeSeries:
    """Series from samples with gaps. Each value depends on earlier samples and its own interval alone.

    Args:
        time_s: When each sample was taken, ascending.
        active: Busy nodes; NaN: missing.
        total: Existing nodes; NaN or 0: missing.
        step_s: Length of an interval.
        zeros: What a sample of zero busy nodes is.

    Raises:
        ValueError: No sample is of any use.
    """
    is_good = np.isfinite(active) & np.isfinite(total) & (total > 0)
    if zeros is Zeros.GAP:
        is_good &= active > 0
    if not is_good.any():
        raise ValueError("no sample has busy nodes")
    # From the midnight before the first sample, so that intervals of different files agree.
    start_s = float(time_s[0] // DAY_S * DAY_S)
    first = int((time_s[np.argmax(is_good)] - start_s) // step_s)
    at = ((time_s - start_s) // step_s).astype(np.intp)
    most_active = _most(active, at, is_good)
    most_total = _most(total, at, is_good)
    most_active, most_total = most_active[first:], most_total[first:]
    _drop_lost(most_active, most_total, round(BELIEVED_AFTER_S / step_s))
    is_gap = np.isnan(most_active)
    filled = _carried(most_total)
    return NodeSeries(
        start_s=start_s + first * step_s,
        step_s=step_s,
        active=np.minimum(_carried(most_active), filled),
        total=filled,
        is_gap=is_gap,
    )


def _most(values: Floats, at: Places, is_good: Flags) -> Floats:
    most = np.full(int(at[-1]) + 1, -np.inf)
    np.maximum.at(most, at[is_good], values[is_good])
    most[np.isneginf(most)] = np.nan
    return most


def _drop_lost(active: Floats, total: Floats, believed_after: int) -> None:
    """Makes gaps of intervals in which much of the cluster was not monitored."""
    seen, lost = total[0], 0
    for step, here in enumerate(total.tolist()):
        # NaN: nothing was seen in this interval anyway.
        if here != here:
            continue
        if here >= LOST_SHARE * seen or lost >= believed_after:
            seen, lost = here, 0
        else:
            lost += 1
            active[step] = total[step] = np.nan


def _carried(values: Floats) -> Floats:
    # For each interval the index of the newest one that has a value.
    last = np.maximum.accumulate(np.where(np.isnan(values), 0, np.arange(len(values))))
    carried: Floats = values[last]
    return carried
