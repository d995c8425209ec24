"""Placement that only counts GPUs: a domain is one large node. PURE. [as in the authors' simulator]"""

from dataclasses import dataclass

from farside.scheduler.ledger import Ledger
from farside.scheduler.placement.on_nodes import OnNodes
from farside.scheduler.state import Allocation, Demand, Job, Node


@dataclass(frozen=True, slots=True, kw_only=True)
class CountOnly(OnNodes):
    """Count-only placement: a job has room if enough GPUs are free, on any nodes."""

    name = "count"

    def ledger(self, nodes: tuple[Node, ...]) -> Ledger:
        """All nodes as one."""
        return Ledger(nodes, is_pooled=True)

    def demand(self, job: Job) -> Demand:
        """The GPUs."""
        return Demand(gpus=job.gpus)

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """Any GPUs."""
        return ((0, demand.gpus),) if ledger.free_gpus >= demand.gpus else None
