"""A donor wants back what nobody else has: the disk refuses it, or is behind, or there is none."""

import errno
import random

import pytest

from farside.kmod_shim.engine.binding import Fault, Protection
from tests.fault.conftest import MakeRig
from tests.support.nbd_client import Command, NbdClient
from tests.support.rig import GRANULE_BYTES, MIB, PAGE_BYTES, Rig, Slab
from tests.support.shadow import stamped_pages
from tests.support.waiting import until

PAGES = 1024


@pytest.fixture(params=["shm", "tcp"])
def rig(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    """A patient one: nothing here is about a donor that is late, on however busy a machine."""
    return make_rig(transport=request.param, deadline_ms=10_000)


def written_to_a_donor_alone(rig: Rig, client: NbdClient, seed: int) -> bytes:
    """Pages of the first granules that the disk has refused: one donor has them, and nobody else."""
    data = stamped_pages(random.Random(seed), PAGES)
    rig.device.disk_fault_set(Fault.ERROR, 1, 0)
    client.write(0, data)
    until(lambda: rig.device.figures.pages_exposed() == PAGES, what="a disk that has refused every page")
    rig.until_on_disk()
    return data


@pytest.mark.parametrize("deadline_ms", [0, 100])
def test_a_recalled_page_that_the_disk_refuses_is_kept_in_memory(rig: Rig, deadline_ms: int) -> None:
    (slab,) = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    data = written_to_a_donor_alone(rig, client, 1)

    drained = rig.drain(slab, deadline_ms=deadline_ms)
    rig.forget(slab)

    assert (drained.b, drained.c, drained.d) == (0, PAGES, 0)
    assert client.read(0, len(data)) == data
    assert rig.device.figures.pending_bytes() == len(data)
    assert rig.device.figures.pages_exposed() == 0
    assert client.error_of(Command.FLUSH) == errno.EIO


def test_what_was_kept_reaches_the_disk_when_it_works_again(rig: Rig) -> None:
    (slab,) = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    data = written_to_a_donor_alone(rig, client, 2)
    rig.drain(slab, deadline_ms=0)

    rig.device.disk_fault_set(Fault.ERROR, 0, 0)
    rig.until_on_disk()

    before = rig.device.stats().pages_in_disk
    assert client.read(0, len(data)) == data
    assert rig.device.stats().pages_in_disk - before == PAGES
    client.flush()


def test_a_disk_that_is_far_behind_does_not_hold_up_a_recall(rig: Rig) -> None:
    (slab,) = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    data = written_to_a_donor_alone(rig, client, 3)
    rig.device.disk_fault_set(Fault.ERROR, 0, 0)
    rig.device.disk_fault_set(
        Fault.DELAY, 1, 1_000_000
    )  # one page after the other, this would take a quarter of an hour

    drained = rig.drain(slab, deadline_ms=1000)
    rig.forget(slab)

    assert (drained.c, drained.d) == (PAGES, 0)
    assert client.read(0, len(data)) == data
    rig.device.disk_fault_set(Fault.DELAY, 0, 0)


def test_a_newer_write_of_a_kept_page_frees_its_place(rig: Rig) -> None:
    (slab,) = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    written_to_a_donor_alone(rig, client, 4)
    rig.drain(slab, deadline_ms=0)
    rig.forget(slab)

    client.trim(0, 2 * GRANULE_BYTES)

    rig.until_on_disk()
    assert client.read(0, 2 * GRANULE_BYTES) == bytes(2 * GRANULE_BYTES)


def test_a_successor_goes_on_with_what_was_kept(rig: Rig) -> None:
    (slab,) = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    data = written_to_a_donor_alone(rig, client, 5)
    rig.drain(slab, deadline_ms=0)
    rig.forget(slab)

    rig.take_over()

    assert client.read(0, len(data)) == data
    rig.until_on_disk()
    assert client.read(0, len(data)) == data


def test_more_than_there_is_room_for_is_lost_and_counted(make_rig: MakeRig) -> None:
    rig = make_rig(pending_bytes=16 * MIB, flush_wait_ms=10_000)
    slabs = rig.donors_with_slabs(1, granules=12)
    client = rig.connect()
    data = stamped_pages(random.Random(6), 12 * GRANULE_BYTES // PAGE_BYTES)
    rig.device.disk_fault_set(Fault.ERROR, 1, 0)
    for begin in range(0, len(data), MIB):
        client.write(begin, data[begin : begin + MIB])
    until(
        lambda: rig.device.figures.pages_exposed() == len(data) // PAGE_BYTES, what="a disk that has refused every page"
    )
    rig.until_on_disk()

    lost = sum(rig.drain(slab, deadline_ms=0).d for slab in slabs)

    assert lost == 8 * MIB // PAGE_BYTES
    assert rig.device.figures.pending_bytes() == 16 * MIB
    failed = 0
    for begin in range(0, len(data), PAGE_BYTES):
        reply = client.wait(client.send(Command.READ, begin, PAGE_BYTES))
        assert reply.error == errno.EIO or reply.data == data[begin : begin + PAGE_BYTES]
        failed += reply.error == errno.EIO
    assert failed == lost


@pytest.fixture
def bare(make_rig: MakeRig) -> Rig:
    """Without a disk, and with one donor up: each page has one copy."""
    return make_rig(protection=Protection.REPLICA)


def recalled(rig: Rig, client: NbdClient, slab: Slab, seed: int) -> bytes:
    """Pages that the only donor wanted back."""
    client.write(0, data := stamped_pages(random.Random(seed), PAGES))
    drained = rig.drain(slab, deadline_ms=100)
    rig.forget(slab)
    assert (drained.c, drained.d) == (PAGES, 0)
    return data


def test_without_a_disk_the_last_copy_waits_in_memory_for_a_donor_with_room(bare: Rig) -> None:
    (slab,) = bare.donors_with_slabs(1, granules=4)
    client = bare.connect()
    data = recalled(bare, client, slab, 7)
    assert client.read(0, len(data)) == data
    assert bare.device.figures.pending_bytes() == len(data)

    bare.add_donor(1)
    target = bare.add_slab(1)
    for granule in range(4):
        bare.map(granule, target)

    bare.until_on_disk()
    before = bare.device.stats().pages_in_remote
    assert client.read(0, len(data)) == data
    assert bare.device.stats().pages_in_remote - before == PAGES


def test_without_a_disk_a_successor_keeps_them_too(bare: Rig) -> None:
    (slab,) = bare.donors_with_slabs(1, granules=4)
    client = bare.connect()
    data = recalled(bare, client, slab, 8)

    bare.take_over()

    assert client.read(0, len(data)) == data
    assert bare.device.figures.pending_bytes() == len(data)


def test_what_was_kept_is_dropped_when_a_donor_has_newer_content(rig: Rig) -> None:
    (slab,) = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    written_to_a_donor_alone(rig, client, 9)
    rig.drain(slab, deadline_ms=0)

    rig.add_donor(1)
    target = rig.add_slab(1)
    for granule in range(4):
        rig.map(granule, target)
    client.write(0, newer := stamped_pages(random.Random(10), PAGES))

    assert client.read(0, len(newer)) == newer
    rig.until_on_disk()
    assert client.read(0, len(newer)) == newer
