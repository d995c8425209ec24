"""Fixtures of tests that run as root inside a guest, whose kernel is a stock Debian one."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from farside.kmod_shim.rdma.devices import Gid, devices
from tests.support.soft_rdma import add_link, remove_link, roce_gid
from tests.support.waiting import until
from tests.vm.guest.swap_plane import Plane

# Machines that vagrant makes may name it otherwise.
NETDEV = os.environ.get("FARSIDE_TEST_NETDEV", "eth1")


@pytest.fixture(scope="session")
def netdev() -> str:
    """The data network's device."""
    return NETDEV


@pytest.fixture
def nbd_module() -> None:
    """nbd.ko is loaded, with its devices."""
    subprocess.run(["modprobe", "nbd"], check=True)


@pytest.fixture
def rxe0() -> Iterator[Gid]:
    """A soft RDMA device `rxe0` on the data network, active, and removed afterwards; its GID."""
    add_link("rxe0", NETDEV)
    try:
        found = until(_gid, what="an active rxe0", deadline_s=60)
        assert found is not None
        yield found
    finally:
        remove_link("rxe0")


@pytest.fixture(scope="session")
def lasting_rxe0() -> None:
    """The same, made once and left: what has used verbs keeps it open, and Linux 6.1 removes it only after that."""
    if not any(device.name == "rxe0" for device in devices()):
        add_link("rxe0", "eth1")
    until(_gid, what="an active rxe0")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """Donors and a device of this guest's own, for the tests of one file."""
    made = Plane(tmp_path_factory.mktemp("plane"))
    try:
        made.start_all()
        yield made
    finally:
        made.end()


def _gid() -> Gid | None:
    return roce_gid("rxe0")
