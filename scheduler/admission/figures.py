"""Figures of a job (time run, time waited, its allocation) with which a new domain takes over the job. PURE."""

import math
from dataclasses import dataclass

from farside.scheduler.state import Allocation


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one job, as kept by the owner of its domain. Seconds, on the domain's time line.

    Attributes:
        remaining_s: Run time that is left, as far as it is known; infinite where it is not. Never NaN, which
            compares with nothing: a preemptive order that looks at it would never come to an end.
        predicted_gpu_s: What an estimator expects of it in all, GPU seconds; NaN where there is none.
        executed_s: How long it has held GPUs in run intervals that are over, since it was submitted or last promoted.
        waited_s: How long it has waited in waits that are over, since then.
        since_s: Since when it waits or runs as it does now.
        first_start_s: When it was started first; infinite before that.
        has_to_resume: It was preempted: its next start, or that by which it runs, costs what resuming costs.
        allocation: What it holds; None: it waits.
        left_alone_until_s: Nobody may take that away before.
        share_level: How its account stood when it was started; None: as it stands now.
    """

    remaining_s: float
    predicted_gpu_s: float
    executed_s: float
    waited_s: float
    since_s: float
    first_start_s: float = math.inf
    has_to_resume: bool = False
    allocation: Allocation | None = None
    left_alone_until_s: float = -math.inf
    share_level: float | None = None
