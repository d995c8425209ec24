"""SIGKILL of the serving process at any instruction: its successor goes on in the middle of the stream."""

import fcntl
import os
import queue
import random
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from farside.kmod_shim.engine.binding import Device, Params, Protection
from tests.support import engine_process
from tests.support.nbd_client import Command, NbdClient
from tests.support.rig import EXTENTS, GRANULE_BYTES, MIB, PAGE_BYTES, SEALS, SLAB_BYTES, default_params
from tests.support.shadow import Shadow, stamped_pages

KILLS = 8
SIZE_BYTES = 64 * MIB
CLIENTS = 2
DEPTH = 24


def _memfd(name: str, size_bytes: int, *, seal: bool = False) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    if seal:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def _inherited(folder: Path, params: Params, ends: dict[int, socket.socket]) -> engine_process.Inherited:
    disk_fd = -1
    if params.protection == Protection.DISK:
        disk_fd = os.open(folder / "disk", os.O_RDWR | os.O_CREAT | os.O_DIRECT | os.O_CLOEXEC)
        os.posix_fallocate(disk_fd, 0, SIZE_BYTES)
    # Half of the device has no donor where there is a disk, so that both kinds of page are on their way at the kill.
    granules = SIZE_BYTES // GRANULE_BYTES // (2 if disk_fd >= 0 else 1)
    return engine_process.Inherited(
        params=params,
        state_fd=_memfd("state", Device.state_bytes(params)),
        disk_fd=disk_fd,
        sockets={worker: end.fileno() for worker, end in ends.items()},
        slabs={n: _memfd(f"slab{n}", SLAB_BYTES, seal=True) for n in range(-(-granules // EXTENTS))},
        mappings={c: (c // EXTENTS, c % EXTENTS) for c in range(granules)},
    )


Sent = tuple[int, Command, int, int, bytes]


class Load:
    """Random requests of one client in its own stripe of the device, every answer checked."""

    def __init__(self, client: NbdClient, stripe: int, seed: int) -> None:
        self.client, self.rng, self.shadow = client, random.Random(seed), Shadow(SIZE_BYTES)
        self.first = stripe * (SIZE_BYTES // PAGE_BYTES // CLIENTS)
        self.answered = 0
        self.longest_s = 0.0
        self.trouble: list[str] = []
        self.enough = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self.enough.is_set():
                self._round()
        except (AssertionError, OSError) as error:
            self.trouble.append(f"{type(error).__name__}: {error}")

    def _round(self) -> None:
        """Requests for different pages, all outstanding at once; then their answers."""
        pages = SIZE_BYTES // PAGE_BYTES // CLIENTS
        # A long one now and then, so that a kill finds half of a payload received, or half of an answer sent.
        sizes = [self.rng.choice((1, 1, 1, 2, 8, 64, 300)) for _ in range(DEPTH)]
        starts = sorted(self.rng.sample(range(0, pages, 512), 2))
        page = self.first + self.rng.choice(starts)
        began_s = time.monotonic()
        sent: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        # Sending goes on while answers come: who only sends, and reads nothing, is held up in the end by any server.
        sender = threading.Thread(target=self._send_all, args=(sent, page, sizes, self.first + pages), daemon=True)
        sender.start()
        while (item := sent.get()) is not None:
            cookie, command, offset, length, data = item
            reply = self.client.wait(cookie)
            assert reply.error == 0, f"{command.name} of {length} at {offset}: error {reply.error}"
            if command == Command.READ:
                self.shadow.check(offset, reply.data)
            else:
                self.shadow.write(offset, data)
            self.answered += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began_s)

    def _send_all(self, sent: "queue.SimpleQueue[Sent | None]", page: int, sizes: list[int], end: int) -> None:
        for size in sizes:
            if page + size <= end:
                sent.put(self._send(page, size))
                page += size
        sent.put(None)

    def _send(self, page: int, size: int) -> Sent:
        offset, length = page * PAGE_BYTES, size * PAGE_BYTES
        command = self.rng.choice((Command.READ, Command.WRITE, Command.WRITE, Command.TRIM))
        data = stamped_pages(self.rng, size) if command == Command.WRITE else b""
        cookie = self.client.send(command, offset, length, data)
        return cookie, command, offset, length, data or bytes(length)


def _kill_again_and_again(inherited: engine_process.Inherited, loads: list[Load]) -> None:
    rng, pause = random.Random(3), threading.Event()
    process = engine_process.start(inherited)
    try:
        for load in loads:
            load.thread.start()
        for _ in range(KILLS):
            before = [load.answered for load in loads]
            _wait_for_answers(loads, before)
            pause.wait(rng.uniform(0.0, 0.05))  # anywhere in the middle of it
            process.kill()
            process.communicate()
            process = engine_process.start(inherited)
        _wait_for_answers(loads, [load.answered for load in loads])
        for load in loads:
            load.enough.set()
            load.thread.join(60)
    finally:
        _end(process)


def _wait_for_answers(loads: list[Load], before: list[int]) -> None:
    pause, end_s = threading.Event(), time.monotonic() + 60
    while any(load.answered < n + 200 for load, n in zip(loads, before, strict=True)):
        troubles = [trouble for load in loads for trouble in load.trouble]
        assert not troubles, troubles
        assert time.monotonic() < end_s, "the successor does not answer"
        pause.wait(0.005)


def _end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(60)
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
@pytest.mark.parametrize("protection", [Protection.DISK, Protection.NONE])
def test_a_process_killed_under_load_is_succeeded_without_an_error_or_a_wrong_byte(
    protection: Protection, tmp_path: Path
) -> None:
    pairs = [socket.socketpair() for _ in range(CLIENTS)]
    params = default_params(
        protection=protection,
        encrypt_disk=int(protection == Protection.DISK),
        spin_us=50,
        flush_wait_ms=5000,
        size_bytes=SIZE_BYTES,
    )
    inherited = _inherited(tmp_path, params, {n: ours for n, (ours, _) in enumerate(pairs)})
    loads = [Load(NbdClient(theirs), n, seed=n) for n, (_, theirs) in enumerate(pairs)]

    try:
        _kill_again_and_again(inherited, loads)
    finally:
        for fd in (inherited.state_fd, inherited.disk_fd, *inherited.slabs.values()):
            if fd >= 0:
                os.close(fd)
        for ours, theirs in pairs:
            ours.close()
            theirs.close()

    assert [load.trouble for load in loads] == [[], []]
    assert all(load.answered > 200 * KILLS for load in loads)
