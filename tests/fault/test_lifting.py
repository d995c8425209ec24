"""Pages that the disk alone has: they are counted, and a donor gets a copy of them before the disk breaks."""

import errno
import os
import random

import pytest

from farside.kmod_shim.engine.binding import EventKind, Fault
from tests.fault.conftest import MakeRig
from tests.support.nbd_client import Command, NbdClient
from tests.support.rig import GRANULE_BYTES, MIB, PAGE_BYTES, Rig
from tests.support.shadow import Shadow, stamped_pages
from tests.support.waiting import until

RNG = random.Random(23)
PAGES = 700  # of two granules
GRANULE_PAGES = GRANULE_BYTES // PAGE_BYTES


def write_to_disk(rig: Rig, pages: int = PAGES) -> tuple[NbdClient, bytes]:
    """Pages at 0 that the disk alone has."""
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, pages))
    until(lambda: rig.device.figures.pages_disk_alone() == pages, what="the disk to have them")
    return client, data


def map_granules(rig: Rig, granules: int = 2) -> None:
    """Mappings at donor 0 for the first granules, which stay empty until something is written there."""
    rig.donors_with_slabs(1, granules=granules)


def until_lifted(rig: Rig) -> None:
    until(lambda: rig.device.figures.pages_disk_alone() == 0, what="every page to be at a donor")


def failed_pages(rig: Rig) -> set[int]:
    """Pages that the disk has failed to read."""
    return {event.b for event in rig.events() if event.kind == EventKind.DISK_ERROR}


def failed_granules(rig: Rig) -> set[int]:
    """Their granules."""
    return {page // GRANULE_PAGES for page in failed_pages(rig)}


def break_reads(rig: Rig, pages: int = 0) -> None:
    """The disk has nothing any more behind so many pages."""
    os.ftruncate(rig.disk_fd, pages * PAGE_BYTES)


def test_what_the_disk_alone_had_is_read_when_the_disk_is_gone(rig: Rig) -> None:
    client, data = write_to_disk(rig)
    map_granules(rig)

    rig.device.lift_set(True)
    until_lifted(rig)
    break_reads(rig)

    assert client.read(0, len(data)) == data
    assert rig.device.stats().pages_lost == 0


def test_an_encrypted_page_is_plain_at_the_donor(make_rig: MakeRig) -> None:
    rig = make_rig(encrypt_disk=1)
    client, data = write_to_disk(rig, 8)
    map_granules(rig)

    rig.device.lift_set(True)
    until_lifted(rig)
    break_reads(rig)

    assert client.read(0, len(data)) == data


def test_nothing_is_lifted_unless_it_is_asked_for(rig: Rig) -> None:
    write_to_disk(rig, 16)
    map_granules(rig)

    for _ in range(3):  # the mover has been through some turns since
        empty = rig.add_slab(0)
        rig.drain(empty)
        rig.forget(empty)

    assert rig.device.figures.pages_disk_alone() == 16


def test_pages_are_counted_as_they_come_to_the_disk_and_leave_it(rig: Rig) -> None:
    map_granules(rig, 1)
    client = rig.connect()
    client.write(0, stamped_pages(RNG, 8))
    client.write(GRANULE_BYTES, stamped_pages(RNG, 8) + bytes(PAGE_BYTES))
    rig.until_on_disk()
    assert rig.device.figures.pages_disk_alone() == 8

    client.trim(GRANULE_BYTES, 3 * PAGE_BYTES)
    assert rig.device.figures.pages_disk_alone() == 5
    rig.drain(rig.slabs[0])
    assert rig.device.figures.pages_disk_alone() == 13
    rig.take_over()
    assert rig.device.figures.pages_disk_alone() == 13


def test_a_granule_without_a_mapping_is_told_as_wanted_without_another_write(rig: Rig) -> None:
    write_to_disk(rig, 8)
    rig.wait_event(EventKind.WANT, a=0)
    rig.take_over()  # it is told anew by each process

    rig.device.lift_set(True)
    rig.wait_event(EventKind.WANT, a=0)
    map_granules(rig, 1)

    until_lifted(rig)


def test_what_came_back_from_a_lost_donor_goes_to_the_next_one(rig: Rig) -> None:
    map_granules(rig)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, PAGES))
    rig.until_on_disk()
    rig.device.lift_set(True)

    rig.lose_donor(0)
    rig.add_donor(1)
    other = rig.add_slab(1)
    for granule in range(2):
        rig.map(granule, other)
    until_lifted(rig)
    break_reads(rig)

    assert client.read(0, len(data)) == data


