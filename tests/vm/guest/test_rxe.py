"""Soft RDMA links on a real kernel."""

import socket
from ipaddress import IPv4Address

import psutil
import pytest

from farside.errors import ConfigError
from farside.kmod_shim import rdma_devices, rxe
from farside.kmod_shim.rdma_devices import Place

pytestmark = pytest.mark.smoke


def address_of(netdev: str) -> IPv4Address:
    addresses = psutil.net_if_addrs()[netdev]
    return IPv4Address(next(one.address for one in addresses if one.family == socket.AF_INET))


def test_a_link_is_active_and_found_with_its_gid(rxe0: Place, netdev: str) -> None:
    assert (rxe0.device, rxe0.port) == ("rxe0", 1)
    assert (rxe0.gid.kind, rxe0.gid.ipv4, rxe0.gid.netdev) == ("RoCE v2", address_of(netdev), netdev)
    assert rdma_devices.find_place(rdma_devices.devices(), netdev).device == "rxe0"


@pytest.mark.usefixtures("rxe0")
def test_a_second_link_is_refused(netdev: str) -> None:
    with pytest.raises(ConfigError, match="there is an RDMA device rxe0 already"):
        rxe.create_link("rxe0", "lo")
    with pytest.raises(ConfigError, match=f"{netdev} has an RDMA device"):
        rxe.create_link("rxe1", netdev)


def test_a_removed_link_is_gone(netdev: str) -> None:
    rxe.create_link("rxe9", netdev)

    rxe.remove_link("rxe9")

    assert "rxe9" not in [device.name for device in rdma_devices.devices()]


def test_a_link_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(ConfigError, match="no RDMA device rxe7"):
        rxe.remove_link("rxe7")
