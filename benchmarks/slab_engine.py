"""A borrower's engine in this process, and how long it takes to take a slab, to move it, and to drop it.

The engine is the real one with a real disk file; the donor's side is the real pool. Only what chooses (which donor,
which extent) is missing, so that each step can be timed alone.
"""

import asyncio
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load import BenchmarkError
from farside.daemon.slab.pool import Pool, Slab
from farside.kmod_shim.engine import binding
from farside.kmod_shim.engine.binding import GRANULE_BYTES, Device, DonorState, EventKind, Params, Protection, SlabInfo

REQUEST = struct.Struct(">IHHQQI")
REQUEST_MAGIC, COMMAND_WRITE, COMMAND_DISCONNECT = 0x25609513, 1, 2
REPLY_BYTES = 16
BLOCK_BYTES = 1 << 20
WAIT_S = 60.0
MOVE_DEADLINE_MS = 30_000  # far away: what is timed is the copying, not the deadline


@dataclass(slots=True, kw_only=True)
class Times:
    """Seconds that each phase took, one entry a repetition."""

    make_s: list[float] = field(default_factory=list)  # memory allocated, zeroed by the kernel, mapped
    take_back_s: list[float] = field(default_factory=list)  # content gone, memory freed
    attach_s: list[float] = field(default_factory=list)  # the borrower maps the donor's memory
    point_s: list[float] = field(default_factory=list)  # its granules get their extents
    move_s: list[float] = field(default_factory=list)  # every page to another donor
    drop_s: list[float] = field(default_factory=list)  # to the disk that has them already


def measure(folder: Path, *, slab_bytes: int, repetitions: int) -> Times:
    """Times a slab of that size through its life, so many times."""
    times = Times()
    pool = Pool(binding, slab_bytes=slab_bytes)
    try:
        with _engine(folder / f"engine-{slab_bytes}", slab_bytes) as engine:
            for _ in range(repetitions):
                _live_and_die(engine, pool, times)
    finally:
        pool.close()
    return times


def _live_and_die(engine: "_Engine", pool: Pool, times: Times) -> None:
    first, second = (_make(pool, times) for _ in range(2))
    engine.take(0, first, times)
    engine.write_all()
    engine.take(1, second, times)
    times.move_s.append(engine.drain(0, MOVE_DEADLINE_MS, moved=True))
    times.drop_s.append(engine.drain(1, 0, moved=False))
    for slab in (first, second):
        started_s = time.perf_counter()
        asyncio.run(pool.take_back(slab, keep=False))
        times.take_back_s.append(time.perf_counter() - started_s)


def _make(pool: Pool, times: Times) -> Slab:
    started_s = time.perf_counter()
    asyncio.run(pool.grow(1))
    times.make_s.append(time.perf_counter() - started_s)
    slab = pool.lend_nowait()
    if slab is None:
        raise BenchmarkError("no memory for a slab")
    return slab


@contextmanager
def _engine(path: Path, slab_bytes: int) -> Iterator["_Engine"]:
    params = Params(
        size_bytes=slab_bytes,
        slab_bytes=slab_bytes,
        pending_bytes=64 << 20,
        workers=1,
        protection=Protection.DISK,
        deadline_ms=1000,
        hedge_us=5000,
        spin_us=50,
        flush_wait_ms=30_000,
        encrypt_disk=0,
        encrypt_remote=1,
    )
    with ExitStack() as stack:
        disk_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_DIRECT, 0o600)
        stack.callback(path.unlink)
        stack.callback(os.close, disk_fd)
        os.posix_fallocate(disk_fd, 0, slab_bytes)
        state_fd = os.memfd_create("state", os.MFD_CLOEXEC)
        stack.callback(os.close, state_fd)
        os.ftruncate(state_fd, Device.state_bytes(params))
        device = Device(params, state_fd, disk_fd)
        stack.callback(device.destroy)
        ours, theirs = socket.socketpair()
        stack.callback(ours.close)
        device.conn_attach(0, theirs.detach())
        for donor in (0, 1):
            device.donor_set(donor, DonorState.UP)
            device.link_attach_shm(donor)
        yield _Engine(device, ours, slab_bytes)


class _Engine:
    """A device as large as one slab, with two donors, slab n from donor n."""

    def __init__(self, device: Device, client: socket.socket, slab_bytes: int) -> None:
        self._device = device
        self._client = client
        self._slab_bytes = slab_bytes
        self._epoch = 0
        self._block = os.urandom(BLOCK_BYTES)

    def take(self, number: int, slab: Slab, times: Times) -> None:
        self._epoch += 1
        info = SlabInfo(slab=number, donor=number, lease=number, epoch=self._epoch, token=self._epoch)
        fd = os.dup(slab.fd)
        started_s = time.perf_counter()
        self._device.slab_add(info, fd)
        attached_s = time.perf_counter()
        for granule in range(self._slab_bytes // GRANULE_BYTES):
            self._device.cluster_map(granule, number, granule)
        times.attach_s.append(attached_s - started_s)
        times.point_s.append(time.perf_counter() - attached_s)

    def write_all(self) -> None:
        """Fills every page with content, and waits until the disk has it too."""
        for offset in range(0, self._slab_bytes, BLOCK_BYTES):
            self._client.sendall(REQUEST.pack(REQUEST_MAGIC, 0, COMMAND_WRITE, offset, offset, BLOCK_BYTES))
            self._client.sendall(self._block)
            reply = self._client.recv(REPLY_BYTES, socket.MSG_WAITALL)
            if len(reply) != REPLY_BYTES or reply[4:8] != bytes(4):
                raise BenchmarkError(f"a write of the slab failed: {reply.hex()}")
        deadline_s = time.monotonic() + WAIT_S
        while self._device.figures.pending_bytes():
            if time.monotonic() > deadline_s:
                raise BenchmarkError("the disk does not take what is pending")
            time.sleep(0.01)

    def drain(self, slab: int, deadline_ms: int, *, moved: bool) -> float:
        """Seconds until nothing of the slab is in use any more; the slab is then forgotten."""
        self._events()
        poll = select.poll()
        poll.register(self._device.event_fd, select.POLLIN)
        started_s = time.perf_counter()
        self._device.slab_drain(slab, deadline_ms)
        while True:
            if not poll.poll(WAIT_S * 1000):
                raise BenchmarkError("a slab was not drained")
            for event in self._events():
                if event.kind is EventKind.SLAB_DRAINED and event.a == slab:
                    took_s = time.perf_counter() - started_s
                    expected = (self._slab_bytes // 4096, 0) if moved else (0, self._slab_bytes // 4096)
                    if (event.b, event.c) != expected or event.d:
                        raise BenchmarkError(f"drained otherwise than meant: {event}")
                    self._device.slab_remove(slab)
                    return took_s

    def _events(self) -> list[binding.EngineEvent]:
        found = []
        while (event := self._device.event_next()) is not None:
            found.append(event)
        return found
