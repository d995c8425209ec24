"""SRTF and SRSF order policies: shortest remaining time or service first, by what is known of run times. PURE."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from farside.scheduler.order.defaults import PlainOrder
from farside.scheduler.order.format_pair import apart, in_seconds
from farside.scheduler.order.policy import FALLING, FREE, Motions, OrderTraits
from farside.scheduler.table import Floats, JobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Srtf(PlainOrder):
    """Order by remaining run time. One dimension: a wide job with little left keeps many GPUs. [tiresias §3.3.2.1]

    Attributes:
        preempts_by: How running jobs are found that have to stop. By ``placement`` one stops only if another job starts
            in its place. By ``count`` GPUs are counted to all jobs in order, and a running job for which too few are
            left stops, whether or not the one before it finds them on nodes that it may use: what the published
            simulator behind [helios §4.2] does, for comparison with its results, in the simulator alone.
    """

    name = "srtf"
    preempts_by: Literal["placement", "count"] = "placement"

    @property
    def traits(self) -> OrderTraits:
        """Preempts."""
        return OrderTraits(is_preemptive=True, is_counting_first=self.preempts_by == "count")

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Remaining seconds."""
        return (jobs.remaining_s,)

    def motion(self, jobs: JobColumns) -> Motions:
        """Keys fall: less is left as a job makes progress."""
        # NaN compares with nothing, so no bound holds for it.
        return np.where(np.isnan(jobs.remaining_s), FREE, FALLING).astype(np.int8)

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """What is left of each."""
        if np.isinf(second.remaining_s[0]):
            return f"{in_seconds(first.remaining_s.item())} left; nobody knows how long the other runs"
        mine, other = apart(first.remaining_s.item(), second.remaining_s.item(), in_seconds)
        return f"{mine} left against {other}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Srsf(Srtf):
    """Order by remaining time times GPUs: the two dimensions that 2DAS follows without knowing. [tiresias §3.3.2.1]

    Of two with equally much left the narrower goes first. While both run, its remaining service falls more slowly, so
    it has stood in front; a list that is sorted again at each event, as the authors' simulator has it, leaves it there.
    """

    name = "srsf"

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Remaining GPU seconds, then GPUs."""
        return jobs.remaining_s * jobs.gpus, jobs.gpus

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """What is left of each."""
        left, right = ((jobs.remaining_s * jobs.gpus).item() for jobs in (first, second))
        if np.isinf(right) and not np.isinf(left):
            return f"{left:.0f} GPU s left; nobody knows how long the other runs"
        if np.isinf(right):
            return f"needs {first.gpus[0]:.0f} GPUs, not {second.gpus[0]:.0f}, and nobody knows how long either runs"
        if left == right:
            return f"{left:.0f} GPU s left as the other, on {first.gpus[0]:.0f} GPUs, not {second.gpus[0]:.0f}"
        mine, other = apart(left, right, "{:.0f}".format, unit="")
        return f"{mine} GPU s left against {other}"
