"""A borrower's engine in this process, with donors that are memfds or exporters in this process too.

What a borrower's Python does (choosing donors and extents) the test does by hand here, so that each test can put pages
exactly where its rule is about.
"""

import fcntl
import mmap
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from farside.kmod_shim.engine.binding import (
    MOVER,
    Device,
    DonorState,
    EngineEvent,
    EventKind,
    Exporter,
    Params,
    Protection,
    RdmaLink,
    SlabInfo,
)
from farside.kmod_shim.engine.binding import map as map_memory
from farside.kmod_shim.engine.binding import unmap as unmap_memory
from tests.support.nbd_client import NbdClient
from tests.support.rdma import rdma_address
from tests.support.waiting import until

MIB = 1 << 20
GRANULE_BYTES = 2 * MIB
PAGE_BYTES = 4096
SLAB_BYTES = 8 * MIB
EXTENTS = SLAB_BYTES // GRANULE_BYTES

SESSION = 77
HEAD_KEYS = bytes(range(32))
RDMA_LIMIT_MS = 20_000  # an emulated guest's first queue pair takes a second
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@dataclass(slots=True)
class Slab:
    """One leased slab: its memory, and what the borrower knows of it."""

    number: int
    donor: int
    memfd: int
    memory: mmap.mmap
    info: SlabInfo
    address: int = 0
    """Where an exporter reaches it; 0 for a donor that lends by shared memory."""
    free: list[int] = field(default_factory=lambda: list(range(EXTENTS)))


def default_params(**changes: int) -> Params:
    """Small: 64 MiB in slabs of 8 MiB, 16 MiB pending; as patient as a machine that others use wants it."""
    values: dict[str, int] = {
        "size_bytes": 64 * MIB,
        "slab_bytes": SLAB_BYTES,
        "pending_bytes": 16 * MIB,
        "workers": 4,
        "protection": Protection.DISK,
        "deadline_ms": 2000,
        "hedge_us": 5000,
        "spin_us": 0,
        "flush_wait_ms": 300,
        "encrypt_disk": 0,
        "encrypt_remote": 1,
    }
    return Params(**(values | changes))


