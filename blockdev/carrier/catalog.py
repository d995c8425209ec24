"""Catalog of all carriers by name, the preferred one first."""

from collections.abc import Mapping

from farside.blockdev.carrier.carrier import Carrier
from farside.blockdev.carrier.rdma import Rdma
from farside.blockdev.carrier.shm import Shm
from farside.blockdev.carrier.tcp import Tcp


def make_carriers(rdma: Rdma | None = None) -> Mapping[str, Carrier]:
    """Shared memory, RDMA, TCP. Tests give an ``rdma`` of their own."""
    carriers: tuple[Carrier, ...] = (Shm(), rdma or Rdma(), Tcp())
    return {carrier.name: carrier for carrier in carriers}
