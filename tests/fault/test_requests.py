"""Requests that are larger than a page: each page is found on its own, and one answer joins them."""

import errno
import random

import pytest

from farside.kmod_shim.engine.binding import Fault
from tests.fault.conftest import MakeRig
from tests.support.nbd_client import Command
from tests.support.rig import GRANULE_BYTES, MIB, PAGE_BYTES, Rig
from tests.support.shadow import Shadow, stamped_pages

RNG = random.Random(7)


def test_a_merged_read_over_pages_from_everywhere_is_right(rig: Rig) -> None:
    # Infiniswap copied one page of it and left the rest as it was.
    rig.donors_with_slabs(2, granules=2)
    client = rig.connect()
    shadow = Shadow(rig.params.size_bytes)
    on_disk = 2 * GRANULE_BYTES
    for offset in (GRANULE_BYTES, on_disk):
        for page in range(-40, 40, 3):
            data = stamped_pages(RNG, 1)
            client.write(offset + page * PAGE_BYTES, data)
            shadow.write(offset + page * PAGE_BYTES, data)
    client.trim(GRANULE_BYTES - 8 * PAGE_BYTES, 4 * PAGE_BYTES)
    shadow.zero(GRANULE_BYTES - 8 * PAGE_BYTES, 4 * PAGE_BYTES)

    for offset in (GRANULE_BYTES, on_disk):
        for length in (8, 32, 64):
            start = offset - length // 2 * PAGE_BYTES
            shadow.check(start, client.read(start, length * PAGE_BYTES))


def test_a_request_across_slabs_donors_and_unmapped_granules_is_whole(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(3, granules=6)
    client = rig.connect()
    data = stamped_pages(RNG, 4096)  # 16 MiB: six mapped granules, two that only the disk has

    client.write(PAGE_BYTES, data)

    assert client.read(PAGE_BYTES, len(data)) == data
    rig.lose_donor(slabs[0].donor)
    assert client.read(PAGE_BYTES, len(data)) == data


def test_the_largest_request_is_served_and_a_larger_one_refused(make_rig: MakeRig) -> None:
    rig = make_rig(pending_bytes=64 * MIB)
    rig.donors_with_slabs(2, granules=8)
    client = rig.connect()
    data = stamped_pages(RNG, 2048) * 4

    client.write(0, data)

    assert client.read(0, len(data)) == data
    assert client.error_of(Command.READ, 0, 32 * MIB + PAGE_BYTES) != 0
    assert client.read(0, PAGE_BYTES) == data[:PAGE_BYTES]


def test_a_request_fails_when_one_of_its_pages_does(make_rig: MakeRig) -> None:
    rig = make_rig(protection=2)
    rig.donors_with_slabs(2, granules=2)
    client = rig.connect()
    client.write(GRANULE_BYTES - 65536, stamped_pages(RNG, 32))

    rig.lose_donor(1)

    assert client.error_of(Command.READ, GRANULE_BYTES - 65536, 131072) == errno.EIO
    assert client.error_of(Command.READ, GRANULE_BYTES - 65536, 65536) == 0


@pytest.mark.parametrize(("offset", "length"), [(1, 10), (4095, 2), (100, 4096), (512, 8192), (8191, 12290)])
@pytest.mark.parametrize("command", [Command.READ, Command.WRITE, Command.TRIM, Command.WRITE_ZEROES])
def test_parts_of_pages_are_refused_and_nothing_changes(
    make_rig: MakeRig, command: Command, offset: int, length: int
) -> None:
    # The handshake says that blocks are 4096 bytes, as swap's are; no page is ever read to be changed and written.
    rig = make_rig()
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, whole := stamped_pages(RNG, 8))
    part = RNG.randbytes(length) if command == Command.WRITE else b""

    assert client.error_of(command, offset, length, part) == errno.EINVAL

    assert client.read(0, len(whole)) == whole


def test_zero_pages_are_neither_sent_nor_stored(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()

    client.write(0, bytes(64 * PAGE_BYTES))

    assert client.read(0, 64 * PAGE_BYTES) == bytes(64 * PAGE_BYTES)
    stats = rig.device.stats()
    assert stats.pages_out_remote == 0
    assert stats.pages_out_zero == 64


def test_answers_left_unread_hold_up_nobody_else(rig: Rig) -> None:
    rig.donors_with_slabs(2, granules=4)
    lazy, busy = rig.connect(0), rig.connect(1)
    data = stamped_pages(RNG, 256)
    busy.write(0, data)
    cookies = [lazy.send(Command.READ, 0, MIB) for _ in range(32)]

    for n in range(50):
        busy.write(2 * MIB + n * PAGE_BYTES, data[:PAGE_BYTES])
        assert busy.read(2 * MIB + n * PAGE_BYTES, PAGE_BYTES) == data[:PAGE_BYTES]

    for cookie in cookies:
        assert lazy.wait(cookie).data == data


def test_garbage_ends_its_own_connection_only(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    rude, polite = rig.connect(0), rig.connect(1)
    polite.write(0, data := stamped_pages(RNG, 1))

    rude.sock.sendall(b"\xff" * 280)

    assert rude.sock.recv(1) == b""
    assert polite.read(0, PAGE_BYTES) == data


def test_an_unknown_command_is_refused_and_the_next_request_served(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 1))

    client.sock.sendall(b"\x25\x60\x95\x13" + b"\x00\x00" + b"\x00\x63" + (99).to_bytes(8, "big") + bytes(12))

    assert client.wait(99).error == errno.EINVAL
    assert client.read(0, PAGE_BYTES) == data


def test_a_slow_donor_does_not_reorder_answers_into_wrong_ones(rig: Rig) -> None:
    rig.donors_with_slabs(2, granules=4)
    client = rig.connect()
    rig.device.fault_set(0, Fault.DELAY, 3, 3_000)
    contents = [stamped_pages(RNG, 1) for _ in range(64)]
    for n, data in enumerate(contents):
        client.write(n * 65536, data)

    cookies = [client.send(Command.READ, n * 65536, PAGE_BYTES) for n in range(64)]

    assert [client.wait(cookie).data for cookie in cookies] == contents
