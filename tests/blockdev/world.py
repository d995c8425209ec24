"""A borrower's control side over a real engine, with donors that are a dictionary of memfds in this process."""

import asyncio
import fcntl
import os
import random
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from farside.blockdev.context import Context
from farside.blockdev.disk import open_disk
from farside.blockdev.donor_port import Grant
from farside.blockdev.mapping.activity import activity_law, first_activity, next_activity
from farside.blockdev.mapping.commit import Committer
from farside.blockdev.mapping.lease import Leaser
from farside.blockdev.mapping.mapper import Mapper
from farside.blockdev.mapping.placement import DonorView
from farside.blockdev.mapping.recall import Recaller
from farside.blockdev.mapping.table import Table
from farside.blockdev.params import engine_params, extents_per_slab
from farside.blockdev.state import StateFile, control_bytes
from farside.blockdev.task import Tasks
from farside.clock import RealClock
from farside.config import BlockdevConfig
from farside.errors import PeerError
from farside.kmod_shim.engine.binding import Device, DonorState, EngineEvent, EventKind
from tests.support.nbd_client import NbdClient

MIB = 1 << 20
SLAB_BYTES = 8 * MIB
GRANULE_BYTES = 2 * MIB
PAGE = 4096


@dataclass
class LocalDonor:
    """A donor with so many slabs; its leases are memfds, as a donor on this host passes them."""

    room: int
    used_bytes: int = 0
    answers: bool = True
    leases: dict[int, int] = field(default_factory=dict)
    told_done: list[tuple[int, int, int]] = field(default_factory=list)
    told_release: list[int] = field(default_factory=list)
    next_lease: int = 0
    gate: asyncio.Event | None = None  # MAP is answered once it is set
    waiting: int = 0  # MAPs that came to the gate
    asked: int = 0  # QUERY_MEMs
    unheard: int = 0  # slabs that it would lease and has not told of in a KEEPALIVE


