"""Smallest-first order policy: by the number of GPUs. PURE."""

from dataclasses import dataclass

import numpy as np

from farside.scheduler.order.defaults import PlainOrder
from farside.scheduler.order.policy import STILL, Motions, OrderTraits
from farside.scheduler.table import Floats, JobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest(PlainOrder):
    """Order by W_J. One dimension: a stream of small jobs blocks a large one that is nearly done. [tiresias §3.3.2.1]

    Attributes:
        is_preemptive: A small job takes the GPUs of larger ones that run, as where Table 3.1 has it and in the authors'
            simulator. Otherwise a running job is left alone.
        is_strict: The smallest job that has no room blocks all behind it. Otherwise others that have room pass it.
    """

    name = "sf"
    is_preemptive: bool = True
    is_strict: bool = False

    @property
    def traits(self) -> OrderTraits:
        """Return the traits that the settings say."""
        return OrderTraits(is_preemptive=self.is_preemptive, is_strict=self.is_strict)

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """GPUs."""
        return (jobs.gpus,)

    def motion(self, jobs: JobColumns) -> Motions:
        """A job stays as large as it is."""
        return np.full(len(jobs.gpus), STILL, dtype=np.int8)

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """Their sizes."""
        return f"needs {first.gpus[0]:.0f} GPUs, not {second.gpus[0]:.0f}"
