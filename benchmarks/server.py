"""The servers that are measured: each one started, ready, and taken down, all behind one shape."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.load import build_program
from benchmarks.process import background, free_port, listens, port_listens, process
from benchmarks.sandbox import Layout, sandbox

TMPFS = Path("/dev/shm")  # where the peers that serve a file have it: memory, as ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server that offers ``device_bytes`` on a unix socket."""

    name: str
    socket: Path
    export: str = ""
    stamp: bool = True  # False: it stores nothing, so what is read is not what was written
    roles: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # "server" and "donor" -> processes
    is_settled: Callable[[], bool] = lambda: True  # what was written is where it is to be measured
    is_quiet: Callable[[], bool] = lambda: True  # nothing is left over from the last load, such as writes to a disk


Opener = Callable[[Path, int], AbstractContextManager[Server]]


@contextmanager
def floor(room: Path, device_bytes: int) -> Iterator[Server]:
    """A socket with nothing behind it (floor.c)."""
    path = room / "floor.sock"
    command = [str(build_program("floor")), str(path), str(device_bytes)]
    with process(command, room / "floor.log", lambda: listens(path)) as child:
        yield Server(name="floor", socket=path, stamp=False, roles={"server": (child.pid,)})


@contextmanager
def nbdkit_memory(room: Path, device_bytes: int) -> Iterator[Server]:
    """The memory plugin of nbdkit, with its own default threads."""
    path = room / "nbdkit.sock"
    command = ["nbdkit", "-f", "-U", str(path), "memory", str(device_bytes)]
    with process(command, room / "nbdkit.log", lambda: listens(path)) as child:
        yield Server(name="nbdkit-memory", socket=path, roles={"server": (child.pid,)})


@contextmanager
def nbdkit_forward(room: Path, device_bytes: int) -> Iterator[Server]:
    """The nbd plugin of nbdkit before another nbdkit's memory over TCP loopback: what nbdX was, in user space."""
    path, port = room / "forward.sock", free_port()
    back = ["nbdkit", "-f", "-i", "127.0.0.1", "-p", str(port), "memory", str(device_bytes)]
    front = ["nbdkit", "-f", "-U", str(path), "nbd", "hostname=127.0.0.1", f"port={port}"]
    with (
        process(back, room / "back.log", lambda: port_listens(port)) as donor,
        process(front, room / "forward.log", lambda: listens(path)) as child,
    ):
        yield Server(name="nbdkit-forward", socket=path, roles={"server": (child.pid,), "donor": (donor.pid,)})


@contextmanager
def tmpfs_file(device_bytes: int, name: str) -> Iterator[Path]:
    path = TMPFS / f"farside-bench-{os.getpid()}-{name}"
    path.touch(mode=0o600)
    os.truncate(path, device_bytes)
    try:
        yield path
    finally:
        path.unlink()


@contextmanager
def nbd_server(room: Path, device_bytes: int) -> Iterator[Server]:
    """The reference nbd-server on a tmpfs file: one process a connection."""
    path, config, pid_file = room / "nbd-server.sock", room / "nbd-server.conf", room / "nbd-server.pid"
    with tmpfs_file(device_bytes, "nbd-server") as file:
        config.write_text(
            f"[generic]\nunixsock = {path}\n[tmpfs]\nexportname = {file}\nmulticonn = true\nflush = true\n"
        )
        # With -d it would serve one connection and end, so it has to be let go into the background.
        command = ["nbd-server", "-C", str(config), "-p", str(pid_file)]
        with background(command, pid_file, lambda: listens(path)) as pid:
            yield Server(name="nbd-server", socket=path, export="tmpfs", roles={"server": (pid,)})


@contextmanager
def qemu_nbd(room: Path, device_bytes: int) -> Iterator[Server]:
    """qemu-nbd on a tmpfs file."""
    path = room / "qemu-nbd.sock"
    with tmpfs_file(device_bytes, "qemu-nbd") as file:
        command = ["qemu-nbd", "-t", "-e", "16", "-f", "raw", "-k", str(path), str(file)]
        with process(command, room / "qemu-nbd.log", lambda: listens(path)) as child:
            yield Server(name="qemu-nbd", socket=path, roles={"server": (child.pid,)})


OURS_SHM, OURS_DISK, OURS_TCP = "farside-shm", "farside-shm-disk", "farside-tcp"
CLEAR = "-clear"  # behind a name: pages are not encrypted
LAYOUTS = (
    Layout(name=OURS_SHM, transport="shm", disk=False),
    Layout(name=OURS_DISK, transport="shm", disk=True),
    Layout(name=OURS_TCP, transport="tcp", disk=False),
    Layout(name=OURS_SHM + CLEAR, transport="shm", disk=False, encrypts=False),
    Layout(name=OURS_TCP + CLEAR, transport="tcp", disk=False, encrypts=False),
)


def ours(layout: Layout) -> Opener:
    """Farside in this layout."""

    @contextmanager
    def opener(room: Path, device_bytes: int) -> Iterator[Server]:
        with sandbox(layout, room / layout.name, device_bytes) as box:
            yield Server(
                name=layout.name,
                socket=box.socket,
                roles={"server": box.server_processes(), "donor": box.donor_processes()},
                is_settled=box.is_all_remote,
                is_quiet=box.is_quiet,
            )

    return opener


OPENERS: Mapping[str, Opener] = {
    **{layout.name: ours(layout) for layout in LAYOUTS},
    "nbdkit-memory": nbdkit_memory,
    "nbd-server": nbd_server,
    "qemu-nbd": qemu_nbd,
    "nbdkit-forward": nbdkit_forward,
    "floor": floor,
}
