"""SJF order policy: the shortest job goes first, by what is known of its run time. PURE."""

from dataclasses import dataclass

import numpy as np

from farside.scheduler.order.defaults import PlainOrder
from farside.scheduler.order.format_pair import apart, in_seconds
from farside.scheduler.order.policy import OrderTraits
from farside.scheduler.table import Floats, JobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Sjf(PlainOrder):
    """Order by run time; never preempts. Strict by default, as in [helios §4.2]: the shortest blocks all behind it."""

    name = "sjf"
    is_strict: bool = True

    @property
    def traits(self) -> OrderTraits:
        """Never preempts."""
        return OrderTraits(is_strict=self.is_strict)

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Run time: the policy never preempts, so a waiting job has all of it left."""
        return (jobs.remaining_s,)

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """Their run times."""
        if np.isinf(second.remaining_s[0]):
            return f"runs {in_seconds(first.remaining_s.item())}; nobody knows how long the other runs"
        mine, other = apart(first.remaining_s.item(), second.remaining_s.item(), in_seconds)
        return f"runs {mine}, not {other}"
