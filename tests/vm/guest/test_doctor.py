"""`farside doctor` on a machine that has a soft RDMA device: pyverbs asks the device itself."""

import json
from collections.abc import Iterator

import pytest

from farside.kmod_shim.rdma.capabilities import Capabilities, read_capabilities
from farside.units import GIB
from tests.support.programs import outcome, run
from tests.support.waiting import until
from tests.vm.guest.swap_plane import LIMIT_S

pytestmark = pytest.mark.usefixtures("lasting_rxe0")

PAGE_BYTES = 4096


@pytest.fixture
def small_packets(netdev: str) -> Iterator[None]:
    """The data network carries packets of 1500 bytes, as Ethernet's default is."""
    usual = run(["cat", f"/sys/class/net/{netdev}/mtu"]).strip()
    run(["ip", "link", "set", netdev, "mtu", "1500"])
    until(lambda: read_capabilities("rxe0").mtu_bytes < PAGE_BYTES, what="a device that has noticed", deadline_s=60)
    yield
    run(["ip", "link", "set", netdev, "mtu", usual])
    until(lambda: read_capabilities("rxe0").mtu_bytes == PAGE_BYTES, what="a device that has noticed", deadline_s=60)


def device_check() -> dict[str, str]:
    """What the doctor says of RDMA devices."""
    said = outcome(["farside", "doctor", "--json"], limit_s=LIMIT_S).stdout
    checks: list[dict[str, str]] = json.loads(said)
    (check,) = [one for one in checks if one["name"] == "rdma device"]
    return check


def test_a_device_tells_pyverbs_what_it_can() -> None:
    found = read_capabilities("rxe0")

    assert found == Capabilities(
        name="rxe0",
        is_active=True,
        mtu_bytes=PAGE_BYTES,
        reads_outstanding=128,  # RXE_MAX_QP_RD_ATOM of Linux 6.1
        region_bytes=found.region_bytes,
        has_windows=True,
    )
    assert found.region_bytes >= GIB


def test_the_doctor_says_what_it_can() -> None:
    check = device_check()

    assert (check["outcome"], check["advice"]) == ("ok", "")
    assert check["found"] == "rxe0: packets of 4096 bytes, 128 reads in flight, windows"


@pytest.mark.usefixtures("small_packets")
def test_the_doctor_says_that_a_page_takes_several_packets() -> None:
    check = device_check()

    assert check["outcome"] == "warning"
    assert check["found"] == "rxe0: packets of 1024 bytes: a page of 4096 takes several"
    assert "mtu 4200" in check["advice"]
