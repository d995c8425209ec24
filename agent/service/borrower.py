"""What this node has of other nodes' memory: swap that is a Farside device, and the donors that it may borrow from."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from farside.agent import messages as m
from farside.agent.peers_file import PeersFile
from farside.agent.service.service import NodeService
from farside.clock import Clock

_ENCODER = msgspec.json.Encoder()
_ORDER = msgspec.json.Decoder(m.BorrowerOrder)


class BorrowerService(NodeService):
    """The service ``borrower``: says what of the node's swap is remote memory, and keeps the peers file.

    Attributes:
        peers: The peers file; None: the operator keeps it, or nothing borrows here.
    """

    name = "borrower"
    version = 1

    def __init__(self, peers_file: Path | None, *, swap: Callable[[], m.Swap | None], clock: Clock) -> None:
        """``swap``: as it was read last."""
        self.peers = PeersFile(peers_file) if peers_file is not None else None
        self._swap, self._clock = swap, clock
        self._told: tuple[m.DonorAddress, ...] | None = None  # None: no manager has told us

    def facts(self) -> bytes:
        """Its `BorrowerFacts`."""
        return _ENCODER.encode(m.BorrowerFacts(swap=self._swap()))

    def obey(self, order: msgspec.Raw) -> None:
        """Its donors, a `BorrowerOrder`."""
        self.borrow_from(_ORDER.decode(order).donors)

    def borrow_from(self, donors: Iterable[m.DonorAddress]) -> None:
        """Takes the donors that a manager without services names (DONORS)."""
        self._told = tuple(donors)
        self.refresh()

    def refresh(self) -> None:
        """Takes out donors that have been missed for long; only while a manager is there that would name them."""
        if self.peers is not None and self._told is not None:
            self.peers.take(self._told, self._clock.now_s())

    def metrics(self) -> Mapping[str, float]:
        """How much swap there is, what is used of it, and how many donors it may come from."""
        swap = self._swap() or m.Swap(size_bytes=0)
        donors = 0 if self.peers is None else self.peers.donors
        return {"swap_bytes": swap.size_bytes, "swap_used_bytes": swap.used_bytes, "donors": donors}

    def drained(self) -> bool:
        """Always: it has nothing of others. What it has lent out would be the donor's."""
        return True
