"""Soft RDMA links on a real kernel, and what is read of them."""

import socket
from ipaddress import IPv4Address

import psutil
import pytest

from farside.kmod_shim.rdma.devices import Gid, devices
from tests.support.soft_rdma import add_link, remove_link

pytestmark = pytest.mark.smoke


def address_of(netdev: str) -> IPv4Address:
    addresses = psutil.net_if_addrs()[netdev]
    return IPv4Address(next(one.address for one in addresses if one.family == socket.AF_INET))


def test_a_link_is_active_and_found_with_its_gid(rxe0: Gid, netdev: str) -> None:
    assert (rxe0.kind, rxe0.ipv4, rxe0.netdev) == ("RoCE v2", address_of(netdev), netdev)
    assert [(device.name, [port.number for port in device.ports]) for device in devices()] == [("rxe0", [1])]


def test_a_removed_link_is_gone(netdev: str) -> None:
    add_link("rxe9", netdev)

    remove_link("rxe9")

    assert "rxe9" not in [device.name for device in devices()]
