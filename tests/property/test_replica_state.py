"""Two copies of every page, under everything that can happen to one donor at a time.

Every byte read is the byte last written and acknowledged, and no request fails, as long as one donor at a time is in
trouble: each time it is over, and before the next donor's begins, the copies that it missed have been made again. Any
donor may then be lost for good.
"""

import os
import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from farside.kmod_shim.engine.binding import DonorState, Fault, Protection
from tests.support.nbd_client import Command
from tests.support.rig import GRANULE_BYTES, PAGE_BYTES, Rig, default_params
from tests.support.shadow import Shadow
from tests.support.waiting import until

GRANULES = 3
SIZE_BYTES = GRANULES * GRANULE_BYTES
PAGES = SIZE_BYTES // PAGE_BYTES
DONORS = 3
WORKERS = 2

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
link_faults = st.sampled_from([Fault.ERROR, Fault.SHORT, Fault.DISCONNECT, Fault.DELAY])


class ReplicaState(RuleBasedStateMachine):
    """An engine, its donors, of which one may be in trouble, and a shadow copy.

    The deadline is long: on a busy machine a healthy donor would miss a short one, and be a second one in trouble.
    """

    transport = "shm"
    protection = Protection.REPLICA

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="farside-property-"))
        params = default_params(
            size_bytes=SIZE_BYTES, workers=WORKERS, protection=self.protection, deadline_ms=5000, hedge_us=2000
        )
        self.rig = Rig(self.folder, params, transport=self.transport)
        self.shadow = Shadow(SIZE_BYTES)
        self.next_slab = 0
        self.troubled: int | None = None

    @initialize()
    def begin(self) -> None:
        for donor in range(DONORS):
            self.rig.add_donor(donor)
            self._lease(donor)
        self._give_mappings()
        self.clients = [self.rig.connect(worker) for worker in range(WORKERS)]

    def teardown(self) -> None:
        self.rig.__exit__(None, None, None)
        shutil.rmtree(self.folder)

    # --- what a client does

    @rule(worker=workers, page=near_borders, length=lengths, seed=seeds)
    def write(self, worker: int, page: int, length: int, seed: int) -> None:
        data = random.Random(seed).randbytes(min(length, PAGES - page) * PAGE_BYTES)
        self.clients[worker].write(page * PAGE_BYTES, data)
        self.shadow.write(page * PAGE_BYTES, data)

    @rule(worker=workers, page=near_borders, length=lengths)
    def read(self, worker: int, page: int, length: int) -> None:
        length = min(length, PAGES - page) * PAGE_BYTES
        self.shadow.check(page * PAGE_BYTES, self.clients[worker].read(page * PAGE_BYTES, length))

    @rule(worker=workers, page=near_borders, length=lengths, command=clearing)
    def clear(self, worker: int, page: int, length: int, command: Command) -> None:
        length = min(length, PAGES - page) * PAGE_BYTES
        assert self.clients[worker].error_of(command, page * PAGE_BYTES, length) == 0
        self.shadow.zero(page * PAGE_BYTES, length)

    # --- one donor's trouble

    @precondition(lambda self: self.troubled is None)
    @rule(donor=donors)
    def suspect(self, donor: int) -> None:
        self.troubled = donor
        self.rig.device.donor_set(donor, DonorState.SUSPECT)

    @precondition(lambda self: self.troubled is None)
    @rule(donor=donors, kind=link_faults, every=st.integers(1, 5))
    def spoil_link(self, donor: int, kind: Fault, every: int) -> None:
        self.troubled = donor
        self.rig.device.fault_set(donor, kind, every, 1000)

    @precondition(lambda self: self.troubled is not None)
    @rule()
    def trust_again(self) -> None:
        assert self.troubled is not None
        for kind in Fault:
            self.rig.device.fault_set(self.troubled, kind, 0, 0)
        self.rig.add_donor(self.troubled)
        self.troubled = None
        self._until_healed()

    @precondition(lambda self: self.troubled is None)
    @rule(donor=donors)
    def lose(self, donor: int) -> None:
        self.rig.lose_donor(donor)
        for slab in [slab for slab in self.rig.slabs.values() if slab.donor == donor]:
            self.rig.forget(slab)
        self._check_all()
        self.rig.add_donor(donor)
        self._lease(donor)
        self._give_mappings()
        self._until_healed()

    @rule(seed=seeds)
    def replace_the_engine_with_requests_in_flight(self, seed: int) -> None:
        rng = random.Random(seed)
        written = {page: rng.randbytes(4 * PAGE_BYTES) for page in rng.sample(range(0, PAGES - 4, 4), 8)}
        sent = [
            (client := self.clients[n % WORKERS], client.send(Command.WRITE, page * PAGE_BYTES, data=data))
            for n, (page, data) in enumerate(written.items())
        ]
        self.rig.take_over()
        for (page, data), (client, cookie) in zip(written.items(), sent, strict=True):
            assert client.wait(cookie).error == 0
            self.shadow.write(page * PAGE_BYTES, data)
        if self.troubled is None:
            self._until_healed()

    # --- helpers

    def _lease(self, donor: int) -> None:
        self.next_slab += 1
        self.rig.add_slab(donor, self.next_slab)

    def _give_mappings(self) -> None:
        # As the borrower does: two mappings a granule, on different donors.
        for granule in range(GRANULES):
            mappings = {self.rig.slabs[mapping.slab].donor for mapping in self.rig.device.cluster_get(granule)}
            others = [slab for slab in self.rig.slabs.values() if slab.donor not in mappings and slab.free]
            for slab in sorted(others, key=lambda slab: -len(slab.free))[: 2 - len(mappings)]:
                self.rig.map(granule, slab)

    def _check_all(self) -> None:
        self.shadow.check(0, self.clients[0].read(0, SIZE_BYTES))

    def _until_healed(self) -> None:
        until(lambda: self.rig.device.figures.pages_single() == 0, what="every page to be at two donors")

    @invariant()
    def only_what_a_troubled_donor_missed_is_exposed(self) -> None:
        assert self.troubled is not None or self.rig.device.figures.pages_exposed() == 0


class ReplicaStateOverTcp(ReplicaState):
    """The same with donors that are reached over TCP."""

    transport = "tcp"


class BothState(ReplicaState):
    """The same where the disk has each page too, and fails whenever a donor is lost."""

    protection = Protection.BOTH

    def _check_all(self) -> None:
        self.rig.device.disk_fault_set(Fault.ERROR, 1, 0)
        super()._check_all()
        self.rig.device.disk_fault_set(Fault.ERROR, 0, 0)


# A few examples each time, new ones each time; FARSIDE_EXAMPLES=500 looks for longer.
_thorough = settings(
    max_examples=max(1, int(os.environ.get("FARSIDE_EXAMPLES", "12")) // 2),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestReplicaState = ReplicaState.TestCase
TestReplicaState.settings = _thorough
TestReplicaStateOverTcp = ReplicaStateOverTcp.TestCase
TestReplicaStateOverTcp.settings = _thorough
TestBothState = BothState.TestCase
TestBothState.settings = _thorough
