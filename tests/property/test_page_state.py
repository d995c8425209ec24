"""The page-state invariant under everything that can happen to a device, in any order.

Every byte read is the byte last written and acknowledged; a write that failed or was cut off leaves its old or its new
content, page by page; and a read fails only where the rules allow it: never here, since the disk is there and its
faults end before it is needed. Donors come and go, slabs are drained in the middle of traffic, links break, the disk
refuses writes for a while, and the engine is replaced at any point.
"""

import errno
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from farside.kmod_shim.engine.binding import DonorState, EventKind, Fault
from tests.support.nbd_client import Command
from tests.support.rig import GRANULE_BYTES, MIB, PAGE_BYTES, Rig, default_params
from tests.support.shadow import Shadow

GRANULES = 4
SIZE_BYTES = GRANULES * GRANULE_BYTES
PAGES = SIZE_BYTES // PAGE_BYTES
DONORS = 3
WORKERS = 2
SLABS_MAX = 12

# Positions where rules change: around granule borders, a few pages apart, so that requests meet each other.
near_borders = st.builds(
    lambda granule, shift: min(max(granule * 512 + shift, 0), PAGES - 1),
    st.integers(0, GRANULES - 1),
    st.integers(-6, 12),
)
lengths = st.one_of(st.integers(1, 8), st.sampled_from([32, 64, 512]))
workers = st.integers(0, WORKERS - 1)
donors = st.integers(0, DONORS - 1)
seeds = st.integers(0, 2**32 - 1)
clearing = st.sampled_from([Command.TRIM, Command.WRITE_ZEROES])
link_faults = st.sampled_from([Fault.ERROR, Fault.SHORT, Fault.DISCONNECT, Fault.CORRUPT, Fault.DELAY])


