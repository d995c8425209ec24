"""What else runs on this machine while something is measured: CPU time stolen by the host, and of other programs."""

import os
import time
from typing import NamedTuple

_HZ = os.sysconf("SC_CLK_TCK")
# Of /proc/stat's columns: user, nice, system, irq, softirq are work; steal is the host's.
_WORK, _STEAL = (0, 1, 2, 5, 6), 7


class Snapshot(NamedTuple):
    """Seconds since the start, summed over all cores."""

    at_s: float
    work_s: float
    steal_s: float


def snapshot() -> Snapshot:
    """Now."""
    with open("/proc/stat") as file:
        columns = [int(value) / _HZ for value in file.readline().split()[1:]]
    return Snapshot(time.monotonic(), sum(columns[at] for at in _WORK), columns[_STEAL])


class Noise(NamedTuple):
    """Shares of all cores' time that the host took and that other programs took."""

    steal: float
    foreign: float


def noise(before: Snapshot, after: Snapshot, own_s: float) -> Noise:
    """Between two moments, in which what is measured used ``own_s`` seconds of CPU."""
    whole_s = (after.at_s - before.at_s) * (os.cpu_count() or 1)
    foreign_s = max(0.0, after.work_s - before.work_s - own_s)
    return Noise((after.steal_s - before.steal_s) / whole_s, foreign_s / whole_s)
