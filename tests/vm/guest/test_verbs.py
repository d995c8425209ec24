"""Pages by one-sided RDMA over soft RoCE, both ends in one guest: none is wrong, and what is revoked opens nothing."""

import os
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from farside.errors import EngineError
from farside.kmod_shim.engine.binding import (
    EventKind,
    Exporter,
    Protection,
    RdmaLink,
    features,
    rdma_devices,
)
from farside.kmod_shim.engine.binding import map as map_memory
from farside.kmod_shim.engine.binding import unmap as unmap_memory
from tests.support import rdma_donor, rdma_reader
from tests.support.nbd_client import Command
from tests.support.rdma import rdma_address
from tests.support.rig import MIB, PAGE_BYTES, RDMA_LIMIT_MS, SESSION, Rig, default_params
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("lasting_rxe0")

# An emulated guest on a busy machine answers late for no fault of its own.
PATIENT_MS = 15_000
EIO = 5
EACCES = 13
ADDRESS_WITHOUT_RDMA = "10.0.2.15"  # eth0's; the soft device is eth1's


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """A borrower whose pages have no second copy: what is wrong or lost is seen."""
    params = default_params(workers=1, protection=Protection.NONE, deadline_ms=PATIENT_MS)
    with Rig(tmp_path, params, transport="rdma") as made:
        yield made


def random_pages(count: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(count * PAGE_BYTES)


def test_the_engine_has_rdma_and_sees_the_device() -> None:
    assert "rdma" in features()
    assert rdma_devices() == 1


def test_what_is_written_by_rdma_comes_back(rig: Rig) -> None:
    rig.donors_with_slabs(2, granules=4)
    client = rig.connect()
    content = bytearray(random_pages(2048, seed=1))
    client.write(0, bytes(content))

    for number in range(0, 2048, 13):
        page = random_pages(1, seed=number)
        content[number * PAGE_BYTES : (number + 1) * PAGE_BYTES] = page
        client.write(number * PAGE_BYTES, page)

    assert client.read(0, 4 * MIB) == content[: 4 * MIB]
    for number in range(0, 2048, 17):
        assert client.read(number * PAGE_BYTES, PAGE_BYTES) == content[number * PAGE_BYTES : (number + 1) * PAGE_BYTES]
    stats = rig.device.stats()
    assert stats.pages_out_remote == 2048 + len(range(0, 2048, 13))
    assert stats.pages_in_remote == 1024 + len(range(0, 2048, 17))
    assert stats.checksum_errors == stats.link_errors == 0
    # One key for each slab that a queue pair touches, whatever the number of pages.
    assert [exporter.stats().rdma_keys for exporter in rig.exporters.values()] == [1, 1]


def test_the_donors_processor_does_nothing_for_a_page(rig: Rig) -> None:
    with rdma_donor.running(rdma_address(), connections=2) as donor:
        rdma_reader.link(rig, donor)
        client = rig.connect()
        content = random_pages(128, seed=3)
        client.write(0, content)

        before, began_s = donor.cpu_time(), time.monotonic()
        for _ in range(40):
            assert client.read(0, len(content)) == content
        elapsed_s, after = time.monotonic() - began_s, donor.cpu_time()

    moved = rig.device.stats().pages_in_remote
    print(
        f"{moved} pages read, {moved / elapsed_s:.0f} a second; the donor's process before and after: {before}, {after}"
    )
    assert moved >= 4000
    assert after.user_ticks == before.user_ticks
    assert after.switches == before.switches  # it was not woken once
    assert after.system_ticks - before.system_ticks <= 1  # a tick of the clock may find an interrupt on top of it


def test_a_revoked_key_opens_nothing(rig: Rig) -> None:
    (slab,) = rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    page = random_pages(1, seed=4)
    client.write(0, page)
    assert client.read(0, PAGE_BYTES) == page

    rig.exporters[0].revoke(slab.info.lease)  # as after a deadline: the borrower has not let go
    slab.memory[:] = bytes(len(slab.memory))

    cookie = client.send(Command.READ, 0, PAGE_BYTES)

    assert rig.wait_event(EventKind.LINK_DOWN, a=0).c == EACCES  # IBV_WC_REM_ACCESS_ERR
    assert slab.memory[:PAGE_BYTES] == bytes(PAGE_BYTES)
    rig.lose_donor(0)
    assert client.wait(cookie).error == EIO  # it had no second copy


def test_a_write_by_a_revoked_key_lands_nowhere(rig: Rig) -> None:
    (slab,) = rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, random_pages(1, seed=4))

    rig.exporters[0].revoke(slab.info.lease)
    slab.memory[:] = bytes(len(slab.memory))
    client.send(Command.WRITE, 0, data=random_pages(1, seed=5))

    assert rig.wait_event(EventKind.LINK_DOWN, a=0).c == EACCES
    assert slab.memory[:] == bytes(len(slab.memory))


def test_a_fence_ends_the_queue_pairs_and_new_ones_go_on(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    page = random_pages(1, seed=6)
    client.write(0, page)

    rig.exporters[0].fence(SESSION)

    assert rig.exporters[0].stats().rdma_connections == 0
    rig.wait_event(EventKind.LINK_DOWN, a=0)
    rig.add_donor(0)
    until(lambda: client.error_of(Command.READ, 0, PAGE_BYTES) == 0, what="the page by a new queue pair", deadline_s=60)
    assert client.read(0, PAGE_BYTES) == page


def test_a_slab_is_registered_ahead_and_its_registration_ends_with_it(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    exporter = rig.exporters[0]
    until(lambda: exporter.stats().rdma_registered_bytes > 0, what="the leased slab's registration")
    before = exporter.stats().rdma_registered_bytes
    fd = os.memfd_create("ready")
    os.truncate(fd, MIB)
    address = map_memory(fd, MIB)

    exporter.offer(address, MIB)
    until(lambda: exporter.stats().rdma_registered_bytes == before + MIB, what="its registration")
    exporter.withdraw(address)

    assert exporter.stats().rdma_registered_bytes == before
    unmap_memory(address, MIB)
    os.close(fd)


def test_an_address_without_rdma_is_refused_in_time() -> None:
    exporter = Exporter()
    try:
        with socket.create_server((ADDRESS_WITHOUT_RDMA, 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        exporter.conn_rdma(SESSION, theirs.detach())
        with ours, pytest.raises(EngineError):
            RdmaLink(ours.fileno(), RDMA_LIMIT_MS)
    finally:
        exporter.destroy()