class PageState(RuleBasedStateMachine):
    """An engine, its donors and a shadow copy."""

    slabs: Bundle[int] = Bundle("slabs")
    transport = "shm"

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="farside-property-"))
        params = default_params(size_bytes=SIZE_BYTES, workers=WORKERS, deadline_ms=60, hedge_us=2000)
        self.rig = Rig(self.folder, params, transport=self.transport)
        self.shadow = Shadow(SIZE_BYTES)
        self.next_slab = 0
        self.is_disk_failing = False
        self.is_disk_behind = False

    @initialize()
    def begin(self) -> None:
        for donor in range(DONORS):
            self.rig.add_donor(donor)
        self.clients = [self.rig.connect(worker) for worker in range(WORKERS)]

    def teardown(self) -> None:
        self.rig.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    # --- what a client does

    @rule(worker=workers, page=near_borders, length=lengths, seed=seeds)
    def write(self, worker: int, page: int, length: int, seed: int) -> None:
        length = min(length, PAGES - page)
        data = random.Random(seed).randbytes(length * PAGE_BYTES)
        self._wrote(self.clients[worker].error_of(Command.WRITE, page * PAGE_BYTES, data=data), page, data)

    @rule(worker=workers, page=near_borders, length=lengths)
    def read(self, worker: int, page: int, length: int) -> None:
        length = min(length, PAGES - page)
        reply = self.clients[worker].wait(
            self.clients[worker].send(Command.READ, page * PAGE_BYTES, length * PAGE_BYTES)
        )
        assert reply.error == 0, errno.errorcode.get(reply.error)
        self.shadow.check(page * PAGE_BYTES, reply.data)

    @rule(worker=workers, page=near_borders, length=lengths, command=clearing)
    def clear(self, worker: int, page: int, length: int, command: Command) -> None:
        length = min(length, PAGES - page)
        error = self.clients[worker].error_of(command, page * PAGE_BYTES, length * PAGE_BYTES)
        self._wrote(error, page, bytes(length * PAGE_BYTES))

    @rule(worker=workers)
    def flush(self, worker: int) -> None:
        # What a broken disk refused is tried again once a second, so that a flush may fail for a while after.
        error = self.clients[worker].error_of(Command.FLUSH)
        assert error == 0 or self.is_disk_behind
        self.is_disk_behind = self.is_disk_failing or (self.is_disk_behind and error != 0)

    @rule(page=near_borders, seed=seeds, cut=st.integers(1, 27 + 3 * PAGE_BYTES))
    def write_and_hang_up(self, page: int, seed: int, cut: int) -> None:
        page = min(page, PAGES - 3)
        data = random.Random(seed).randbytes(3 * PAGE_BYTES)
        client = self.clients[0]
        client.sock.sendall(client.encode(Command.WRITE, 1 << 40, page * PAGE_BYTES, len(data), data)[:cut])
        client.sock.close()
        self.shadow.maybe_write(page * PAGE_BYTES, data)
        self.rig.wait_event(EventKind.CONN_CLOSED, a=0)
        self.clients[0] = self.rig.connect(0)

    def _wrote(self, error: int, page: int, data: bytes) -> None:
        if error == 0:
            self.shadow.write(page * PAGE_BYTES, data)
        else:
            assert self.is_disk_failing, errno.errorcode.get(error)
            self.shadow.maybe_write(page * PAGE_BYTES, data)

    # --- what a borrower's Python does

    @precondition(lambda self: len(self.rig.slabs) < SLABS_MAX)
    @rule(target=slabs, donor=donors)
    def lease(self, donor: int) -> int:
        return self.rig.add_slab(donor, self._fresh_number()).number

    @rule(slab=slabs, granule=st.integers(0, GRANULES - 1))
    def map(self, slab: int, granule: int) -> None:
        found = self.rig.slabs.get(slab)
        if found is None or not found.free or self._is_mapping(granule, slab) or self._mappings(granule) >= 2:
            return
        self.rig.map(granule, found)

    @rule(slab=consumes(slabs), deadline_ms=st.sampled_from([0, 1, 5000]))
    def recall(self, slab: int, deadline_ms: int) -> None:
        found = self.rig.slabs.get(slab)
        # What only this slab has would have to go to the disk: a recall and a broken disk are two faults at once.
        if found is not None and not self.is_disk_failing:
            drained = self.rig.drain(found, deadline_ms=deadline_ms)
            assert drained.d == 0
            self.rig.forget(found)

    @rule(donor=donors)
    def lose(self, donor: int) -> None:
        if self.is_disk_failing or self.is_disk_behind:
            return  # two faults at once may lose a page; tests/fault has that case by itself
        self.rig.lose_donor(donor)
        for slab in [slab for slab in self.rig.slabs.values() if slab.donor == donor]:
            self.rig.forget(slab)
        self._spoil(donor, None)
        self.rig.add_donor(donor)

    @rule(donor=donors)
    def suspect(self, donor: int) -> None:
        self.rig.device.donor_set(donor, DonorState.SUSPECT)

    @rule(donor=donors)
    def trust_again(self, donor: int) -> None:
        self._spoil(donor, None)
        self.rig.add_donor(donor)

    @rule(on=st.booleans())
    def lift(self, on: bool) -> None:
        self.rig.device.lift_set(on)

    # --- what goes wrong

    @rule(donor=donors, kind=link_faults, every=st.integers(1, 5))
    def spoil_link(self, donor: int, kind: Fault, every: int) -> None:
        if self.is_disk_failing:
            return
        self._spoil(donor, kind, every)

    @rule(every=st.integers(1, 4))
    def slow_disk(self, every: int) -> None:
        self.rig.device.disk_fault_set(Fault.DELAY, every, 3000)

    @precondition(lambda self: not self.is_disk_failing)
    @rule(every=st.integers(1, 4))
    def break_disk(self, every: int) -> None:
        for donor in range(DONORS):
            self._spoil(donor, None)
        self.is_disk_failing = self.is_disk_behind = True
        self.rig.device.disk_fault_set(Fault.ERROR, every, 0)

    @precondition(lambda self: self.is_disk_failing)
    @rule()
    def mend_disk(self) -> None:
        self.rig.device.disk_fault_set(Fault.ERROR, 0, 0)
        self.is_disk_failing = False

    @rule(seed=seeds)
    def replace_the_engine_with_requests_in_flight(self, seed: int) -> None:
        rng = random.Random(seed)
        pages = rng.sample(range(0, PAGES - 4, 4), 8)
        contents = [rng.randbytes(4 * PAGE_BYTES) for _ in pages]
        cookies = [
            self.clients[n % WORKERS].send(Command.WRITE, page * PAGE_BYTES, data=data)
            for n, (page, data) in enumerate(zip(pages, contents, strict=True))
        ]
        failing = self.is_disk_failing
        self.rig.take_over()
        self.is_disk_failing = False  # faults belong to a process, and the new one has none
        for n, (cookie, page, data) in enumerate(zip(cookies, pages, contents, strict=True)):
            error = self.clients[n % WORKERS].wait(cookie).error
            assert error == 0 or failing
            if error == 0:
                self.shadow.write(page * PAGE_BYTES, data)
            else:
                self.shadow.maybe_write(page * PAGE_BYTES, data)

    # --- helpers

    def _fresh_number(self) -> int:
        self.next_slab += 1
        return self.next_slab

    def _mappings(self, granule: int) -> int:
        return len(self.rig.device.cluster_get(granule))

    def _is_mapping(self, granule: int, slab: int) -> bool:
        return any(mapping.slab == slab for mapping in self.rig.device.cluster_get(granule))

    def _spoil(self, donor: int, kind: Fault | None, every: int = 0) -> None:
        for each in Fault:
            self.rig.device.fault_set(donor, each, every if each == kind else 0, 1000)

    @invariant()
    def pending_stays_within_its_bound(self) -> None:
        assert self.rig.device.figures.pending_bytes() <= WORKERS * 16 * MIB


class PageStateOverTcp(PageState):
    """The same with donors that are reached over TCP."""

    transport = "tcp"


# A few examples each time, new ones each time; FARSIDE_EXAMPLES=500 looks for longer.
_thorough = settings(
    max_examples=int(os.environ.get("FARSIDE_EXAMPLES", "12")),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestPageState = PageState.TestCase
TestPageState.settings = _thorough
TestPageStateOverTcp = PageStateOverTcp.TestCase
TestPageStateOverTcp.settings = _thorough


@pytest.mark.parametrize("seed", range(3))
def test_a_shadow_tells_a_wrong_page_from_a_right_one(seed: int) -> None:
    rng = random.Random(seed)
    shadow = Shadow(8 * PAGE_BYTES)
    old, new = rng.randbytes(PAGE_BYTES), rng.randbytes(PAGE_BYTES)
    shadow.write(PAGE_BYTES, old)
    shadow.maybe_write(PAGE_BYTES, new)

    shadow.check(PAGE_BYTES, new)

    with pytest.raises(AssertionError, match="page 1"):
        shadow.check(PAGE_BYTES, old)
