"""A donor that reads, changes, moves and replays the pages that it holds [H1]: no wrong byte is ever read."""

import errno
import os
import random
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from farside.kmod_shim.engine.binding import DonorState, EventKind, Fault, Protection
from tests.fault.conftest import MakeRig
from tests.support.nbd_client import Command, NbdClient
from tests.support.rig import Rig, Slab
from tests.support.shadow import PAGE_BYTES, Shadow, stamped_pages
from tests.support.waiting import until

RNG = random.Random(11)
PAGES = 512
LATE_US = 1_000_000
VERSION_AT = 8  # of the state memory: magic, then version
SECRET = b"root:$6$SECRET-that-a-client-wrote"


@pytest.fixture(params=["shm", "tcp"])
def rig(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    """A rig whose donor has time: of a late read the disk would answer first, and the donor's copy be counted later."""
    return make_rig(transport=request.param, hedge_us=5_000_000, deadline_ms=10_000)


def page_of(slab: Slab, page: int) -> bytes:
    return bytes(slab.memory[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])


def put(slab: Slab, page: int, content: bytes) -> None:
    slab.memory[page * PAGE_BYTES : (page + 1) * PAGE_BYTES] = content


def written(rig: Rig) -> tuple[NbdClient, bytes, Slab]:
    """A client's data in the first granule, at one donor and on the disk."""
    (slab,) = rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    data = stamped_pages(RNG, PAGES)
    client.write(0, data)
    rig.until_on_disk()
    return client, data, slab


def test_a_donor_finds_nothing_of_what_a_client_wrote(rig: Rig) -> None:
    (slab,) = rig.donors_with_slabs(1, granules=1)
    client = rig.connect()

    client.write(0, SECRET.ljust(PAGE_BYTES, b"x") * PAGES)

    memory = bytes(slab.memory[: PAGES * PAGE_BYTES])
    assert SECRET not in memory
    assert len({memory[at : at + 16] for at in range(0, len(memory), 16)}) == len(memory) // 16  # equal pages differ
    assert client.read(0, PAGE_BYTES) == SECRET.ljust(PAGE_BYTES, b"x")


@pytest.mark.parametrize("how", ["flips a bit", "moves", "swaps", "replays", "forges", "zeroes"])
def test_a_page_that_a_donor_changed_comes_from_the_disk_and_is_counted(rig: Rig, how: str) -> None:
    client, old, slab = written(rig)
    first, second = page_of(slab, 0), page_of(slab, 1)
    data = old
    if how == "flips a bit":
        put(slab, 0, bytes([first[0] ^ 1]) + first[1:])
    elif how == "moves":
        put(slab, 0, second)
    elif how == "swaps":
        put(slab, 0, second)
        put(slab, 1, first)
    elif how == "replays":
        data = stamped_pages(RNG, 1) + old[PAGE_BYTES:]
        client.write(0, data[:PAGE_BYTES])
        rig.until_on_disk()
        put(slab, 0, first)
    elif how == "forges":  # a mix of blocks of two versions, whose text and sums are known
        data = stamped_pages(RNG, 1) + old[PAGE_BYTES:]
        client.write(0, data[:PAGE_BYTES])
        rig.until_on_disk()
        put(slab, 0, first[:2048] + page_of(slab, 0)[2048:])
    else:
        put(slab, 0, bytes(PAGE_BYTES))

    assert client.read(0, len(data)) == data
    errors = rig.device.stats().checksum_errors
    assert errors == (2 if how == "swaps" else 1)
    told = rig.wait_event(EventKind.CHECKSUM)
    assert told.a == slab.donor
    # Memory that a donor of this host has taken back is all zeros; over a network it would have refused.
    assert told.c == (how == "zeroes" and rig.transport == "shm")
    assert client.read(0, len(data)) == data  # that copy is never asked for again
    assert rig.device.stats().checksum_errors == errors


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_lie_that_comes_after_the_disks_answer_is_counted(make_rig: MakeRig, transport: str) -> None:
    """[H1] Of a read that was late the disk's answer was taken, and the donor's not looked at when it came."""
    rig = make_rig(transport=transport)
    client, data, slab = written(rig)
    put(slab, 0, page_of(slab, 1))
    rig.device.fault_set(slab.donor, Fault.DELAY, 1, LATE_US)

    assert client.read(0, PAGE_BYTES) == data[:PAGE_BYTES]

    told = rig.wait_event(EventKind.CHECKSUM)
    assert (told.a, told.b) == (slab.donor, 0)
    stats = rig.device.stats()
    assert stats.checksum_errors == stats.hedges_won == 1, "the disk was quicker"


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_page_that_only_a_lying_donor_has_is_an_error_and_never_wrong(make_rig: MakeRig, transport: str) -> None:
    rig = make_rig(transport=transport, protection=Protection.NONE)
    (slab,) = rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    data = stamped_pages(RNG, 4)
    client.write(0, data)
    put(slab, 2, page_of(slab, 3))

    assert client.error_of(Command.READ, 2 * PAGE_BYTES, PAGE_BYTES) == errno.EIO
    assert client.read(0, 2 * PAGE_BYTES) == data[: 2 * PAGE_BYTES]


def test_pages_that_move_are_opened_checked_and_sealed_again(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(2, granules=1)
    client = rig.connect()
    data = stamped_pages(RNG, PAGES)
    client.write(0, data)
    rig.until_on_disk()
    put(slabs[0], 5, bytes(PAGE_BYTES))
    put(slabs[0], 7, bytes(PAGE_BYTES - 1) + b"x")
    before = page_of(slabs[0], 6)
    rig.map(0, slabs[1])

    drained = rig.drain(slabs[0])

    assert drained.b == PAGES - 2  # all but the pages that were changed
    assert {(event.b, event.c) for event in rig.events() if event.kind == EventKind.CHECKSUM} == {(5, 1), (7, 0)}
    assert page_of(slabs[1], 6) == before  # the same content of the same sequence is sealed alike
    assert client.read(0, len(data)) == data


@pytest.mark.parametrize("protection", [Protection.DISK, Protection.REPLICA, Protection.BOTH])
def test_everything_a_donor_can_do_under_load_is_noticed(make_rig: MakeRig, protection: Protection) -> None:
    rig = make_rig(transport="tcp", protection=protection)
    slabs = rig.donors_with_slabs(2, granules=0)
    for slab in slabs:
        rig.map(0, slab)
    client = rig.connect()
    shadow = Shadow(rig.params.size_bytes)
    liar = slabs[1]
    kept: dict[int, bytes] = {}
    for _ in range(300):
        page, pages = RNG.randrange(PAGES - 8), RNG.randint(1, 8)
        data = stamped_pages(RNG, pages)
        client.write(page * PAGE_BYTES, data)
        shadow.write(page * PAGE_BYTES, data)
        victim = RNG.randrange(PAGES)
        content = page_of(liar, victim)
        put(liar, victim, RNG.choice([kept.get(victim, content), page_of(liar, RNG.randrange(PAGES)), content[::-1]]))
        kept.setdefault(victim, content)
        page = RNG.randrange(PAGES - 8)
        shadow.check(page * PAGE_BYTES, client.read(page * PAGE_BYTES, 8 * PAGE_BYTES))


@pytest.mark.parametrize("protection", [Protection.DISK, Protection.REPLICA, Protection.NONE])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_clear_pages_of_an_older_engine_are_read_and_sealed_until_none_is_left(
    make_rig: MakeRig, transport: str, protection: Protection
) -> None:
    rig = make_rig(transport=transport, protection=protection, encrypt_remote=0)
    slabs = rig.donors_with_slabs(2, granules=0)
    for slab in slabs[: 1 + (protection is Protection.REPLICA)]:
        rig.map(0, slab)
    client = rig.connect()
    data = SECRET.ljust(PAGE_BYTES, b"x") + stamped_pages(RNG, PAGES - 1)
    client.write(0, data)
    assert SECRET in bytes(slabs[0].memory[: len(data)])
    assert rig.device.figures.pages_clear() == PAGES

    def as_of_before() -> None:
        os.pwrite(rig.state_fd, struct.pack("<I", 2), VERSION_AT)

    rig.params = replace(rig.params, encrypt_remote=1)
    rig.take_over(while_stopped=as_of_before)

    assert client.read(0, len(data)) == data
    until(lambda: rig.device.figures.pages_clear() == 0, what="every page to be sealed")
    assert client.read(0, len(data)) == data
    assert all(SECRET not in bytes(slab.memory[: len(data)]) for slab in slabs)
    assert rig.device.stats().checksum_errors == rig.device.stats().pages_lost == 0


def with_clear_pages(rig: Rig, *, away: int | None = None) -> tuple[NbdClient, bytes]:
    """A client's data in the first granule, in the clear as an older engine's; from now on donors are given sealed.

    ``away``: a donor that is suspect from then on.
    """
    client = rig.connect()
    data = SECRET.ljust(PAGE_BYTES, b"x") * PAGES
    client.write(0, data)

    def as_of_before() -> None:
        os.pwrite(rig.state_fd, struct.pack("<I", 2), VERSION_AT)

    if away is not None:
        rig.device.donor_set(away, DonorState.SUSPECT)
    rig.params = replace(rig.params, encrypt_remote=1)
    rig.take_over(while_stopped=as_of_before)
    return client, data


def until_over_and_unseen(slab: Slab, is_over: Callable[[], object]) -> None:
    """Looks at a donor's memory again and again until it is over, and once more then."""
    while not is_over():
        assert slab.memory.find(SECRET, 0) < 0
    assert slab.memory.find(SECRET, 0) < 0


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_clear_pages_that_the_disk_has_are_sealed_before_a_donor_gets_them(make_rig: MakeRig, transport: str) -> None:
    """They went to a donor that had never had them as they were, and were sealed there afterwards."""
    rig = make_rig(transport=transport, encrypt_remote=0)
    client, data = with_clear_pages(rig)
    until(lambda: rig.device.figures.pages_disk_alone() == PAGES, what="the disk to have them")
    (slab,) = rig.donors_with_slabs(1, granules=1)

    rig.device.lift_set(True)
    until_over_and_unseen(slab, lambda: rig.device.figures.pages_disk_alone() == 0)

    assert rig.device.figures.pages_clear() == 0
    os.ftruncate(rig.disk_fd, 0)
    assert client.read(0, len(data)) == data


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_clear_pages_get_their_second_copy_sealed(make_rig: MakeRig, transport: str) -> None:
    rig = make_rig(transport=transport, protection=Protection.REPLICA, encrypt_remote=0)
    rig.donors_with_slabs(1, granules=1)
    client, data = with_clear_pages(rig, away=0)  # nothing is sealed or healed meanwhile
    rig.add_donor(1)
    other = rig.add_slab(1)
    rig.map(0, other)

    rig.device.donor_set(0, DonorState.UP)
    until_over_and_unseen(other, lambda: rig.device.figures.pages_exposed() == 0)

    until(lambda: rig.device.figures.pages_clear() == 0, what="every page to be sealed")
    rig.lose_donor(0)
    assert client.read(0, len(data)) == data


@pytest.mark.parametrize("protection", [Protection.REPLICA, Protection.BOTH])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_clear_pages_that_a_donor_wants_to_be_rid_of_move_sealed(
    make_rig: MakeRig, transport: str, protection: Protection
) -> None:
    rig = make_rig(transport=transport, protection=protection, encrypt_remote=0)
    slabs = rig.donors_with_slabs(2, granules=0)
    for slab in slabs:
        rig.map(0, slab)
    client, data = with_clear_pages(rig, away=1)  # as one of the two is away, the mover leaves both copies as they are
    rig.add_donor(2)
    other = rig.add_slab(2)
    rig.map(0, other)

    rig.device.slab_drain(slabs[0].number, 60_000, False)
    until_over_and_unseen(other, lambda: any(event.kind == EventKind.SLAB_DRAINED for event in rig.events()))

    assert rig.wait_event(EventKind.SLAB_DRAINED).b == PAGES
    assert client.read(0, len(data)) == data
    assert rig.device.stats().pages_lost == rig.device.stats().checksum_errors == 0


def test_a_content_that_a_killed_process_never_published_has_a_tweak_of_its_own(make_rig: MakeRig) -> None:
    """Its successor gives the same sequence to another content: two contents under one tweak could be mixed."""
    rig = make_rig(transport="shm")
    (slab,) = rig.donors_with_slabs(1, granules=1)
    client = rig.connect()
    data = stamped_pages(RNG, 2)
    client.write(0, data)
    before = page_of(slab, 0)

    def sequence_of_before() -> None:
        # The page's word: as if this write had not been published, so that the next one has its sequence again.
        os.pwrite(rig.state_fd, struct.pack("<Q", 0), first_word(rig.state_fd))

    rig.take_over(while_stopped=sequence_of_before)
    client.write(0, data[:PAGE_BYTES])

    assert page_of(slab, 0) != before


def first_word(state_fd: int) -> int:
    """Where the first page's word stands in the state memory: it has sequence 1, and sources."""
    state = os.pread(state_fd, 64 << 20, 0)
    for at in range(0, len(state) - 32, 16):
        a, _, second, _ = struct.unpack_from("<4Q", state, at)
        if a & 0xFFFFFFFF == second & 0xFFFFFFFF == 1 and a == second and a >> 32 & 0x1FF and a >> 42 == 0:
            return at
    raise AssertionError("no page's word found")
