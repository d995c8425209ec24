"""Donors that answer late, never, or wrongly."""

import errno
import random
import time

import pytest

from farside.blockdev.params import NEVER_US
from farside.kmod_shim.engine.binding import DonorState, EventKind, Fault, Protection
from tests.fault.conftest import MakeRig
from tests.support.nbd_client import Command, NbdClient
from tests.support.rig import GRANULE_BYTES, PAGE_BYTES, Rig
from tests.support.shadow import Shadow, stamped_pages
from tests.support.waiting import until

RNG = random.Random(13)
LATE_US = 2_000_000
READS = 60  # more than the hedges that are saved up (hedge.c)


def _read_from_a_hanging_donor(rig: Rig) -> None:
    """What is on the disk too is read, and the donor suspected, long before a client would give up."""
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 4))
    rig.until_on_disk()

    rig.device.fault_set(0, Fault.HANG, 1, 0)
    started_s = time.monotonic()
    assert client.read(0, len(data)) == data
    rig.wait_event(EventKind.DONOR_SUSPECT, a=0)

    assert time.monotonic() - started_s < 20.0


def test_a_hanging_donor_is_suspected_after_its_deadline(hasty: Rig) -> None:
    _read_from_a_hanging_donor(hasty)

    assert hasty.device.donor_get(0) == DonorState.SUSPECT


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_hanging_donor_is_suspected_after_its_deadline_where_nothing_is_hedged(
    make_rig: MakeRig, transport: str
) -> None:
    rig = make_rig(transport=transport, deadline_ms=500, hedge_us=NEVER_US)

    _read_from_a_hanging_donor(rig)

    assert rig.device.stats().reads_hedged == 0


def test_what_a_donor_owes_is_waited_for_no_longer_once_it_is_given_up(make_rig: MakeRig) -> None:
    rig = make_rig(transport="tcp", deadline_ms=60_000, hedge_us=NEVER_US)
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 4))
    rig.until_on_disk()
    rig.device.fault_set(0, Fault.HANG, 1, 0)
    hits = rig.device.fault_hits(0)
    cookie = client.send(Command.READ, 0, len(data))
    until(lambda: rig.device.fault_hits(0) > hits, what="the donor to be asked")

    rig.lose_donor(0)

    assert client.wait(cookie).data == data


def test_writes_go_round_a_suspected_donor(hasty: Rig) -> None:
    rig = hasty
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, stamped_pages(RNG, 4))
    rig.device.fault_set(0, Fault.HANG, 1, 0)

    client.write(0, new := stamped_pages(RNG, 4))
    rig.wait_event(EventKind.DONOR_SUSPECT, a=0)
    client.write(16384, more := stamped_pages(RNG, 4))

    assert rig.device.stats().writes_round > 0
    assert client.read(0, len(new) + len(more)) == new + more


def test_a_donor_that_comes_to_itself_does_not_show_what_it_missed(hasty: Rig) -> None:
    rig = hasty
    rig.donors_with_slabs(1, granules=2)
    client = rig.connect()
    shadow = Shadow(rig.params.size_bytes)
    rig.device.fault_set(0, Fault.HANG, 1, 0)
    for n in range(16):
        data = stamped_pages(RNG, 2)
        client.write(n * 4096, data)
        shadow.write(n * 4096, data)
    rig.wait_event(EventKind.DONOR_SUSPECT, a=0)

    rig.device.fault_set(0, Fault.HANG, 0, 0)
    rig.device.donor_set(0, DonorState.UP)

    shadow.check(0, client.read(0, 17 * PAGE_BYTES))


def test_a_read_is_hedged_to_disk_when_its_donor_is_slow(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 1))
    rig.until_on_disk()
    rig.device.fault_set(0, Fault.DELAY, 1, LATE_US)

    started_s = time.monotonic()
    assert client.read(0, PAGE_BYTES) == data

    assert time.monotonic() - started_s < LATE_US / 1e6
    stats = rig.device.stats()
    assert stats.reads_hedged > 0
    assert 0 < stats.hedges_won <= stats.reads_hedged


