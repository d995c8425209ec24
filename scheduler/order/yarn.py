"""Order policy of YARN's Capacity Scheduler, as Microsoft's cluster used it. PURE. [tiresias §3.2.1, Table 3.2]"""

from dataclasses import dataclass

from farside.scheduler.order.defaults import PlainOrder
from farside.scheduler.order.format_pair import earlier
from farside.scheduler.order.policy import OrderTraits
from farside.scheduler.table import Floats, JobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnCs(PlainOrder):
    """In order of arrival, never preempting; the job at the head blocks all behind it.

    The order is only half of that scheduler: it also consolidates each job onto as few nodes as it can, and makes it
    wait for them. That half is the placement named ``yarn``.
    """

    name = "yarn-cs"
    traits = OrderTraits(is_strict=True)

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Submit time."""
        return (jobs.submit_s,)

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """When each came."""
        ahead = earlier(second.submit_s.item() - first.submit_s.item())
        return f"came {ahead} earlier, and the first in line is never passed"