class Rig:
    """An engine with its state memfd, disk, donors and clients; ends them all on exit."""

    def __init__(self, folder: Path, params: Params, *, transport: str = "shm", fabric: str = "") -> None:
        """``fabric``: the address of an RDMA port; empty: this machine's, or the test is skipped."""
        self.params = params
        self.transport = transport
        self.fabric = fabric
        self.state_fd = os.memfd_create("state", os.MFD_CLOEXEC)
        os.ftruncate(self.state_fd, Device.state_bytes(params))
        has_disk = params.protection in (Protection.DISK, Protection.BOTH)
        self.disk_fd = _open_disk(folder / "disk", params.size_bytes) if has_disk else -1
        self.slabs: dict[int, Slab] = {}
        self._forgotten: list[Slab] = []
        self.clients: list[NbdClient] = []
        # Our end's duplicates, as a supervisor holds them: what a successor resumes on.
        self.server_ends: dict[int, socket.socket] = {}
        self.exporters: dict[int, Exporter] = {}
        self.told: list[EngineEvent] = []
        self.device = Device(params, self.state_fd, self.disk_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for client in self.clients:
            client.sock.close()
        self.device.destroy()
        for exporter in self.exporters.values():
            exporter.destroy()
        for slab in [*self.slabs.values(), *self._forgotten]:
            if slab.address:
                unmap_memory(slab.address, SLAB_BYTES)
            slab.memory.close()
            os.close(slab.memfd)
        for end in self.server_ends.values():
            end.close()
        for fd in (self.state_fd, self.disk_fd):
            if fd >= 0:
                os.close(fd)

    # --- clients

    def connect(self, worker: int = 0) -> NbdClient:
        """A client whose requests this worker serves."""
        ours, theirs = socket.socketpair()
        if worker in self.server_ends:
            self.server_ends.pop(worker).close()
        self.server_ends[worker] = ours.dup()
        self.device.conn_attach(worker, ours.detach())
        client = NbdClient(theirs)
        self.clients.append(client)
        return client

    # --- donors

    def add_donor(self, donor: int) -> None:
        """A donor that is up, reached by every worker."""
        self.device.donor_set(donor, DonorState.UP)
        self._link(donor)

    def add_slab(self, donor: int, number: int | None = None) -> Slab:
        """A slab leased from that donor."""
        number = len(self.slabs) if number is None else number
        memfd = os.memfd_create(f"slab{number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memfd, SLAB_BYTES)
        fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, SEALS)
        info = SlabInfo(slab=number, donor=donor, lease=number, epoch=1, token=0x1234_0000 + number)
        slab = Slab(number=number, donor=donor, memfd=memfd, memory=mmap.mmap(memfd, SLAB_BYTES), info=info)
        self.slabs[number] = slab
        if self.transport != "shm":
            slab.address = map_memory(memfd, SLAB_BYTES)
            self.exporters[donor].lease(number, SESSION, info.token, slab.address, SLAB_BYTES)
        self.device.slab_add(info, os.dup(memfd) if self.transport == "shm" else -1)
        return slab

    def map(self, granule: int, slab: Slab) -> int:
        """Gives the granule the slab's next free extent as a mapping; returns the extent."""
        extent = slab.free.pop(0)
        self.device.cluster_map(granule, slab.number, extent)
        return extent

    def donors_with_slabs(self, count: int, *, granules: int) -> list[Slab]:
        """Donors 0..count-1 with enough slabs, and the first `granules` granules mapped round robin over them."""
        slabs = []
        for donor in range(count):
            self.add_donor(donor)
        for n in range(max(count, -(-granules // EXTENTS))):
            slabs.append(self.add_slab(n % count))
        for granule in range(granules):
            self.map(granule, slabs[granule % len(slabs)])
        return slabs

    def lose_donor(self, donor: int) -> None:
        """What the borrower does about a donor that failed: fenced, every slab of it dropped."""
        self.device.donor_set(donor, DonorState.FAILED)
        for slab in self.slabs.values():
            if slab.donor == donor:
                self.device.slab_drain(slab.number, 0, True)
                self.wait_event(EventKind.SLAB_DRAINED, a=slab.number)

    def drain(self, slab: Slab, *, deadline_ms: int = 5000) -> EngineEvent:
        """Moves everything off the slab; returns the event that tells how many pages went where."""
        self.device.slab_drain(slab.number, deadline_ms, False)
        return self.wait_event(EventKind.SLAB_DRAINED, a=slab.number)

    def forget(self, slab: Slab) -> None:
        """Gives back a slab that has been drained; its number may be used again."""
        self.device.slab_remove(slab.number)
        if self.transport != "shm":
            self.exporters[slab.donor].revoke(slab.number)
        self._forgotten.append(self.slabs.pop(slab.number))

    def _link(self, donor: int) -> None:
        if self.transport == "shm":
            self.device.link_attach_shm(donor)
            return
        exporter = self.exporters.setdefault(donor, Exporter())
        for worker in (*range(self.params.workers), MOVER):
            if self.transport == "rdma":
                self._link_rdma(donor, worker, exporter)
                continue
            ours, theirs = _tcp_pair("127.0.0.1")
            exporter.conn(SESSION, theirs.detach(), HEAD_KEYS)
            self.device.link_attach_tcp(donor, worker, ours.detach(), HEAD_KEYS)

    def _link_rdma(self, donor: int, worker: int, exporter: Exporter) -> None:
        ours, theirs = _tcp_pair(self.fabric or rdma_address())
        exporter.conn_rdma(SESSION, theirs.detach())
        link = RdmaLink(ours.fileno(), RDMA_LIMIT_MS)
        ours.detach()
        self.device.link_attach_rdma(donor, worker, link)

    # --- events

    def events(self) -> list[EngineEvent]:
        """Every event told so far."""
        while (event := self.device.event_next()) is not None:
            self.told.append(event)
        return self.told

    def until_on_disk(self) -> None:
        """Returns when nothing is kept for the disk any more: it, or donors, have it."""
        until(lambda: self.device.figures.pending_bytes() == 0, what="a borrower that keeps none of it for the disk")

    def wait_event(self, kind: EventKind, *, a: int | None = None, deadline_s: float = 60.0) -> EngineEvent:
        """The first event of that kind (about `a`), which is then taken out of `told`."""

        def look() -> EngineEvent | None:
            for event in self.events():
                if event.kind == kind and a in (None, event.a):
                    return event
            return None

        found = until(look, what=f"event {kind.name} about {a}", deadline_s=deadline_s)
        assert found is not None
        self.told.remove(found)
        return found

    # --- another process takes over

    def take_over(self, *, while_stopped: Callable[[], None] | None = None) -> None:
        """Stops the engine at a request boundary and starts a second one over what it left."""
        self.device.stop()
        self.device.destroy()
        if while_stopped is not None:
            while_stopped()
        self.device = Device(self.params, self.state_fd, self.disk_fd)
        assert self.device.adopted
        for donor in sorted({slab.donor for slab in self.slabs.values()}):
            if self.device.donor_get(donor) in (DonorState.UP, DonorState.SUSPECT):
                self._link(donor)
        for slab in self.slabs.values():
            if self.transport == "shm":
                self.device.slab_remap(slab.number, os.dup(slab.memfd))
        for worker, end in self.server_ends.items():
            self.device.conn_attach(worker, end.dup().detach())


def _open_disk(path: Path, size_bytes: int) -> int:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    try:
        return os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    except OSError:  # a file system without direct I/O (tmpfs on older kernels)
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _tcp_pair(address: str) -> tuple[socket.socket, socket.socket]:
    with socket.create_server((address, 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return ours, theirs