def test_pages_written_while_others_are_lifted_are_right(rig: Rig) -> None:
    client, data = write_to_disk(rig, 2048)
    shadow = Shadow(4 * GRANULE_BYTES)
    shadow.write(0, data)
    map_granules(rig, 4)
    rig.device.fault_set(0, Fault.DELAY, 1, 2000)  # so that requests meet the lifting

    rig.device.lift_set(True)
    while rig.device.figures.pages_disk_alone():
        sent = []
        for page in RNG.sample(range(0, 2048, 8), 16):
            new = stamped_pages(RNG, RNG.randrange(1, 9))
            sent.append((client.send(Command.WRITE, page * PAGE_BYTES, data=new), page * PAGE_BYTES, new))
        for cookie, offset, new in sent:
            assert client.wait(cookie).error == 0
            shadow.write(offset, new)
    client.flush()
    break_reads(rig)

    shadow.check(0, client.read(0, 4 * GRANULE_BYTES))


def test_a_page_that_cant_be_read_keeps_no_other_from_being_lifted(rig: Rig) -> None:
    client, data = write_to_disk(rig, 32)
    break_reads(rig, 20)  # the others of the run are behind what is left of the disk
    map_granules(rig)

    rig.device.lift_set(True)
    until(lambda: rig.device.figures.pages_disk_alone() == 12, what="what can be read to be at a donor")
    rig.wait_event(EventKind.DISK_ERROR)
    break_reads(rig)

    assert client.read(0, 20 * PAGE_BYTES) == data[: 20 * PAGE_BYTES]
    assert client.error_of(Command.READ, 20 * PAGE_BYTES, PAGE_BYTES) == errno.EIO


def test_a_bad_area_does_not_hold_up_what_is_behind_it(rig: Rig) -> None:
    client, data = write_to_disk(rig, 4 * GRANULE_PAGES)
    map_granules(rig, 4)
    break_reads(rig)

    rig.device.lift_set(True)
    until(lambda: failed_granules(rig) == {0, 1, 2, 3}, what="the disk to be asked for each granule")
    with open(f"/proc/self/fd/{rig.disk_fd}", "r+b") as disk:  # it was the cable
        disk.write(data)
    until_lifted(rig)
    break_reads(rig)

    assert client.read(0, len(data)) == data


def test_a_bad_granule_is_tried_in_other_places_each_round(rig: Rig) -> None:
    write_to_disk(rig, GRANULE_PAGES)
    map_granules(rig, 1)
    break_reads(rig)

    rig.device.lift_set(True)

    until(lambda: sum(page > 16 for page in failed_pages(rig)) >= 2, what="two places further on to be tried")


def test_a_page_that_is_damaged_on_the_disk_goes_to_no_donor(rig: Rig) -> None:
    client, data = write_to_disk(rig, 4)
    with open(f"/proc/self/fd/{rig.disk_fd}", "r+b") as disk:
        disk.seek(PAGE_BYTES)
        disk.write(b"rot")
    map_granules(rig)

    rig.device.lift_set(True)
    until_lifted(rig)

    assert rig.wait_event(EventKind.CHECKSUM).b == 1
    assert client.error_of(Command.READ, PAGE_BYTES, PAGE_BYTES) == errno.EIO
    assert client.read(2 * PAGE_BYTES, 2 * PAGE_BYTES) == data[2 * PAGE_BYTES :]


def test_a_donor_that_takes_no_page_gets_it_when_it_does_again(rig: Rig) -> None:
    client, data = write_to_disk(rig, 200)
    map_granules(rig)
    rig.device.fault_set(0, Fault.ERROR, 1, 0)

    rig.device.lift_set(True)
    until(lambda: rig.device.fault_hits(0) > 1, what="the donor to refuse pages")
    assert rig.device.figures.pages_disk_alone() == 200
    rig.device.fault_set(0, Fault.ERROR, 0, 0)
    until_lifted(rig)
    break_reads(rig)

    assert client.read(0, len(data)) == data


def test_a_donor_that_wants_its_memory_back_does_not_wait_for_what_is_lifted(make_rig: MakeRig) -> None:
    rig = make_rig(size_bytes=64 * MIB)
    write_to_disk(rig, 4096)
    map_granules(rig, 8)
    rig.device.lift_set(True)
    until(lambda: rig.device.figures.pages_disk_alone() < 4096, what="the lifting to begin")

    assert rig.drain(rig.slabs[0], deadline_ms=0).d == 0
    rig.forget(rig.slabs[0])


@pytest.mark.parametrize("kills", [3])
def test_a_successor_goes_on_where_it_is_told_to(rig: Rig, kills: int) -> None:
    client, data = write_to_disk(rig, 2048)
    map_granules(rig, 4)
    rig.device.lift_set(True)

    for _ in range(kills):
        rig.take_over()
        rig.device.lift_set(True)
    until_lifted(rig)
    break_reads(rig)

    assert client.read(0, len(data)) == data