class LocalDonors:
    """Implements ``Donors`` over `LocalDonor`s."""

    def __init__(self, table: Table, by_number: dict[int, LocalDonor]) -> None:
        self.table = table
        self.by_number = by_number

    def view(self, number: int) -> DonorView:
        donor = self.by_number[number]
        return DonorView(
            donor=number,
            slabs=len(self.table.slabs_of(number)),
            free_slabs=donor.room - len(donor.leases),
            used_bytes=donor.used_bytes,
            total_bytes=100,
            usable=donor.answers,
        )

    def views(self) -> tuple[DonorView, ...]:
        return tuple(self.view(number) for number in self.by_number)

    async def ask(self, donor: int) -> DonorView | None:
        lender = self.by_number[donor]
        lender.asked += 1
        lender.room, lender.unheard = lender.room + lender.unheard, 0
        return self.view(donor) if lender.answers else None

    async def lease(self, donor: int) -> Grant:
        lender = self.by_number[donor]
        if lender.gate is not None:
            lender.waiting += 1
            await lender.gate.wait()
        if not lender.answers or lender.room <= len(lender.leases):
            raise PeerError("no slab")
        memfd = os.memfd_create("slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(memfd, SLAB_BYTES)
        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        lease = lender.next_lease
        lender.next_lease += 1
        lender.leases[lease] = memfd
        return Grant(lease=lease, token=1000 * donor + lease, epoch=1, memfd=os.dup(memfd))

    async def release(self, donor: int, leases: Iterable[int]) -> None:
        for lease in leases:
            self._end(donor, lease)
            self.by_number[donor].told_release.append(lease)

    async def done(self, donor: int, lease: int, *, moved_pages: int, dropped_pages: int) -> None:
        self._end(donor, lease)
        self.by_number[donor].told_done.append((lease, moved_pages, dropped_pages))

    def _end(self, donor: int, lease: int) -> None:
        if not self.by_number[donor].answers:
            raise PeerError("gone")
        memfd = self.by_number[donor].leases.pop(lease, None)
        if memfd is not None:
            os.close(memfd)


class World:
    """One device of 64 MiB in slabs of 8 MiB."""

    def __init__(self, folder: Path, protection: str = "disk", **settings: float | str) -> None:
        self.config = BlockdevConfig(
            name="w",
            node="b",
            size_bytes=64 * MIB,
            slab_bytes=SLAB_BYTES,
            pending_bytes=16 * MIB,
            protection=protection,
            i_accept_data_loss=True,
            disk_path=folder / "disk" if protection == "disk" else Path(),
            workers=2,
            **settings,  # type: ignore[arg-type]  # a test names settings that are numbers or words
        )
        self.disk_fd = open_disk(folder / "disk", self.config.size_bytes) if protection == "disk" else -1
        self.state_fd = os.memfd_create("state")
        os.truncate(self.state_fd, Device.state_bytes(engine_params(self.config)))
        self.control_fd = os.memfd_create("control")
        os.truncate(self.control_fd, control_bytes(extents=extents_per_slab(self.config)))
        self.clients: list[NbdClient] = []
        self.tasks = Tasks()
        self.events: list[EngineEvent] = []
        self._lenders: dict[int, LocalDonor] = {}
        self._open()

    def _open(self) -> None:
        config = self.config
        self.engine = Device(engine_params(config), self.state_fd, self.disk_fd)
        self.table = Table(StateFile(self.control_fd), extents=extents_per_slab(config))
        law = activity_law(
            slab_bytes=config.slab_bytes,
            alpha=config.ewma_alpha,
            hot_pages_per_s_per_gib=config.hot_slab_pages_per_s_per_gib,
            cold_pages_per_s_per_gib=config.cold_slab_pages_per_s_per_gib,
        )
        self.donors = LocalDonors(self.table, self._lenders)
        self.context = Context(
            config=config,
            engine=self.engine,
            table=self.table,
            donors=self.donors,
            clock=RealClock(),
            tasks=self.tasks,
            rng=random.Random(1),
            law=law,
            activity=first_activity(self.engine.activity(), law),
        )
        self.leaser = Leaser(self.context)
        self.mapper = Mapper(self.context, self.leaser)
        self.committer = Committer(self.context, self.mapper)
        self.recaller = Recaller(self.context, self.leaser)

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()
        self.engine.destroy()
        for donor in self.donors.by_number.values():
            for memfd in donor.leases.values():
                os.close(memfd)
        for fd in (self.state_fd, self.control_fd, self.disk_fd):
            if fd >= 0:
                os.close(fd)

    def succeed(self) -> None:
        """A new process's control side over the state that this one leaves."""
        self.engine.destroy()
        self._open()

    def add_donor(self, *, room: int = 8, used: int = 0) -> int:
        number = self.table.donor(f"d{len(self.donors.by_number)}").donor
        self.donors.by_number[number] = LocalDonor(room=room, used_bytes=used)
        self.engine.link_attach_shm(number)
        self.engine.donor_set(number, DonorState.UP)
        return number

    def lose_donor(self, donor: int) -> None:
        self.donors.by_number[donor].answers = False
        self.engine.donor_set(donor, DonorState.FAILED)
        for slab in self.table.slabs_of(donor):
            slab.draining = slab.failed = True
            self.recaller.drain(slab, deadline_s=0.0, fail=True)

    def connect(self, worker: int = 0) -> NbdClient:
        ours, theirs = socket.socketpair()
        self.engine.conn_attach(worker, ours.detach())
        client = NbdClient(theirs)
        self.clients.append(client)
        return client

    def tick(self) -> None:
        """The activity of a second that has just passed."""
        self.context.activity = next_activity(self.context.activity, self.engine.activity(), self.context.law)

    async def event(self, kind: EventKind, about: int | None = None) -> EngineEvent:
        """The next event of a kind; the others are kept."""
        async with asyncio.timeout(60):
            while True:
                while (event := self.engine.event_next()) is not None:
                    self.events.append(event)
                for event in self.events:
                    if event.kind == kind and about in (None, event.a):
                        self.events.remove(event)
                        return event
                await asyncio.sleep(0.005)

    async def until(self, look: Callable[[], object]) -> None:
        """Returns when it is true."""
        async with asyncio.timeout(60):
            while not look():
                await asyncio.sleep(0.002)

    async def healed(self) -> None:
        """Waits for every page to have its second copy."""
        await self.until(lambda: not self.engine.figures.pages_exposed())

    async def drained(self, slab: int) -> EngineEvent:
        """Waits for a slab to be empty, and does what follows."""
        event = await self.event(EventKind.SLAB_DRAINED, slab)
        await self.recaller.drained(event.a, moved_pages=event.b, dropped_pages=event.c, lost_pages=event.d)
        return event

    def mappings(self, granule: int) -> list[tuple[int, int]]:
        """What the engine says of a granule: (slab, extent)."""
        return sorted((mapping.slab, mapping.extent) for mapping in self.engine.cluster_get(granule))

    def check(self) -> None:
        """What must hold at every moment of rest: table and engine agree, and no extent has two granules."""
        seen: dict[tuple[int, int], int] = {}
        for granule in range(self.config.size_bytes // GRANULE_BYTES):
            mappings = self.mappings(granule)
            assert mappings == sorted(self.table.mappings(granule).items())
            donors = [self.table.slabs[slab].donor for slab, _ in mappings]
            assert len(set(donors)) == len(donors)
            for mapping in mappings:
                assert mapping not in seen, f"granules {seen[mapping]} and {granule} share an extent"
                seen[mapping] = granule


def page(number: int) -> bytes:
    """A page that no other number has."""
    return (number.to_bytes(8, "little") + b"farside.") * (PAGE // 16)
