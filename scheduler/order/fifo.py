"""FIFO order policy: first in, first out. PURE."""

from dataclasses import dataclass

from farside.scheduler.order.defaults import PlainOrder
from farside.scheduler.order.format_pair import earlier
from farside.scheduler.order.policy import OrderTraits
from farside.scheduler.table import Floats, JobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Fifo(PlainOrder):
    """First in, first out, by submit time.

    Strict, the job at the head blocks all behind it; best-effort (``is_strict`` False), smaller ones that have room
    pass it: "YARN-CS but without HOL blocking" [tiresias §3.5.3].
    """

    is_strict: bool = True

    @property
    def name(self) -> str:
        """``fifo`` or ``best-effort``."""
        return "fifo" if self.is_strict else "best-effort"

    @property
    def traits(self) -> OrderTraits:
        """Never preempts."""
        return OrderTraits(is_strict=self.is_strict)

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """Submit time."""
        return (jobs.submit_s,)

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """When each came."""
        return f"came {earlier(second.submit_s.item() - first.submit_s.item())} earlier"
