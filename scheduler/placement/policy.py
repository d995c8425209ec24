"""Interface of placement policies. PURE."""

from collections.abc import Collection
from typing import Protocol, Self

from farside.scheduler.ledger import Ledger
from farside.scheduler.placement.slowdown_sample import Sample
from farside.scheduler.state import Allocation, Demand, Job, Node


class PlacementPolicy(Protocol):
    """Placement policy: chooses the GPUs of a job."""

    @property
    def name(self) -> str:
        """What ``--placement`` calls it."""
        ...

    @property
    def is_learning(self) -> bool:
        """Whether the policy learns from the speed of ended jobs."""
        ...

    def ledger(self, nodes: tuple[Node, ...]) -> Ledger:
        """The nodes as this policy sees them."""
        ...

    def demand(self, job: Job) -> Demand:
        """Demand of a job, as this policy sees it; equal for interchangeable jobs."""
        ...

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """Free GPUs for the whole job, not booked yet; None: no room under this policy's rules."""
        ...

    def learn(self, history: Collection[Sample], seen: int) -> Self:
        """The policy for later jobs, after these jobs ended; itself if nothing changes.

        ``seen``: how many samples there were in all, of which ``history`` has the newest. Asked whenever one has ended,
        if it ``is_learning``.
        """
        ...
