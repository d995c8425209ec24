"""Shared-memory carrier: a donor on this host passes its slabs by descriptor, and pages are copied directly."""

from collections.abc import Callable

from farside.blockdev.carrier.carrier import Target
from farside.blockdev.engine_port import Engine
from farside.daemon.control import messages as m


class Shm:
    """Slabs of a donor on this host."""

    name = "shm"
    feature = m.Feature.SHM
    has_connections = False
    lacks_here = ""

    def limit_s(self, target: Target) -> float:
        """As long as any answer."""
        return target.deadline_s

    async def open(self, engine: Engine, target: Target) -> Callable[[], None]:
        """Open nothing: the slabs' memory came with their leases."""
        return lambda: engine.link_attach_shm(target.donor)

    async def probe(self, target: Target, worker: int) -> None:
        """Do nothing: shared memory always works where it is tried."""
