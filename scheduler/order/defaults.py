"""Default behaviour of order policies: no thresholds, no promotion, no learning. PURE."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from farside.scheduler.order.policy import FREE, Motions
from farside.scheduler.table import Floats, JobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOrder:
    """Default methods of order policies without thresholds."""

    def motion(self, jobs: JobColumns) -> Motions:
        """Unless a policy knows better, any way."""
        return np.full(len(jobs.gpus), FREE, dtype=np.int8)

    def next_change_s(self, jobs: JobColumns) -> Floats:
        """Never: there are no thresholds."""
        return np.full(len(jobs.gpus), np.inf)

    def promotes(self, jobs: JobColumns) -> Floats:
        """No job is promoted."""
        return np.zeros(len(jobs.gpus))

    def learn(self, ended_gpu_s: Sequence[float], expected_gpu_s: Sequence[float] = (), *, seen: int = 0) -> Self:
        """The policy itself: it learns nothing."""
        return self
