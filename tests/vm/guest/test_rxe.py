"""Soft RDMA links on a real kernel."""

from ipaddress import IPv4Address

import pytest

from farside.errors import ConfigError
from farside.kmod_shim import rdma_devices, rxe
from farside.kmod_shim.rdma_devices import Place

pytestmark = pytest.mark.smoke


def test_a_link_is_active_and_found_with_its_gid(rxe0: Place) -> None:
    assert (rxe0.device, rxe0.port) == ("rxe0", 1)
    assert (rxe0.gid.kind, rxe0.gid.ipv4, rxe0.gid.netdev) == ("RoCE v2", IPv4Address("10.77.0.1"), "eth1")


@pytest.mark.usefixtures("rxe0")
def test_a_link_is_found_by_its_network_device_too() -> None:
    assert rdma_devices.find_place(rdma_devices.devices(), "eth1").device == "rxe0"


@pytest.mark.usefixtures("rxe0")
def test_a_second_link_of_the_same_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is an RDMA device rxe0 already"):
        rxe.create_link("rxe0", "eth0")


@pytest.mark.usefixtures("rxe0")
def test_a_second_link_on_the_same_network_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="eth1 has an RDMA device"):
        rxe.create_link("rxe1", "eth1")


def test_a_removed_link_is_gone() -> None:
    rxe.create_link("rxe9", "eth1")

    rxe.remove_link("rxe9")

    assert "rxe9" not in [device.name for device in rdma_devices.devices()]


def test_a_link_that_is_not_there_cannot_be_removed() -> None:
    with pytest.raises(ConfigError, match="no RDMA device rxe7"):
        rxe.remove_link("rxe7")
