"""What this node has of other nodes' memory: swap that is a Farside device, and the donors that it may borrow from.

Its borrowers are asked by their admin sockets, beside the page path: where the pages of their devices are, whether a
disk fails, how many requests there were and how long these took.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from farside import admin
from farside.agent import messages as m
from farside.agent.peers_file import PeersFile
from farside.agent.service.service import NodeService
from farside.clock import Clock
from farside.errors import FarsideError
from farside.geometry import PAGE_BYTES
from farside.log import get_log

ASK_LIMIT_S = 1.0
QUANTILE = 0.99

_log = get_log("agent.borrower")
_ENCODER = msgspec.json.Encoder()
_ORDER = msgspec.json.Decoder(m.BorrowerOrder)


class BorrowerService(NodeService):
    """The service ``borrower``: says what of the node's swap is remote memory, and keeps the peers file.

    Attributes:
        peers: The peers file; None: the operator keeps it, or nothing borrows here.
    """

    name = "borrower"
    version = 1

    def __init__(
        self,
        peers_file: Path | None,
        *,
        swap: Callable[[], m.Swap | None],
        clock: Clock,
        sockets: Iterable[Path] = (),
    ) -> None:
        """``swap``: as it was read last; ``sockets``: admin sockets of the node's borrowers."""
        self.peers = PeersFile(peers_file) if peers_file is not None else None
        self._swap, self._clock = swap, clock
        self._told: tuple[m.DonorAddress, ...] | None = None  # None: no manager has told us
        self._devices = [_Device(socket) for socket in sockets]
        self._borrowed: m.BorrowedMemory | None = None

    def facts(self) -> bytes:
        """Its `BorrowerFacts`."""
        swap = self._swap()
        if swap is not None:  # which device is which borrower's is not looked at: the most that any of them keeps
            swap = msgspec.structs.replace(swap, copies=max((device.copies for device in self._devices), default=0))
        return _ENCODER.encode(m.BorrowerFacts(swap=swap, borrowed=self._borrowed))

    async def look(self) -> None:
        """Asks all borrowers of the node, at the same time."""
        told = await asyncio.gather(*(device.ask() for device in self._devices))
        self._borrowed = _together([one for one in told if one is not None])

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
        figures = {"swap_bytes": swap.size_bytes, "swap_used_bytes": swap.used_bytes, "donors": donors}
        if self._borrowed is None:
            return figures
        borrowed: dict[str, float | None] = msgspec.structs.asdict(self._borrowed)
        return {**figures, **{name: float(value) for name, value in borrowed.items() if value is not None}}

    def drained(self) -> bool:
        """Always: it has nothing of others. What it has lent out would be the donor's."""
        return True


class _Device:
    """One borrower, and what it counted when it was asked before.

    Attributes:
        copies: Donors that have each of its pages, as it said last; 0: it has not.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self.copies = 0
        self._before: Mapping[str, Sequence[int]] = {}
        self._problem = ""

    async def ask(self) -> m.BorrowedMemory | None:
        """What it says now; None: it is not there, does not answer, or is of a version that does not say."""
        if not self._socket.exists():
            return None
        try:
            told = await admin.ask(self._socket, "figures", timeout_s=ASK_LIMIT_S)
            buckets = _buckets_of(told)
            found, self._before = borrowed_of(told, self._before), buckets
            self.copies = 2 if told.get("copies") == 2 else 1  # one of the version before does not say
        except FarsideError as error:
            self._lose(str(error))
            return None
        except (KeyError, TypeError, ValueError) as error:
            self._lose(f"these are no borrower's figures: {error!r:.200}")
            return None
        self._problem = ""
        return found

    def _lose(self, problem: str) -> None:
        if problem != self._problem:  # once, and not with each report
            self._problem = problem
            _log.warning("a borrower does not say where its pages are", socket=self._socket, why=problem)


def borrowed_of(told: Mapping[str, Any], before: Mapping[str, Sequence[int]]) -> m.BorrowedMemory:
    """What a borrower's figures say; ``before``: its latency buckets when it was asked before, empty: it was not.

    Raises:
        KeyError, TypeError, ValueError: They are no such figures.
    """
    alone, failed, rates, buckets = int(told["pages_disk_alone"]), told["disk_failed"], told["rates"], _buckets_of(told)
    facts = {
        "remote_bytes": int(told["pages_remote"]) * PAGE_BYTES,
        "on_disk_bytes": alone * PAGE_BYTES,
        "pending_bytes": told["pending_bytes"],
        "pages_at_risk": int(told["pages_exposed"]) + (alone if failed else 0),
        "disk_failed": failed,
        "reads_per_s": rates["reads_per_s"],
        "writes_per_s": rates["writes_per_s"],
        **{
            f"{kind}_p99_s": _slowest_s(buckets[kind], before[kind]) if kind in before else None
            for kind in ("read", "write")
        },
    }
    return msgspec.convert(facts, m.BorrowedMemory)


def _buckets_of(told: Mapping[str, Any]) -> Mapping[str, Sequence[int]]:
    return msgspec.convert(told["latency_buckets"], dict[str, tuple[int, ...]])


def _slowest_s(now: Sequence[int], before: Sequence[int]) -> float | None:
    """What 99 in 100 of the new requests took at most; bucket i counts those of 2^i to 2^(i+1) ns. None: none came."""
    # Another number of them is another version, which began to count anew.
    new = [max(0, after - then) for after, then in zip(now, before, strict=False)]
    total = sum(new)
    if not total:
        return None
    at = next(at for at, count in enumerate(accumulate(new)) if count >= QUANTILE * total)
    return float(2 ** (at + 1)) / 1e9


def _together(devices: Sequence[m.BorrowedMemory]) -> m.BorrowedMemory | None:
    """All devices of a node as one: sums, the slowest latency, and a disk that fails if any does."""
    if len(devices) < 2:
        return devices[0] if devices else None
    sums = ("remote_bytes", "on_disk_bytes", "pending_bytes", "pages_at_risk", "reads_per_s", "writes_per_s")
    facts: dict[str, Any] = {name: sum(getattr(one, name) for one in devices) for name in sums}
    for name in ("read_p99_s", "write_p99_s", "disk_failed"):
        known = [value for one in devices if (value := getattr(one, name)) is not None]
        facts[name] = max(known, default=None)
    return m.BorrowedMemory(**facts)
