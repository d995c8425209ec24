"""Two donors and the disk have each page: any two of the three may go, and the copies that are missing come back."""

import os
import random

import pytest

from farside.kmod_shim.engine.binding import Device, DonorState, Fault, Protection
from tests.fault.conftest import MakeRig
from tests.support.rig import GRANULE_BYTES, PAGE_BYTES, Rig
from tests.support.shadow import stamped_pages
from tests.support.waiting import until

RNG = random.Random(29)
GRANULES = 2
DATA_PAGES = 700  # of both granules
DISK = "disk"


@pytest.fixture(params=["shm", "tcp"])
def trio(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    """Two granules, each with a mapping at donor 0 and one at donor 1, and a disk."""
    rig = make_rig(transport=request.param, protection=Protection.BOTH, size_bytes=GRANULES * GRANULE_BYTES)
    for donor in range(2):
        add_mappings(rig, donor)
    return rig


def add_mappings(rig: Rig, donor: int) -> None:
    rig.add_donor(donor)
    slab = rig.add_slab(donor)
    for granule in range(GRANULES):
        rig.map(granule, slab)


def lose(rig: Rig, what: int | str) -> None:
    """One of the three is gone for good."""
    if isinstance(what, int):
        rig.lose_donor(what)
    else:
        rig.device.disk_fault_set(Fault.ERROR, 1, 0)
        os.ftruncate(rig.disk_fd, 0)


def until_paired(device: Device) -> None:
    until(lambda: device.figures.pages_single() == 0, what="every page to be at two donors")


@pytest.mark.parametrize("pair", [(0, 1), (0, DISK), (DISK, 1)])
def test_no_page_is_lost_with_two_of_the_three(trio: Rig, pair: tuple[int | str, int | str]) -> None:
    client = trio.connect()
    client.write(0, data := stamped_pages(RNG, DATA_PAGES))
    trio.until_on_disk()

    for what in pair:
        lose(trio, what)

    assert client.read(0, len(data)) == data
    assert trio.device.stats().pages_lost == 0


def test_a_write_that_two_donors_have_needs_no_disk(trio: Rig) -> None:
    client = trio.connect()
    lose(trio, DISK)
    client.write(0, data := stamped_pages(RNG, 64))
    until(lambda: trio.device.stats().disk_errors > 0, what="the disk to refuse")
    assert trio.device.figures.pages_exposed() == 0

    lose(trio, 0)

    assert client.read(0, len(data)) == data
    assert trio.device.stats().pages_lost == 0


def test_a_copy_that_one_donor_missed_is_made_again_though_the_disk_has_the_page(trio: Rig) -> None:
    client = trio.connect()
    client.write(0, stamped_pages(RNG, DATA_PAGES))
    trio.device.donor_set(1, DonorState.SUSPECT)
    client.write(0, new := stamped_pages(RNG, 64))
    trio.until_on_disk()
    assert (trio.device.figures.pages_single(), trio.device.figures.pages_exposed()) == (64, 0)

    trio.device.donor_set(1, DonorState.UP)
    until_paired(trio.device)
    lose(trio, DISK)
    lose(trio, 0)

    assert client.read(0, len(new)) == new


def test_after_a_lost_donor_a_third_has_the_second_copies(trio: Rig) -> None:
    client = trio.connect()
    client.write(0, data := stamped_pages(RNG, DATA_PAGES))
    lose(trio, 0)
    assert trio.device.figures.pages_single() == DATA_PAGES

    add_mappings(trio, 2)
    until_paired(trio.device)
    lose(trio, 1)
    lose(trio, DISK)

    assert client.read(0, len(data)) == data


def test_what_the_disk_alone_has_goes_to_two_donors(make_rig: MakeRig) -> None:
    rig = make_rig(protection=Protection.BOTH, size_bytes=GRANULES * GRANULE_BYTES)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, DATA_PAGES))
    until(lambda: rig.device.figures.pages_disk_alone() == DATA_PAGES, what="the disk to have them")

    for donor in range(2):
        add_mappings(rig, donor)
    rig.device.lift_set(True)
    until(lambda: rig.device.figures.pages_disk_alone() == 0, what="every page to be at a donor")
    until_paired(rig.device)
    lose(rig, DISK)
    lose(rig, 1)

    assert client.read(0, len(data)) == data


def test_a_successor_knows_which_pages_one_donor_has(trio: Rig) -> None:
    client = trio.connect()
    trio.device.donor_set(1, DonorState.SUSPECT)
    client.write(0, data := stamped_pages(RNG, 64))
    client.write(10 * PAGE_BYTES, bytes(2 * PAGE_BYTES))
    trio.until_on_disk()

    trio.take_over()

    assert trio.device.figures.pages_single() == 62
    trio.device.donor_set(1, DonorState.UP)
    until_paired(trio.device)
    lose(trio, 0)
    lose(trio, DISK)
    assert client.read(0, 10 * PAGE_BYTES) == data[: 10 * PAGE_BYTES]
