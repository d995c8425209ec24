"""What a placement policy is. PURE."""

from typing import Protocol

from farside.scheduler.ledger import Ledger
from farside.scheduler.state import Allocation, Demand, Job, Node


class PlacementPolicy(Protocol):
    """Where a job goes."""

    @property
    def name(self) -> str:
        """What ``--placement`` calls it."""
        ...

    def ledger(self, nodes: tuple[Node, ...]) -> Ledger:
        """The nodes as this policy sees them."""
        ...

    def demand(self, job: Job) -> Demand:
        """What matters of a job for its place; equal for jobs that are interchangeable."""
        ...

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """Free GPUs for all of a job, not booked yet; None when it has no room under this policy's rules."""
        ...