def test_a_donor_that_is_always_slow_is_read_all_the_same(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 1))
    rig.until_on_disk()
    rig.device.fault_set(0, Fault.DELAY, 1, 20_000)
    floor_ns = rig.device.figures.hedge_ns(0)

    for _ in range(READS):
        assert client.read(0, PAGE_BYTES) == data

    stats = rig.device.stats()
    assert rig.device.figures.hedge_ns(0) > floor_ns
    assert stats.reads_hedged < READS / 2
    assert stats.pages_in_remote > READS / 2


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_read_of_a_donor_that_hangs_is_hedged_though_the_budget_is_spent(
    make_rig: MakeRig, transport: str
) -> None:
    rig = make_rig(transport=transport, deadline_ms=60_000)
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 1))
    rig.until_on_disk()
    rig.device.fault_set(0, Fault.HANG, 1, 0)

    for _ in range(READS):
        assert client.read(0, PAGE_BYTES) == data

    stats = rig.device.stats()
    assert stats.reads_hedged == stats.hedges_won == stats.pages_in_disk == READS
    assert rig.device.donor_get(0) == DonorState.UP


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_of_many_reads_that_are_late_at_once_some_are_refused_at_first_and_all_are_answered(
    make_rig: MakeRig, transport: str
) -> None:
    # late after 250 ms and lost after a second: a busy machine looks at them in between
    rig = make_rig(transport=transport, hedge_us=250_000, deadline_ms=60_000)
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, READS))
    rig.until_on_disk()
    rig.device.fault_set(0, Fault.HANG, 1, 0)

    cookies = [client.send(Command.READ, page * PAGE_BYTES, PAGE_BYTES) for page in range(READS)]

    for page, cookie in enumerate(cookies):
        assert client.wait(cookie).data == data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
    stats = rig.device.stats()
    assert 0 < stats.hedges_no_budget + stats.hedges_overload <= READS
    assert stats.pages_in_disk == READS


def test_a_read_is_hedged_to_the_replica_when_its_donor_is_slow(make_rig: MakeRig) -> None:
    rig = make_rig(protection=Protection.REPLICA)
    for donor in range(2):
        rig.add_donor(donor)
        rig.map(0, rig.add_slab(donor))
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 1))
    rig.device.fault_set(0, Fault.DELAY, 1, LATE_US)

    started_s = time.monotonic()
    assert client.read(0, PAGE_BYTES) == data

    assert time.monotonic() - started_s < LATE_US / 1e6


def is_damage_seen(rig: Rig, client: NbdClient, data: bytes) -> bool:
    """Whether a donor's damaged answer was noticed; what is read is right in any case."""
    # The disk may be the first to answer, where the donor's answer has to wait for a processor.
    assert client.read(0, len(data)) == data
    return rig.device.stats().checksum_errors > 0


def test_a_corrupting_donor_is_caught_by_the_checksum(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 32))
    rig.until_on_disk()

    rig.device.fault_set(0, Fault.CORRUPT, 1, 0)

    until(lambda: is_damage_seen(rig, client, data), what="the damage to be seen")
    assert rig.wait_event(EventKind.CHECKSUM).a == 0


def test_a_write_that_was_corrupted_on_its_way_is_caught_when_it_is_read(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    rig.device.fault_set(0, Fault.CORRUPT, 1, 0)
    client.write(0, data := stamped_pages(RNG, 4))
    rig.until_on_disk()
    rig.device.fault_set(0, Fault.CORRUPT, 0, 0)

    until(lambda: is_damage_seen(rig, client, data), what="the damage to be seen")


def test_a_page_that_somebody_changed_in_the_donors_memory_is_not_served(make_rig: MakeRig) -> None:
    rig = make_rig()
    slab = rig.donors_with_slabs(1, granules=1)[0]
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 2))
    rig.until_on_disk()

    slab.memory[100] = slab.memory[100] ^ 1

    assert client.read(0, len(data)) == data


def test_a_corrupted_page_without_a_second_copy_is_an_error(make_rig: MakeRig) -> None:
    rig = make_rig(protection=Protection.NONE)
    slab = rig.donors_with_slabs(1, granules=1)[0]
    client = rig.connect()
    client.write(0, data := stamped_pages(RNG, 2))

    slab.memory[100] = slab.memory[100] ^ 1

    assert client.error_of(Command.READ, 0, PAGE_BYTES) == errno.EIO
    assert client.read(PAGE_BYTES, PAGE_BYTES) == data[PAGE_BYTES:]


def test_one_slow_donor_does_not_slow_the_others_pages(rig: Rig) -> None:
    rig.donors_with_slabs(2, granules=8)
    client = rig.connect()
    quick = next(c for c in range(8) if rig.device.cluster_get(c)[0].slab == 1) * GRANULE_BYTES
    client.write(quick, data := stamped_pages(RNG, 1))
    rig.device.fault_set(0, Fault.HANG, 1, 0)
    slow = next(c for c in range(8) if rig.device.cluster_get(c)[0].slab == 0) * GRANULE_BYTES
    client.send(Command.WRITE, slow, data=data)

    started_s = time.monotonic()
    assert client.read(quick, PAGE_BYTES) == data

    assert time.monotonic() - started_s < rig.params.deadline_ms / 1000
