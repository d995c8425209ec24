"""What a donor's loss may and may not do: no acknowledged byte changes, and only unprotected pages are lost."""

import errno
import random
from pathlib import Path

import pytest

from farside.kmod_shim.engine.binding import DonorState, Fault, Protection
from tests.fault.conftest import MakeRig
from tests.support.nbd_client import Command
from tests.support.rig import GRANULE_BYTES, MIB, Rig
from tests.support.shadow import Shadow, stamped_pages

RNG = random.Random(3)


def test_no_stale_read_after_a_donor_failed(rig: Rig) -> None:
    # Infiniswap's worst bug: while one donor is away, writes to *healthy* donors' pages go to disk without a note of
    # it, and once things are well again reads fetch the old page from remote memory.
    slabs = rig.donors_with_slabs(2, granules=4)
    client = rig.connect()
    shadow = Shadow(rig.params.size_bytes)
    old, new = stamped_pages(RNG, 2048), stamped_pages(RNG, 2048)
    client.write(0, old)

    rig.device.donor_set(slabs[0].donor, DonorState.SUSPECT)
    client.write(0, new)
    shadow.write(0, new)
    rig.device.donor_set(slabs[0].donor, DonorState.UP)

    shadow.check(0, client.read(0, len(new)))


def test_pages_of_a_lost_donor_come_from_their_second_copy(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(2, granules=4)
    client = rig.connect()
    data = stamped_pages(RNG, 2048)
    client.write(0, data)

    rig.lose_donor(slabs[0].donor)

    assert client.read(0, len(data)) == data
    assert rig.device.stats().pages_lost == 0


def test_pages_written_while_a_donor_is_being_lost_are_right_afterwards(rig: Rig) -> None:
    rig.donors_with_slabs(2, granules=8)
    client = rig.connect()
    shadow = Shadow(rig.params.size_bytes)
    written: dict[int, tuple[int, bytes]] = {}
    rig.device.fault_set(0, Fault.DELAY, 1, 20_000)
    for page in range(64):
        data = stamped_pages(RNG, 1)
        written[client.send(Command.WRITE, page * 65536, data=data)] = (page * 65536, data)

    rig.lose_donor(0)

    for cookie, (offset, data) in written.items():
        assert client.wait(cookie).error == 0
        shadow.write(offset, data)
        shadow.check(offset, client.read(offset, 4096))


def test_a_slab_number_used_again_does_not_bring_old_pages_back(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(2, granules=2)
    client = rig.connect()
    old, new = stamped_pages(RNG, 4), stamped_pages(RNG, 4)
    client.write(0, old)
    rig.lose_donor(slabs[0].donor)
    rig.forget(slabs[0])
    client.write(0, new)

    rig.add_donor(5)
    again = rig.add_slab(5, slabs[0].number)
    rig.map(0, again)
    assert client.read(0, len(new)) == new
    client.write(4096, old[:4096])

    assert client.read(0, len(new)) == new[:4096] + old[:4096] + new[8192:]


def test_unprotected_pages_of_a_lost_donor_are_an_error_and_never_zeros_or_old_data(make_rig: MakeRig) -> None:
    rig = make_rig(protection=Protection.NONE)
    rig.donors_with_slabs(2, granules=2)
    client = rig.connect()
    client.write(0, stamped_pages(RNG, 8))
    client.write(GRANULE_BYTES, data := stamped_pages(RNG, 8))

    rig.lose_donor(0)

    assert client.error_of(Command.READ, 0, 4096) == errno.EIO
    assert client.error_of(Command.READ, 4096, 16384) == errno.EIO
    assert client.read(65536, 4096) == bytes(4096)
    assert client.read(GRANULE_BYTES, len(data)) == data
    assert rig.device.stats().pages_lost > 0


def test_each_page_that_a_failed_read_found_lost_is_counted(make_rig: MakeRig) -> None:
    rig = make_rig(protection=Protection.NONE)
    slabs = rig.donors_with_slabs(2, granules=2)
    client = rig.connect()
    for granule in range(2):
        client.write(granule * GRANULE_BYTES, stamped_pages(RNG, 8))
    rig.lose_donor(slabs[0].donor)
    (lost,) = [granule for granule in range(2) if client.error_of(Command.READ, granule * GRANULE_BYTES, 4096)]
    before = rig.device.stats().pages_lost

    at = GRANULE_BYTES - 3 * 4096 if lost else 0  # three zero pages of the granule before, or eight lost ones
    assert client.error_of(Command.READ, at, 8 * 4096) == errno.EIO

    assert rig.device.stats().pages_lost - before == (5 if lost else 8)


def test_a_lost_page_that_is_written_anew_is_well_again(make_rig: MakeRig) -> None:
    rig = make_rig(protection=Protection.NONE)
    rig.donors_with_slabs(2, granules=2)
    client = rig.connect()
    client.write(0, stamped_pages(RNG, 1))
    rig.lose_donor(0)
    rig.map(0, rig.slabs[1])

    client.write(0, data := stamped_pages(RNG, 1))

    assert client.read(0, 4096) == data


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("protection", [Protection.NONE, Protection.REPLICA])
def test_a_device_without_a_disk_is_flushed_and_taken_over(
    make_rig: MakeRig, transport: str, protection: Protection
) -> None:
    rig = make_rig(transport=transport, protection=protection)
    rig.donors_with_slabs(1, granules=1)
    client, other = rig.connect(0), rig.connect(1)
    client.write(0, data := stamped_pages(RNG, 8))
    other.flush()

    client.flush()
    rig.take_over()
    client.flush()
    other.flush()

    assert client.read(0, len(data)) == other.read(0, len(data)) == data


def test_a_replica_serves_when_its_twin_is_lost(make_rig: MakeRig) -> None:
    rig = _replicated(make_rig)
    client = rig.connect()
    data = stamped_pages(RNG, 1024)
    client.write(0, data)

    rig.lose_donor(0)

    assert client.read(0, len(data)) == data


def test_a_replicated_write_is_answered_only_when_both_copies_stand(make_rig: MakeRig) -> None:
    rig = _replicated(make_rig)
    client = rig.connect()
    shadow = Shadow(rig.params.size_bytes)

    for round_ in range(64):
        data = stamped_pages(RNG, 4)
        client.write(round_ * 16384, data)
        shadow.write(round_ * 16384, data)
    rig.lose_donor(1)

    for page in shadow.written_pages():
        shadow.check(page * 4096, client.read(page * 4096, 4096))


@pytest.mark.parametrize("kind", [Fault.ERROR, Fault.SHORT, Fault.DISCONNECT])
def test_a_link_that_breaks_costs_no_page(rig: Rig, tmp_path: Path, kind: Fault) -> None:
    rig.donors_with_slabs(2, granules=4)
    client = rig.connect()
    shadow = Shadow(rig.params.size_bytes)
    data = stamped_pages(RNG, 1024)
    client.write(0, data)
    shadow.write(0, data)

    rig.device.fault_set(0, kind, 7, 0)
    for _ in range(64):
        offset = RNG.randrange(0, 8 * MIB, 4096)
        data = stamped_pages(RNG, RNG.randrange(1, 5))
        data = data[: 8 * MIB - offset]
        client.write(offset, data)
        shadow.write(offset, data)
        shadow.check(offset, client.read(offset, len(data)))
    rig.device.fault_set(0, kind, 0, 0)

    shadow.check(0, client.read(0, 8 * MIB))


def _replicated(make_rig: MakeRig) -> Rig:
    # Two granules, each with a mapping at donor 0 and one at donor 1.
    rig = make_rig(protection=Protection.REPLICA)
    for donor in range(2):
        rig.add_donor(donor)
        slab = rig.add_slab(donor)
        for granule in range(2):
            rig.map(granule, slab)
    return rig
