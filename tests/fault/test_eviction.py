"""A slab that is taken back while requests are on their way to it."""

import random
import threading
from pathlib import Path

from farside.kmod_shim.engine.binding import EventKind, Fault
from tests.fault.conftest import MakeRig
from tests.support.nbd_client import Command, NbdClient
from tests.support.rig import GRANULE_BYTES, MIB, PAGE_BYTES, Rig, Slab
from tests.support.shadow import Shadow, stamped_pages


class Load:
    """Writes and checked reads on one connection, in a thread, until told to stop; errors and wrong bytes are kept."""

    def __init__(self, client: NbdClient, *, start: int, length: int, seed: int) -> None:
        self.client = client
        self.shadow = Shadow(start + length)
        self.start, self.length = start, length
        self.rng = random.Random(seed)
        self.wrong: list[str] = []
        self.rounds = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Ends the load and asserts that all it saw was right; then everything is read once more."""
        self._stop.set()
        self._thread.join()
        assert self.wrong == []
        assert self.rounds > 0
        self.shadow.check(self.start, self.client.read(self.start, self.length))

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._round()
                self.rounds += 1
        except (AssertionError, OSError) as ex:
            self.wrong.append(str(ex))

    def _round(self) -> None:
        # A batch of requests that do not overlap, all in flight at once.
        places = self.rng.sample(range(self.length // 65536), min(16, self.length // 65536))
        writes: list[tuple[int, int, bytes]] = []
        reads: list[tuple[int, int]] = []
        for place in places:
            offset = self.start + place * 65536
            if self.rng.random() < 0.5:
                data = stamped_pages(self.rng, self.rng.randrange(1, 17))
                writes.append((self.client.send(Command.WRITE, offset, data=data), offset, data))
            else:
                reads.append((self.client.send(Command.READ, offset, 65536), offset))
        for cookie, offset in reads:
            reply = self.client.wait(cookie)
            assert reply.error == 0, f"a read failed with {reply.error}"
            self.shadow.check(offset, reply.data)
        for cookie, offset, data in writes:
            assert self.client.wait(cookie).error == 0, "a write failed"
            self.shadow.write(offset, data)


def move(rig: Rig, slab: Slab, target: Slab, granules: range, *, deadline_ms: int = 5000) -> tuple[int, int]:
    """Gives the granules a mapping in `target`, drains `slab`; returns pages moved and pages left to disk."""
    for granule in granules:
        rig.map(granule, target)
    drained = rig.drain(slab, deadline_ms=deadline_ms)
    rig.forget(slab)
    return drained.b, drained.c


def test_requests_in_flight_survive_one_eviction_after_the_other(rig: Rig) -> None:
    rig.add_donor(0)
    rig.add_donor(1)
    granules = range(4)
    slab = rig.add_slab(0, 0)
    for granule in granules:
        rig.map(granule, slab)
    loads = [Load(rig.connect(n), start=n * 4 * MIB, length=4 * MIB, seed=n) for n in range(2)]

    for number in range(1, 13):
        target = rig.add_slab(number % 2, number)
        move(rig, slab, target, granules)
        slab = target

    for load in loads:
        load.stop()


def test_a_recalled_slab_is_moved_and_stays_remote(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    client.write(0, data := stamped_pages(random.Random(1), 2048))
    client.flush()
    rig.add_donor(1)
    target = rig.add_slab(1)

    moved, left = move(rig, slabs[0], target, range(4))

    assert (moved, left) == (2048, 0)
    assert [rig.device.cluster_count(granule) for granule in range(4)] == [(512, 512)] * 4
    assert client.read(0, len(data)) == data


def test_an_evicted_slab_leaves_its_pages_on_disk(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    client.write(0, data := stamped_pages(random.Random(2), 2048))

    drained = rig.drain(slabs[0])

    assert (drained.b, drained.c, drained.d) == (0, 2048, 0)
    before = rig.device.stats().pages_in_remote
    assert client.read(0, len(data)) == data
    assert rig.device.stats().pages_in_remote == before


def test_an_eviction_whose_disk_writes_are_slow_loses_nothing(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    rig.device.disk_fault_set(Fault.DELAY, 1, 20_000)
    client.write(0, data := stamped_pages(random.Random(3), 1024))

    rig.device.slab_drain(slabs[0].number, 100, False)
    during = client.read(0, len(data))
    rig.wait_event(EventKind.SLAB_DRAINED, a=slabs[0].number)

    assert during == data
    assert client.read(0, len(data)) == data


def test_a_deadline_that_passes_drops_the_rest_to_disk(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(1, granules=4)
    client = rig.connect()
    client.write(0, data := stamped_pages(random.Random(4), 2048))
    client.flush()
    rig.add_donor(1)
    target = rig.add_slab(1)
    rig.device.fault_set(1, Fault.DELAY, 1, 60_000)
    for granule in range(4):
        rig.map(granule, target)

    drained = rig.drain(slabs[0], deadline_ms=50)

    assert drained.b + drained.c == 2048
    assert drained.c > 0
    assert drained.d == 0
    rig.device.fault_set(1, Fault.DELAY, 0, 0)
    assert client.read(0, len(data)) == data


def test_no_thread_touches_a_drained_slab(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig()
    slabs = rig.donors_with_slabs(1, granules=4)
    load = Load(rig.connect(), start=0, length=4 * GRANULE_BYTES, seed=9)

    rig.drain(slabs[0])
    mark = b"the donor's again" + bytes(PAGE_BYTES - 17)
    for page in range(0, len(slabs[0].memory), PAGE_BYTES):
        slabs[0].memory[page : page + PAGE_BYTES] = mark
    load.stop()

    for page in range(0, len(slabs[0].memory), PAGE_BYTES):
        assert slabs[0].memory[page : page + PAGE_BYTES] == mark, f"page {page // PAGE_BYTES} of the slab"


def test_a_trimmed_granule_gives_its_extent_back(rig: Rig) -> None:
    slabs = rig.donors_with_slabs(1, granules=2)
    client = rig.connect()
    client.write(0, stamped_pages(random.Random(6), 512))
    client.write(GRANULE_BYTES, kept := stamped_pages(random.Random(7), 512))

    client.trim(0, GRANULE_BYTES)
    rig.wait_event(EventKind.CLUSTER_FREE, a=0)
    rig.device.cluster_drain(0, slabs[0].number)
    rig.wait_event(EventKind.CLUSTER_DRAINED, a=0)

    assert client.read(0, GRANULE_BYTES) == bytes(GRANULE_BYTES)
    assert client.read(GRANULE_BYTES, len(kept)) == kept
    rig.device.cluster_map(5, slabs[0].number, 0)
    client.write(5 * GRANULE_BYTES, again := stamped_pages(random.Random(8), 512))
    assert client.read(0, GRANULE_BYTES) == bytes(GRANULE_BYTES)
    assert client.read(5 * GRANULE_BYTES, len(again)) == again


def test_an_unmapped_granule_that_is_written_asks_for_a_mapping_once(rig: Rig) -> None:
    client = rig.connect()

    for n in range(10):
        client.write(3 * GRANULE_BYTES + n * PAGE_BYTES, stamped_pages(random.Random(n), 1))

    rig.wait_event(EventKind.WANT, a=3)
    client.flush()
    assert [event for event in rig.events() if event.kind == EventKind.WANT and event.a == 3] == []
