"""What else runs on this machine while something is measured: CPU time stolen by the host, and of other programs.

A run with more than a tenth of either is repeated, at most twice. Where the last one has so much too, its figure is
kept and marked as noisy.
"""

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from statistics import median
from typing import Any, Generic, NamedTuple, TypeVar

import psutil

T = TypeVar("T")
NOISE_MAX, REPEATS_MAX = 0.1, 2
# A figure is the median of so many runs.
TURNS = 3
TRIED_HEADER = ("steal %", "others %", "repeats", "noisy")
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


def own_cpu_s() -> float:
    """CPU seconds of this process and all below it so far, of those too that ended and were waited for."""
    this = psutil.Process()
    total_s = 0.0
    for one in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


class Tried(NamedTuple, Generic[T]):
    """What the last of some runs came to, its noise, and how often it was repeated."""

    result: T
    noise: Noise
    repeats: int

    @property
    def is_noisy(self) -> bool:
        """Whether the last run was no quieter than it may be."""
        return max(self.noise) > NOISE_MAX

    def cells(self) -> tuple[str, ...]:
        """For a table under TRIED_HEADER."""
        shares = (f"{100 * share:.0f}" for share in self.noise)
        return (*shares, f"{self.repeats}", "yes" if self.is_noisy else "no")


class Watch:
    """Watches the machine from now on; what this process and those below it use is no noise."""

    def __init__(self) -> None:
        self._before, self._own_s = snapshot(), own_cpu_s()

    def noise(self) -> Noise:
        """Until now."""
        return noise(self._before, snapshot(), own_cpu_s() - self._own_s)


async def tried(run: Callable[[], Awaitable[T]], watch: Callable[[], Watch] = Watch) -> Tried[T]:
    """Runs until the machine was ours, three times at most; the last run counts.

    Args:
        run: One run, of this process and those that it started.
        watch: Begins to watch the machine.
    """
    repeats = 0
    while True:
        watched = watch()
        found = Tried(await run(), watched.noise(), repeats)
        if not found.is_noisy or repeats == REPEATS_MAX:
            return found
        repeats += 1


def spread(values: Sequence[float], form: str) -> tuple[str, str, str]:
    """Median, least and most of some runs, each written by a format."""
    return format(median(values), form), format(min(values), form), format(max(values), form)


def noisy_note(found: Sequence[Tried[Any]]) -> str:
    """How many of some runs stayed noisy."""
    noisy = sum(one.is_noisy for one in found)
    had = f"the host or other programs had over {100 * NOISE_MAX:g} % of all cores' time"
    if not noisy:
        return f"No run is noisy ({len(found)} in all): in none {had}."
    return f"{noisy} of {len(found)} runs are noisy: {had} in each of {1 + REPEATS_MAX} tries."
