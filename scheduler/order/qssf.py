"""Quasi-shortest service first: by the GPU time that an estimator expects. PURE. [helios §4.2, Algorithm 1]"""

from dataclasses import dataclass

import numpy as np

from farside.scheduler.order.plain import PlainOrder
from farside.scheduler.order.policy import OrderTraits
from farside.scheduler.table import Floats, JobColumns
from farside.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Qssf(PlainOrder):
    """By expected GPU time, two dimensions as in 2DAS; never preempts.

    Jobs of which the estimator expects nothing go behind all others, in order of arrival: no guess stands for them.

    Attributes:
        is_strict: The first job that has no room blocks all behind it, as in Helios's simulator.
    """

    is_strict: bool = True

    @property
    def name(self) -> str:
        """``qssf``."""
        return "qssf"

    @property
    def traits(self) -> OrderTraits:
        """Never preempts."""
        return OrderTraits(is_strict=self.is_strict)

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Expected GPU seconds; infinite where there is no expectation."""
        return (np.where(np.isnan(jobs.predicted_gpu_s), np.inf, jobs.predicted_gpu_s),)

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """What is expected of each."""
        expected, other = first.predicted_gpu_s[0], second.predicted_gpu_s[0]
        against = "nothing is known of the other" if np.isnan(other) else f"{format_seconds(other)} of the other"
        return f"{format_seconds(expected)} of GPU time are expected of it; {against}"
