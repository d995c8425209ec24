"""How the place of a job changes its speed. PURE."""

from dataclasses import dataclass
from typing import Protocol

from farside.scheduler.ledger import Ledger
from farside.scheduler.state import Allocation, Job


class PlacementEffect(Protocol):
    """What a place does to a job's speed."""

    @property
    def name(self) -> str:
        """What ``--set effect=`` calls it."""
        ...

    def speed(self, job: Job, allocation: Allocation, ledger: Ledger) -> float:
        """Progress in a second there, as a share of the job's fastest; above 0, at most 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEffect:
    """Every place is as good as another."""

    @property
    def name(self) -> str:
        """``none``."""
        return "none"

    def speed(self, job: Job, allocation: Allocation, ledger: Ledger) -> float:
        """1."""
        return 1.0
