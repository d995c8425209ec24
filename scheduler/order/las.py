"""2D-LAS order policy: K queues by attained service, without knowledge of run times. PURE.

[tiresias §3.3.2.3, Pseudocodes 1 and 2, Figure 3.8]. Attained service is GPUs times seconds held. A job begins in Q_1,
and falls to Q_i+1 when its service reaches Q_i's upper limit. Within a queue there are two orders, and they differ by a
quarter to a third of the average JCT on real traces:

* ``running_first`` (the default): the queue is a list; running jobs stay in front of waiting ones, newcomers of the
  queue stand at its tail. That is what the authors' simulator does.
* ``start_time``: by first start; jobs that never ran stand behind, by submit time. That is the thesis's text.

A job that has waited ``promote_knob`` times as long as it has run since it was last promoted goes back to Q_1 with both
figures at zero, if it was demoted; ``starve_limit_s`` does the same after a fixed wait. A job that never ran is in Q_1
already: neither protects it.

Without limits there are no queues: the job with the least attained service goes first, equal ones by submit time. That
is 2D-LAS before it is discretized [tiresias §3.3.2.2]; running jobs are compared again every ``interval_s``, and nobody
is promoted, as there is nowhere to go.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np

from farside.scheduler.order.defaults import PlainOrder
from farside.scheduler.order.format_pair import apart
from farside.scheduler.order.policy import FREE, NEAR_S, STILL, Motions, OrderTraits
from farside.scheduler.table import Floats, JobColumns
from farside.units import format_seconds

SHORTEST_S = 1e-3  # one as short as `NEAR_S` would be over before it began
# A job of 50,000 GPUs attains as much within `NEAR_S`: with a lower limit, one that is promoted would not be in Q_1.
LEAST_LIMIT_GPU_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Las(PlainOrder):
    """2D-LAS over ``len(limits_gpu_s) + 1`` queues.

    Attributes:
        limits_gpu_s: Upper limits of all queues but the last. The paper's testbed: one, 3200 GPU s.
        within: Order in a queue, see above.
        promote_knob: PROMOTEKNOB; infinite promotes no job.
        starve_limit_s: STARVELIMIT; infinite promotes no job.
        interval_s: Without limits, how long a running job makes progress without being compared again, if nothing
            happens.
    """

    name = "las"
    limits_gpu_s: tuple[float, ...] = (3200.0,)
    within: Literal["running_first", "start_time"] = "running_first"
    promote_knob: float = np.inf
    starve_limit_s: float = np.inf
    interval_s: float = np.inf

    def __post_init__(self) -> None:
        """Refuse limits out of order, through which no job could fall."""
        limits_gpu_s = self.limits_gpu_s
        if (
            any(low >= high for low, high in pairwise(limits_gpu_s))
            or min(limits_gpu_s, default=np.inf) < LEAST_LIMIT_GPU_S
        ):
            raise ValueError(f"limits_gpu_s: must ascend from {LEAST_LIMIT_GPU_S:g} GPU s at least, is {limits_gpu_s}")
        if self.interval_s < SHORTEST_S:
            raise ValueError(f"interval_s: must be at least {SHORTEST_S:g} s")

    @property
    def traits(self) -> OrderTraits:
        """Preempts."""
        is_list = self.within == "running_first" and not self.is_continuous
        return OrderTraits(
            is_preemptive=True, is_steady=self.is_steady, has_thresholds=True, is_keyed_by_position=is_list
        )

    @property
    def is_continuous(self) -> bool:
        """Whether there are no queues."""
        return not self.limits_gpu_s

    @property
    def is_steady(self) -> bool:
        """Whether running jobs keep their keys between the times of `next_change_s`."""
        return not self.is_continuous

    def level(self, jobs: JobColumns) -> Floats:
        """The queue of each job, 0 the first."""
        attained = (jobs.executed_s + NEAR_S) * jobs.gpus
        return upper_limits(self.limits_gpu_s).searchsorted(attained, "right").astype(float)

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Queue, then the place in it; without queues, attained service."""
        if self.is_continuous:
            return (jobs.executed_s * jobs.gpus,)
        # An infinite first start puts jobs that never ran behind all others; submit time decides between them.
        place = jobs.position if self.within == "running_first" else jobs.first_start_s
        return self.level(jobs), place

    def motion(self, jobs: JobColumns) -> Motions:
        """None within a queue; without queues, service grows."""
        return np.full(len(jobs.gpus), FREE if self.is_continuous else STILL, dtype=np.int8)

    def next_change_s(self, jobs: JobColumns) -> Floats:
        """Running: until its queue's limit, or the end of an interval. Waiting: until it is promoted."""
        level = self.level(jobs)
        demotion: Floats = upper_limits(self.limits_gpu_s)[level.astype(int)] / jobs.gpus - jobs.executed_s
        if self.is_continuous and self.interval_s < np.inf:
            # While a job still resumes its slice is negative: the first interval ends after its first progress, not
            # before.
            intervals = np.maximum(np.floor((jobs.slice_s + NEAR_S) / self.interval_s) + 1, 1.0)
            np.minimum(demotion, intervals * self.interval_s - jobs.slice_s, out=demotion)
        promotion: Floats | float = np.inf
        if min(self.promote_knob, self.starve_limit_s) < np.inf:
            promotion = np.where(level > 0, self._promotion_s(jobs), np.inf)
        change: Floats = np.where(jobs.is_running > 0, demotion, promotion)
        return change

    def _promotion_s(self, jobs: JobColumns) -> Floats:
        limit: Floats = np.full(len(jobs.gpus), self.starve_limit_s)
        if self.promote_knob < np.inf:
            np.minimum(limit, self.promote_knob * jobs.executed_s, out=limit)
        return limit - jobs.waited_s

    def promotes(self, jobs: JobColumns) -> Floats:
        """Jobs that have waited too long below Q_1."""
        starves = (jobs.is_running == 0) & (self._promotion_s(jobs) <= NEAR_S) & (self.level(jobs) > 0)
        return np.where(starves, 1.0, 0.0)

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """Their queues, or their places in one queue."""
        one, other = int(self.level(first)[0]), int(self.level(second)[0])
        attained, other_attained = ((jobs.executed_s * jobs.gpus).item() for jobs in (first, second))
        mine, others = apart(attained, other_attained, gpu_time)
        if self.is_continuous:
            return f"has had {mine} of GPU time, not {others}"
        if one != other:
            return f"is in Q{one + 1}, with {mine} of GPU time behind it; the other is in Q{other + 1}, with {others}"
        if self.within == "running_first":
            if first.is_running[0] > second.is_running[0]:
                return f"runs already, both in Q{one + 1}"
            return f"comes before it in the list of Q{one + 1}"
        if np.isinf(second.first_start_s[0]):
            return f"has run before, both in Q{one + 1}"
        return f"started {format_seconds(second.first_start_s[0] - first.first_start_s[0])} earlier, both in Q{one + 1}"


@lru_cache(maxsize=64)
def upper_limits(limits_gpu_s: tuple[float, ...]) -> Floats:
    """Upper limits of all queues; the last has none."""
    return np.append(limits_gpu_s, np.inf)


def gpu_time(gpu_s: float) -> str:
    """GPU seconds for people."""
    return format_seconds(gpu_s) if gpu_s else "0 s"
