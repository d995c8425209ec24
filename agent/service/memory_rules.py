"""What of a manager's orders about this node's memory counts: the node's own settings bound them. PURE."""

from dataclasses import dataclass
from typing import Literal

from farside.geometry import GRANULE_BYTES
from farside.units import format_bytes

Orders = Literal["all", "lend", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRules:
    """The owner's word, by settings of the agent.

    Attributes:
        orders: Which orders of a manager count: all, those about what is lent, or none.
        lend_bytes: The most that this node lends; None: what its donor's settings allow.
        swap_bytes: Size of its swap while no order counts; 0: none, None: as it is.
        device: The device that it swaps to; empty: none.
    """

    orders: Orders = "all"
    lend_bytes: int | None = None
    swap_bytes: int | None = None
    device: str = ""

    @property
    def lend_refusal(self) -> str:
        """Why no order about what is lent counts; empty: orders count."""
        return "" if self.orders != "none" else 'memory_orders is "none" in its agent.toml'

    @property
    def swap_refusal(self) -> str:
        """Why no order about swap counts; empty: orders count."""
        if not self.device:
            return "swap_device is empty in its agent.toml"
        return "" if self.orders == "all" else f'memory_orders is "{self.orders}" in its agent.toml'

    def lends_at_most(self, ordered_bytes: int | None) -> int | None:
        """Limit for the donor: the smaller of the owner's bound and of the manager's; None: no bound."""
        bounds = [self.lend_bytes, None if self.lend_refusal else ordered_bytes]
        return min((bound for bound in bounds if bound is not None), default=None)

    def why_less(self, ordered_bytes: int | None) -> str:
        """Why less is lent than a manager allows, or more; empty: that is not so, as far as settings go."""
        if ordered_bytes is None:
            return ""
        if self.lend_refusal:
            return self.lend_refusal
        if self.lend_bytes is not None and self.lend_bytes < ordered_bytes:
            return f"lend is {format_bytes(self.lend_bytes)} in its agent.toml"
        return ""

    def swaps(self, ordered_bytes: int | None) -> int | None:
        """Size of the swap that is wanted, in whole granules: the manager's, or the owner's; None: as it is."""
        if not self.device:
            return None
        wanted = self.swap_bytes if ordered_bytes is None or self.swap_refusal else ordered_bytes
        return None if wanted is None else wanted - wanted % GRANULE_BYTES


NO_RULES = MemoryRules()
