"""Protocol of all that the borrower asks of its donors, so that tests can use a fake."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from farside.blockdev.mapping.placement import DonorView


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One slab leased from a donor; ``memfd`` is its memory if the donor is on this host, otherwise -1."""

    lease: int
    token: int
    epoch: int
    memfd: int = -1


class Donors(Protocol):
    """All donors of the peers file."""

    def views(self) -> tuple[DonorView, ...]:
        """Every donor with the figures it gave last."""
        ...

    async def ask(self, donor: int) -> DonorView | None:
        """The donor's figures now (QUERY_MEM), or None when it does not answer within its deadline."""
        ...

    async def lease(self, donor: int) -> Grant:
        """One slab from this donor (MAP).

        Raises:
            PeerError: it has none, refuses, or is gone.
        """
        ...

    async def release(self, donor: int, leases: Iterable[int]) -> None:
        """Gives leases back (RELEASE). Raises PeerError."""

    async def done(self, donor: int, lease: int, *, moved_pages: int, dropped_pages: int) -> None:
        """Report to the donor that a recalled slab is no longer used (DONE). Raises PeerError."""
