"""Interface of energy policies, which decide how many nodes stay on. PURE.

Every interval a policy is shown what was seen (`watch`), during the past that it learns from as well as later; once it
is in charge it is also asked how many nodes to keep (`target`). It knows nothing of the future, and not which nodes:
the caller that switches nodes takes idle ones.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One interval: the most nodes that jobs needed at once, and the nodes that there are."""

    step: int
    active: float
    total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Wanted number of nodes, with the reason. Above the nodes on: wake some now; below: put idle ones to sleep.

    ``is_forecast``: without a forecast it would have been another number.
    """

    nodes: float
    reason: str
    is_forecast: bool = False


class EnergyPolicy(Protocol):
    """Energy policy: decides in each interval how many nodes stay on."""

    def watch(self, seen: Seen) -> None:
        """What the interval that has just passed was like."""
        ...

    def target(self, powered: float) -> Target:
        """How many nodes to have on after it, at least as many as were busy. ``powered``: on or booting now."""
        ...
