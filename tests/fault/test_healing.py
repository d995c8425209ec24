"""A promised second copy that is missing: it is known, and it is written again without anybody asking for it."""

import mmap
import os
import random
import signal

import pytest

from farside.kmod_shim.engine.binding import Device, DonorState, EventKind, Fault, Protection
from tests.fault.conftest import MakeRig
from tests.support.nbd_client import Command
from tests.support.rig import GRANULE_BYTES, PAGE_BYTES, Rig
from tests.support.shadow import Shadow, stamped_pages
from tests.support.waiting import until

RNG = random.Random(17)
GRANULES = 4
SIZE_BYTES = GRANULES * GRANULE_BYTES


@pytest.fixture(params=["shm", "tcp"])
def twins(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    """Four granules, each with a mapping at donor 0 and one at donor 1; no disk."""
    rig = make_rig(transport=request.param, protection=Protection.REPLICA)
    for donor in range(2):
        rig.add_donor(donor)
        slab = rig.add_slab(donor)
        for granule in range(GRANULES):
            rig.map(granule, slab)
    return rig


def until_healed(device: Device) -> None:
    """Returns when every page has its second copy."""
    until(lambda: device.figures.pages_exposed() == 0, what="every page to have two copies")


def write_past(rig: Rig, donor: int, data: bytes) -> None:
    """Writes at 0 while the donor is suspect; it stays so."""
    rig.device.donor_set(donor, DonorState.SUSPECT)
    rig.connect(3).write(0, data)


def test_pages_written_past_a_suspect_donor_survive_the_loss_of_the_other_one(twins: Rig) -> None:
    client = twins.connect()
    client.write(0, stamped_pages(RNG, 2048))
    write_past(twins, 1, new := stamped_pages(RNG, 1500))
    assert twins.device.figures.pages_exposed() == 1500

    twins.device.donor_set(1, DonorState.UP)
    until_healed(twins.device)
    twins.lose_donor(0)

    assert client.read(0, len(new)) == new
    assert twins.device.stats().pages_lost == 0


def test_exposed_pages_are_counted_one_by_one(twins: Rig) -> None:
    client = twins.connect()
    client.write(0, stamped_pages(RNG, 20))
    assert twins.device.figures.pages_exposed() == 0

    write_past(twins, 1, stamped_pages(RNG, 8) + bytes(2 * PAGE_BYTES))
    assert twins.device.figures.pages_exposed() == 8
    client.write(4 * PAGE_BYTES, stamped_pages(RNG, 8))
    assert twins.device.figures.pages_exposed() == 12
    client.trim(0, 3 * PAGE_BYTES)
    assert twins.device.figures.pages_exposed() == 9


def test_a_page_that_is_written_anew_to_both_donors_is_not_exposed_any_more(twins: Rig) -> None:
    write_past(twins, 1, stamped_pages(RNG, 8))
    twins.device.fault_set(0, Fault.ERROR, 1, 0)  # nothing can be read to be copied
    twins.device.donor_set(1, DonorState.UP)
    assert twins.device.figures.pages_exposed() == 8

    twins.device.fault_set(0, Fault.ERROR, 0, 0)
    twins.connect().write(0, stamped_pages(RNG, 8))

    assert twins.device.figures.pages_exposed() == 0


def test_a_copy_that_one_donor_failed_to_take_is_made_again(twins: Rig) -> None:
    client = twins.connect()
    twins.device.fault_set(1, Fault.ERROR, 1, 0)
    client.write(0, data := stamped_pages(RNG, 64))
    assert twins.device.figures.pages_exposed() == 64

    twins.device.fault_set(1, Fault.ERROR, 0, 0)
    until_healed(twins.device)
    twins.lose_donor(0)

    assert client.read(0, len(data)) == data


def test_a_damaged_copy_is_made_again_from_its_twin(twins: Rig) -> None:
    client = twins.connect()
    client.write(0, data := stamped_pages(RNG, 4))
    twins.slabs[0].memory[100] ^= 1

    def is_found() -> bool:  # a read that is hedged may be answered by the other copy
        assert client.read(0, len(data)) == data
        return any(event.kind == EventKind.CHECKSUM for event in twins.events())

    until(is_found, what="the damage to be found")
    until_healed(twins.device)
    twins.lose_donor(1)

    assert client.read(0, len(data)) == data


def test_a_mapping_given_after_a_loss_is_filled_without_being_asked_to(twins: Rig) -> None:
    client = twins.connect()
    client.write(0, data := stamped_pages(RNG, 2048))
    twins.lose_donor(0)
    assert twins.device.figures.pages_exposed() == 2048

    twins.add_donor(2)
    third = twins.add_slab(2)
    for granule in range(GRANULES):
        twins.map(granule, third)
    until_healed(twins.device)
    twins.lose_donor(1)

    assert client.read(0, len(data)) == data


def test_a_successor_knows_which_copies_are_missing_and_makes_them(twins: Rig) -> None:
    client = twins.connect()
    write_past(twins, 1, data := stamped_pages(RNG, 700))

    twins.take_over()
    assert twins.device.figures.pages_exposed() == 700
    twins.device.donor_set(1, DonorState.UP)
    until_healed(twins.device)
    twins.lose_donor(0)

    assert client.read(0, len(data)) == data


def test_pages_written_while_copies_are_made_again_are_right_on_both_donors(twins: Rig) -> None:
    client, shadow = twins.connect(), Shadow(SIZE_BYTES)
    write_past(twins, 1, data := stamped_pages(RNG, 2048))
    shadow.write(0, data)
    twins.device.fault_set(1, Fault.DELAY, 1, 2000)  # so that requests meet the copying

    twins.device.donor_set(1, DonorState.UP)
    while twins.device.figures.pages_exposed():
        sent = []
        for page in RNG.sample(range(0, 2048, 8), 16):
            data = stamped_pages(RNG, RNG.randrange(1, 9))
            sent.append((client.send(Command.WRITE, page * PAGE_BYTES, data=data), page * PAGE_BYTES, data))
        for cookie, offset, data in sent:
            assert client.wait(cookie).error == 0
            shadow.write(offset, data)
    twins.lose_donor(0)

    shadow.check(0, client.read(0, SIZE_BYTES))


def test_a_donor_that_hangs_while_it_gets_its_copies_leaves_the_others_service_as_it_is(twins: Rig) -> None:
    client = twins.connect()
    write_past(twins, 1, data := stamped_pages(RNG, 600))
    twins.device.fault_set(1, Fault.HANG, 1, 0)
    twins.device.donor_set(1, DonorState.UP)
    twins.wait_event(EventKind.DONOR_SUSPECT, a=1)

    assert client.read(0, len(data)) == data
    twins.device.fault_set(1, Fault.HANG, 0, 0)
    twins.add_donor(1)
    until_healed(twins.device)
    twins.lose_donor(0)

    assert client.read(0, len(data)) == data


def test_a_page_that_went_round_a_suspect_donor_to_the_disk_is_remote_again_after_its_next_write(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    client.write(0, stamped_pages(RNG, 16))
    write_past(rig, 0, new := stamped_pages(RNG, 16))
    rig.device.donor_set(0, DonorState.UP)

    assert rig.device.cluster_count(0) == (16, 0)
    assert client.read(0, len(new)) == new
    client.write(0, new)

    assert rig.device.cluster_count(0) == (16, 16)
    assert rig.device.figures.pages_exposed() == 0


def test_a_page_that_the_disk_refuses_is_exposed_until_its_next_write(rig: Rig) -> None:
    rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    rig.device.disk_fault_set(Fault.ERROR, 1, 0)
    client.write(0, stamped_pages(RNG, 8))
    until(lambda: rig.device.figures.pages_exposed() == 8, what="the disk's refusal to be known")

    rig.device.disk_fault_set(Fault.ERROR, 0, 0)
    client.write(0, stamped_pages(RNG, 8))

    assert rig.device.figures.pages_exposed() == 0


def test_without_protection_no_page_is_promised_a_second_copy(make_rig: MakeRig) -> None:
    rig = make_rig(protection=Protection.NONE)
    rig.donors_with_slabs(1, granules=1)

    rig.connect().write(0, stamped_pages(RNG, 8))

    assert rig.device.figures.pages_exposed() == 0


def heal_until_killed(rig: Rig, told: mmap.mmap) -> None:
    """In a process of its own: takes the device over, and tells how many pages are exposed as copies are made."""
    device = Device(rig.params, rig.state_fd, -1)
    for slab in rig.slabs.values():
        device.slab_remap(slab.number, os.dup(slab.memfd))
    device.fault_set(1, Fault.DELAY, 1, 5000)  # so that there is time to be killed in
    for donor in range(2):
        device.link_attach_shm(donor)
        device.donor_set(donor, DonorState.UP)
    while True:
        told[:4] = device.figures.pages_exposed().to_bytes(4, "little")


def exposed_at_kill(rig: Rig, below: int) -> int:
    """Starts a process that heals, and kills it when fewer than `below` pages are exposed; how many were."""
    told = mmap.mmap(-1, mmap.PAGESIZE)
    told[:4] = below.to_bytes(4, "little")
    child = os.fork()
    if child == 0:
        try:
            heal_until_killed(rig, told)
        finally:
            os._exit(1)
    try:
        until(lambda: int.from_bytes(told[:4], "little") < below, what=f"fewer than {below} exposed", every_s=0.001)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return int.from_bytes(told[:4], "little")


def test_a_process_killed_while_copies_are_made_is_succeeded_by_one_that_makes_the_rest(make_rig: MakeRig) -> None:
    rig = make_rig(protection=Protection.REPLICA)
    for donor in range(2):
        rig.add_donor(donor)
        slab = rig.add_slab(donor)
        for granule in range(GRANULES):
            rig.map(granule, slab)
    write_past(rig, 1, data := stamped_pages(RNG, 2048))
    seen = []

    def kill_some() -> None:
        for below in (2048, 1400, 700):
            seen.append(exposed_at_kill(rig, below))

    rig.take_over(while_stopped=kill_some)
    until_healed(rig.device)
    rig.lose_donor(0)

    assert max(seen) > 0, "no process was killed before it had made all copies"
    assert rig.connect().read(0, len(data)) == data
