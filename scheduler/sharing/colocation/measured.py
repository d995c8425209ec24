"""Work profiles from what a job's steps took: moving averages that outlive a change of its machines. PURE."""

import math
from dataclasses import dataclass, replace

from farside.group_time import WorkProfile

NEWEST_WEIGHT = 0.2
# Caches are cold and code is compiled in the first iterations after each start, not only after the first start.
DROPPED_ITERATIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one iteration took on one node, from each permission to its end: waiting for permissions is left out.

    Attributes:
        machines: Nodes of the job then.
        comp_s: Seconds of computing, with `update_s`.
        update_s: Seconds of that which each node repeats.
        net_s: Seconds on the network.
    """

    machines: int
    comp_s: float
    update_s: float
    net_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """A moving average, and the moving variance about it [harmony §IV-B1]."""

    mean: float
    variance: float = 0.0

    def then(self, value: float) -> "Average":
        """The average with one value more."""
        gap = value - self.mean
        return Average(
            mean=self.mean + NEWEST_WEIGHT * gap,
            variance=(1 - NEWEST_WEIGHT) * (self.variance + NEWEST_WEIGHT * gap * gap),
        )

    @property
    def spread(self) -> float:
        """Standard deviation as a share of the mean."""
        return math.sqrt(self.variance) / self.mean if self.mean else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of a job from its iterations; each average is None before its first value.

    Attributes:
        work_machine_s: Machine seconds that its nodes share, so that it stays true on another number of them.
        update_s: Seconds that each node repeats.
        net_s: Seconds on the network with two or more nodes.
        net_alone_s: The same with one node, which says nothing of several.
        iterations: How many this start has done.
    """

    work_machine_s: Average | None = None
    update_s: Average | None = None
    net_s: Average | None = None
    net_alone_s: Average | None = None
    iterations: int = 0

    def started(self) -> "Measured":
        """The job starts anew."""
        return replace(self, iterations=0)

    def then(self, timing: Timing) -> "Measured":
        """What is known after one iteration more; the first of each start are only counted."""
        counted = replace(self, iterations=self.iterations + 1)
        if counted.iterations <= DROPPED_ITERATIONS:
            return counted
        counted = replace(
            counted,
            work_machine_s=_then(self.work_machine_s, timing.machines * (timing.comp_s - timing.update_s)),
            update_s=_then(self.update_s, timing.update_s),
        )
        if timing.machines == 1:
            return replace(counted, net_alone_s=_then(self.net_alone_s, timing.net_s))
        return replace(counted, net_s=_then(self.net_s, timing.net_s))

    def profile(self, job: str, *, floor_bytes: int = 0, input_bytes: int = 0) -> WorkProfile | None:
        """The job's profile; None before it has been measured on two or more nodes."""
        if self.work_machine_s is None or self.update_s is None or self.net_s is None:
            return None
        return WorkProfile(
            job=job,
            work_machine_s=self.work_machine_s.mean,
            update_s=self.update_s.mean,
            net_s=self.net_s.mean,
            net_alone_s=self.net_alone_s.mean if self.net_alone_s is not None else 0.0,
            floor_bytes=floor_bytes,
            input_bytes=input_bytes,
        )


def _then(average: Average | None, value: float) -> Average:
    return Average(mean=value) if average is None else average.then(value)
