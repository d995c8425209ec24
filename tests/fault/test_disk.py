"""The backup disk: its errors, its slowness, and the bound on what waits for it."""

import errno
import os
import random
import time

from farside.kmod_shim.engine.binding import EventKind, Fault
from tests.fault.conftest import MakeRig
from tests.support.nbd_client import Command
from tests.support.rig import MIB, PAGE_BYTES, Rig
from tests.support.shadow import stamped_pages
from tests.support.waiting import until

RNG = random.Random(11)


def test_what_is_replaced_at_once_goes_to_the_disk_once(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    versions = [stamped_pages(RNG, 8) for _ in range(30)]

    cookies = [client.send(Command.WRITE, 0, data=data) for data in versions]
    for cookie in cookies:
        client.wait(cookie)
    rig.until_on_disk()

    assert 8 <= rig.device.stats().pages_out_disk < 8 * len(versions)
    rig.lose_donor(slabs[0].donor)
    assert client.read(0, 8 * PAGE_BYTES) == versions[-1]


def test_a_flush_waits_for_what_another_connection_wrote_last(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    writer, flusher = rig.connect(0), rig.connect(1)

    for n in range(20):
        writer.write(n * 8 * PAGE_BYTES, stamped_pages(RNG, 8))
        flusher.flush()
        assert rig.device.figures.pending_bytes() == 0
        assert rig.device.stats().pages_out_disk == (n + 1) * 8


def test_a_disk_write_error_does_not_reach_a_page_that_a_donor_holds(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    rig.device.disk_fault_set(Fault.ERROR, 1, 0)

    client.write(0, data := stamped_pages(RNG, 8))
    rig.wait_event(EventKind.DISK_ERROR)

    assert client.read(0, len(data)) == data
    assert rig.device.stats().disk_errors > 0


def test_a_page_whose_disk_write_failed_is_never_served_stale_from_disk(rig: Rig) -> None:
    # Infiniswap drops the error; the next eviction then brings back what the disk held before.
    slabs = rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, old := stamped_pages(RNG, 8))
    client.flush()
    rig.device.disk_fault_set(Fault.ERROR, 1, 0)
    client.write(0, new := stamped_pages(RNG, 8))
    rig.wait_event(EventKind.DISK_ERROR)

    rig.lose_donor(slabs[0].donor)
    reply = client.wait(client.send(Command.READ, 0, len(new)))

    assert reply.data != old
    assert reply.error == errno.EIO or reply.data == new


def test_a_disk_that_recovers_before_an_eviction_gets_the_page(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    rig.device.disk_fault_set(Fault.ERROR, 1, 0)
    client.write(0, data := stamped_pages(RNG, 8))
    rig.wait_event(EventKind.DISK_ERROR)
    rig.device.disk_fault_set(Fault.ERROR, 0, 0)

    rig.drain(slabs[0])

    assert client.read(0, len(data)) == data


def test_a_short_disk_write_is_not_taken_for_a_whole_one(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    rig.device.disk_fault_set(Fault.SHORT, 1, 0)
    client.write(0, data := stamped_pages(RNG, 32))
    rig.wait_event(EventKind.DISK_ERROR)
    rig.device.disk_fault_set(Fault.SHORT, 0, 0)

    rig.drain(rig.slabs[0])

    assert client.read(0, len(data)) == data


def test_a_write_that_no_place_took_is_an_error_of_the_write(rig: Rig) -> None:
    # When in doubt the WRITE fails, which costs nobody anything; a READ that fails kills a process.
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 1))
    client.flush()
    rig.device.disk_fault_set(Fault.ERROR, 1, 0)

    assert client.error_of(Command.WRITE, 65536, data=stamped_pages(RNG, 1)) == errno.EIO

    assert client.read(0, len(data)) == data


def test_writes_wait_at_the_pending_bound_and_then_fail_while_reads_never_do(make_rig: MakeRig) -> None:
    rig = make_rig(pending_bytes=16 * MIB, flush_wait_ms=300)
    rig.donors_with_slabs(2, granules=16)
    client, reader = rig.connect(0), rig.connect(1)
    reader.write(30 * MIB, seen := stamped_pages(RNG, 16))
    rig.until_on_disk()
    rig.device.disk_fault_set(Fault.DELAY, 1, 2_000_000)
    data = stamped_pages(RNG, 256)

    cookies = [client.send(Command.WRITE, n * MIB, data=data) for n in range(24)]
    until(lambda: rig.device.stats().waits_pending > 0, what="a write to wait")
    started_s = time.monotonic()
    for _ in range(10):
        assert reader.read(30 * MIB, len(seen)) == seen
    assert time.monotonic() - started_s < 2.0
    errors = [client.wait(cookie).error for cookie in cookies]

    assert errors[0] == 0
    assert set(errors) == {0, errno.EIO}
    assert rig.device.figures.pending_bytes() <= 16 * MIB * rig.params.workers
    for n, error in enumerate(errors):
        if error == 0:
            assert client.read(n * MIB, len(data)) == data


def test_writes_that_waited_go_on_when_the_disk_does(make_rig: MakeRig) -> None:
    rig = make_rig(pending_bytes=16 * MIB, flush_wait_ms=30_000)
    rig.donors_with_slabs(2, granules=16)
    client = rig.connect()
    rig.device.disk_fault_set(Fault.DELAY, 1, 2_000_000)
    data = stamped_pages(RNG, 256)

    cookies = [client.send(Command.WRITE, n * MIB, data=data) for n in range(24)]
    until(lambda: rig.device.stats().waits_pending > 0, what="a write to wait")
    rig.device.disk_fault_set(Fault.DELAY, 0, 0)

    assert [client.wait(cookie).error for cookie in cookies] == [0] * 24
    assert client.read(23 * MIB, MIB) == data


def test_an_encrypted_disk_holds_no_plain_page(make_rig: MakeRig) -> None:
    rig = make_rig(encrypt_disk=1)
    client = rig.connect()
    plain = (b"a secret in swap" * 256) * 4
    client.write(0, plain)
    client.flush()

    with open(f"/proc/self/fd/{rig.disk_fd}", "rb") as disk:
        stored = disk.read(len(plain))

    assert b"a secret in swap" not in stored
    assert stored[:PAGE_BYTES] != stored[PAGE_BYTES : 2 * PAGE_BYTES]
    assert client.read(0, len(plain)) == plain


def test_a_corrupted_disk_page_is_an_error_and_not_wrong_data(rig: Rig) -> None:
    client = rig.connect()
    client.write(0, stamped_pages(RNG, 1))
    client.flush()
    rig.until_on_disk()
    with open(f"/proc/self/fd/{rig.disk_fd}", "r+b") as disk:
        disk.write(b"rot")

    assert client.error_of(Command.READ, 0, PAGE_BYTES) == errno.EIO
    assert rig.wait_event(EventKind.CHECKSUM).b == 0


def test_a_page_that_the_disk_cannot_read_is_an_error_and_counts_as_lost(rig: Rig) -> None:
    client = rig.connect()
    client.write(0, stamped_pages(RNG, 1))
    client.flush()
    rig.until_on_disk()
    os.ftruncate(rig.disk_fd, 0)

    assert client.error_of(Command.READ, 0, PAGE_BYTES) == errno.EIO
    assert rig.device.stats().pages_lost == 1


def test_a_flush_says_that_the_disk_refuses_instead_of_waiting_for_ever(rig: Rig) -> None:
    client = rig.connect()  # no donor: the disk is all there is
    rig.device.disk_fault_set(Fault.ERROR, 1, 0)
    assert client.error_of(Command.WRITE, 0, data=stamped_pages(RNG, 1)) == errno.EIO

    assert client.error_of(Command.FLUSH) == errno.EIO

    rig.device.disk_fault_set(Fault.ERROR, 0, 0)
    until(lambda: client.error_of(Command.FLUSH) == 0, what="a flush after the disk has recovered")


def test_a_donor_that_is_slow_still_serves_what_the_disk_can_not_be_read_for(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 1500))
    rig.until_on_disk()
    os.ftruncate(rig.disk_fd, 0)
    rig.device.fault_set(0, Fault.DELAY, 1, 60_000)  # far longer than a read waits before it asks the disk

    for page in range(0, 1500, 50):
        assert client.read(page * PAGE_BYTES, 50 * PAGE_BYTES) == data[page * PAGE_BYTES : (page + 50) * PAGE_BYTES]
    assert client.read(0, len(data)) == data

    stats = rig.device.stats()
    assert stats.reads_hedged > 0
    assert stats.disk_errors <= 2 * stats.reads_hedged  # asked once each, not again and again
    assert stats.pages_lost == 0


def test_a_donor_that_is_suspect_is_waited_for_where_the_disk_can_not_be_read(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 8))
    rig.until_on_disk()
    os.ftruncate(rig.disk_fd, 0)
    rig.device.fault_set(0, Fault.DISCONNECT, 1, 0)

    cookie = client.send(Command.READ, 0, len(data))
    until(lambda: rig.device.stats().disk_errors > 16, what="the disk to be asked in vain")
    rig.device.fault_set(0, Fault.DISCONNECT, 0, 0)
    rig.add_donor(0)

    assert client.wait(cookie).data == data


def test_pages_that_neither_the_disk_nor_a_donor_gives_are_lost_when_the_donor_is_given_up(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, stamped_pages(RNG, 8))
    rig.until_on_disk()
    os.ftruncate(rig.disk_fd, 0)
    rig.device.fault_set(0, Fault.DISCONNECT, 1, 0)

    cookie = client.send(Command.READ, 0, 8 * PAGE_BYTES)
    until(lambda: rig.device.stats().disk_errors > 16, what="the disk to be asked in vain")
    rig.lose_donor(0)

    assert client.wait(cookie).error == errno.EIO


def test_a_donor_that_only_refuses_does_not_hold_a_read_for_ever_where_the_disk_can_not_be_read(hasty: Rig) -> None:
    hasty.donors_with_slabs(1, granules=1)
    client = hasty.connect()
    client.write(0, stamped_pages(RNG, 8))
    hasty.until_on_disk()
    os.ftruncate(hasty.disk_fd, 0)
    hasty.device.fault_set(0, Fault.ERROR, 1, 0)

    assert client.error_of(Command.READ, 0, 8 * PAGE_BYTES) == errno.EIO
