"""Order between writes: on one page the newest acknowledged one wins, wherever its older sisters are held up."""

import random

from farside.kmod_shim.engine.binding import EventKind, Fault
from tests.support.nbd_client import Command
from tests.support.rig import PAGE_BYTES, Rig
from tests.support.shadow import stamped_pages

RNG = random.Random(5)


def test_a_zombie_write_is_fenced(rig: Rig) -> None:
    # The kernel gives up on a request, kills its socket, and sends it again on another. The first copy is still in the
    # server, and must not land on top of what was written since.
    rig.donors_with_slabs(1, granules=1)
    first, second = rig.connect(0), rig.connect(1)
    zombie, newest = stamped_pages(RNG, 1), stamped_pages(RNG, 1)
    rig.device.fault_set(0, Fault.DELAY, 1, 100_000)
    first.send(Command.WRITE, 0, data=zombie)
    first.sock.close()
    second.write(0, zombie)

    rig.device.fault_set(0, Fault.DELAY, 0, 0)
    second.write(0, newest)
    rig.wait_event(EventKind.CONN_CLOSED, a=0)

    assert second.read(0, PAGE_BYTES) == newest
    rig.drain(rig.slabs[0])
    assert second.read(0, PAGE_BYTES) == newest


def test_half_a_write_leaves_its_page_as_it_was(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    first, second = rig.connect(0), rig.connect(1)
    before = stamped_pages(RNG, 2)
    second.write(0, before)

    torn = first.encode(Command.WRITE, 9, 0, 2 * PAGE_BYTES, stamped_pages(RNG, 2))
    first.sock.sendall(torn[: 28 + PAGE_BYTES + 100])
    first.sock.close()
    rig.wait_event(EventKind.CONN_CLOSED, a=0)

    assert second.read(0, 2 * PAGE_BYTES) == before


def test_a_request_in_single_bytes_is_understood(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    data = stamped_pages(RNG, 1)
    for byte in (whole := client.encode(Command.WRITE, 5, 0, PAGE_BYTES, data))[:40]:
        client.sock.sendall(bytes([byte]))
    client.sock.sendall(whole[40:])

    assert client.wait(5).error == 0
    assert client.read(0, PAGE_BYTES) == data


def test_overlapping_writes_reach_the_disk_in_order(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    # Every second disk write takes its time, so that the disk would finish a later one first.
    rig.device.disk_fault_set(Fault.DELAY, 2, 5_000)
    versions = [stamped_pages(RNG, 2) for _ in range(40)]
    for n, data in enumerate(versions):  # one after the other: of writes in flight together NBD promises no order
        client.write((n % 2) * PAGE_BYTES, data)
    client.flush()
    rig.until_on_disk()
    rig.lose_donor(0)

    assert client.read(0, PAGE_BYTES) == versions[-2][:PAGE_BYTES]
    assert client.read(PAGE_BYTES, 2 * PAGE_BYTES) == versions[-1]


def test_a_read_sent_after_an_answered_write_sees_it_whatever_the_disk_does(rig: Rig) -> None:
    client = rig.connect()  # no donor at all: every page goes to disk
    rig.device.disk_fault_set(Fault.DELAY, 1, 30_000)

    for n in range(20):
        data = stamped_pages(RNG, 1)
        client.write((n % 3) * PAGE_BYTES, data)
        assert client.read((n % 3) * PAGE_BYTES, PAGE_BYTES) == data


def test_what_one_connection_wrote_another_reads(rig: Rig) -> None:
    rig.donors_with_slabs(2, granules=4)
    clients = [rig.connect(worker) for worker in range(4)]

    for n in range(200):
        data = stamped_pages(RNG, 1)
        clients[n % 4].write(n * PAGE_BYTES, data)
        assert clients[(n + 1) % 4].read(n * PAGE_BYTES, PAGE_BYTES) == data


def test_writes_of_two_connections_to_one_page_leave_one_of_them_everywhere(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    first, second, seen = rig.connect(0), rig.connect(1), b""
    for n in range(50):
        one, two = stamped_pages(RNG, 1), stamped_pages(RNG, 1)
        cookies = first.send(Command.WRITE, 0, data=one), second.send(Command.WRITE, 0, data=two)
        assert first.wait(cookies[0]).error == 0
        assert second.wait(cookies[1]).error == 0
        seen = first.read(0, PAGE_BYTES)
        assert seen in (one, two), n
        assert second.read(0, PAGE_BYTES) == seen

    first.flush()
    rig.lose_donor(0)
    assert first.read(0, PAGE_BYTES) == seen


def test_a_trim_after_a_write_that_is_still_going_to_disk_wins(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    rig.device.disk_fault_set(Fault.DELAY, 1, 30_000)
    client.write(0, stamped_pages(RNG, 512))
    client.trim(0, 512 * PAGE_BYTES)

    client.flush()

    assert client.read(0, 512 * PAGE_BYTES) == bytes(512 * PAGE_BYTES)
