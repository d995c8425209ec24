"""Parts that all donors of one device share: settings, engine, table, keys, and the handlers of their messages."""

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from farside.blockdev.carrier.carrier import Carrier
from farside.blockdev.carrier.catalog import make_carriers
from farside.blockdev.engine_port import Engine
from farside.blockdev.mapping.table import Slab, Table
from farside.clock import Clock
from farside.config import BlockdevConfig
from farside.daemon.control import messages as m
from farside.daemon.control.keys import KeyRing
from farside.errors import EngineError, PeerError, RemoteProtocolError

# How sessions end. Anything else is a fault of ours, and is logged with its traceback.
EXPECTED = (PeerError, RemoteProtocolError, EngineError, OSError, TimeoutError)


class DonorHooks(Protocol):
    """Handlers of a donor's messages and faults; `device.py` has them."""

    def recall(self, donor: int, message: m.Migrate | m.Evict) -> None:
        """The donor wants slabs back."""

    def lease_activity(self, donor: int, leases: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """(lease, pages a second and GiB) for those that we have."""
        ...

    def donor_lost(self, donor: int) -> None:
        """The donor is given up."""

    def slabs_lost(self, slabs: Sequence[Slab]) -> None:
        """The donor is up and does not have these slabs any more."""

    def still_held(self, slab: Slab) -> None:
        """The donor has not confirmed the return of this slab."""

    def retire(self, donor: int) -> None:
        """The donor has left the peers file."""

    def pump_events(self) -> None:
        """Handle the events of the engine so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorParts:
    """What every donor shares. ``carriers`` by name, the preferred one first."""

    config: BlockdevConfig
    keys: KeyRing
    engine: Engine
    table: Table
    clock: Clock
    hooks: DonorHooks
    carriers: Mapping[str, Carrier] = field(default_factory=make_carriers)

    @property
    def long_s(self) -> float:
        """How long a donor may take over a slab: without a prepared one it must zero one first."""
        return max(self.config.deadline_s, self.config.grace_s)


def node_name(config: BlockdevConfig) -> str:
    """The name by which donors know this machine."""
    return config.node or socket.gethostname()
