"""Time-slicing order policy, as in Gandiva: a job that used its slice gives way to waiting jobs. PURE.

[tiresias §3.3.2, §3.5.3.2, Table 3.2]

How it works
  Jobs take turns round a ring. Three groups stand one behind the other:

  1. jobs that run and have not used their slices: nothing takes their GPUs;
  2. jobs that wait, the longest wait first;
  3. jobs that run and have used their slices: each goes on until a waiting job can use its GPUs; longest turn first.

  A slice begins when a job makes progress. The time that resuming takes is not part of it; otherwise no job would make
  progress where that takes as long. A slice belongs to a job, not to the clock, so the only event is its end: while no
  job waits nothing happens at all.

  As slices end one by one, GPUs for a gang never come free together if smaller jobs may take each of them; so the first
  in line holds the others up until it has room, a slice at most. ``is_strict`` False lets them pass.
"""

from dataclasses import dataclass

import numpy as np

from farside.scheduler.order.defaults import PlainOrder
from farside.scheduler.order.policy import NEAR_S, STILL, Motions, OrderTraits
from farside.scheduler.table import Floats, JobColumns
from farside.units import format_seconds

SHORTEST_S = 1e-3  # one as short as `NEAR_S` would be over before it began
UNTOUCHED, WAITING, USED = 0.0, 1.0, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeshare(PlainOrder):
    """Round robin by time slices.

    Attributes:
        quantum_s: A slice. The authors' simulator has a minute, at no cost; but what a preemption costs, often a minute
            itself, is paid once a slice, and on a real trace the average JCT is the same with ten.
        is_strict: The job that has waited longest holds up all behind it.
    """

    name = "timeshare"
    quantum_s: float = 600.0
    is_strict: bool = True

    def __post_init__(self) -> None:
        """Refuse slices so short that no job makes progress."""
        if self.quantum_s < SHORTEST_S:
            raise ValueError(f"quantum_s: must be at least {SHORTEST_S:g} s")

    @property
    def traits(self) -> OrderTraits:
        """Preempts."""
        return OrderTraits(is_preemptive=True, is_strict=self.is_strict, has_thresholds=True)

    def group(self, jobs: JobColumns) -> Floats:
        """Which of the three groups each job is in."""
        is_used = jobs.slice_s >= self.quantum_s - NEAR_S
        return np.where(jobs.is_running == 0, WAITING, np.where(is_used, USED, UNTOUCHED))

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Group, then since when it has waited or run; the longest turn is the last."""
        group = self.group(jobs)
        return group, np.where(group == USED, -jobs.since_s, jobs.since_s)

    def motion(self, jobs: JobColumns) -> Motions:
        """Within a slice, and behind it, not at all."""
        return np.full(len(jobs.gpus), STILL, dtype=np.int8)

    def next_change_s(self, jobs: JobColumns) -> Floats:
        """Until the slice of a running job ends."""
        left: Floats = np.where(self.group(jobs) == UNTOUCHED, self.quantum_s - jobs.slice_s, np.inf)
        return left

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """Why the first job goes before the second: by their turns."""
        one, other = self.group(first)[0], self.group(second)[0]
        longer = format_seconds(abs(second.since_s.item() - first.since_s.item()))
        if one == other == UNTOUCHED:
            return f"was given its GPUs {longer} earlier, and neither has used its slice"
        if one == UNTOUCHED:
            return f"has {format_seconds(min(self.quantum_s, self.quantum_s - first.slice_s.item()))} of its slice left"
        if one == other == WAITING:
            return f"has waited for its turn {longer} longer"
        if one == other:
            return f"was given its GPUs {longer} later, and both have used their slices"
        return f"waits, and the other has had its slice of {format_seconds(self.quantum_s)}"
