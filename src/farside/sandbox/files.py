"""System resources of a sandbox: backup disk file, free ports, URIs, waiting."""

import asyncio
import os
import random
import socket
import stat
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from farside.endpoint import parse_endpoint
from farside.errors import ConfigError, PeerError
from farside.kmod_shim.rdma import devices as rdma_devices
from farside.units import format_bytes

LOOK_EVERY_S = 0.05
# Below the kernel's usual range for outgoing connections (from 32768), so that nothing takes a donor's port while the
# donor is away.
PORTS = range(20000, 32000)


@contextmanager
def backup_disk(path: Path, size_bytes: int) -> Iterator[None]:
    """A backup disk for the body of the `with`: an existing file, or a new one that is removed afterwards.

    Raises:
        ConfigError: there is no room for it, or what stands there is too small.
    """
    try:
        made = _make_disk(path, size_bytes)
    except OSError as error:
        raise ConfigError(f"backup disk {path}: {error.strerror}") from None
    try:
        yield
    finally:
        if made:
            path.unlink(missing_ok=True)


def _make_disk(path: Path, size_bytes: int) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_size < size_bytes:
            have, want = format_bytes(found.st_size), format_bytes(size_bytes)
            raise ConfigError(
                f"backup disk {path}: has {have} where {want} are needed",
                hint="name a file as large as the device, or one that does not exist",
            ) from None
        return False
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError:
        path.unlink()
        raise
    finally:
        os.close(fd)
    return True


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port of ours that nobody listens on now and no outgoing connection will take."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError:
                continue
            return port
    raise PeerError("no free TCP port among a hundred tried")


def rdma_address() -> str:
    """An IPv4 address of one of this machine's RDMA devices.

    Raises:
        ConfigError: there is none.
    """
    for device in rdma_devices.devices():
        for gid in (gid for port in device.ports if port.is_active for gid in port.gids):
            if gid.ipv4 is not None and not gid.ipv4.is_loopback:
                return str(gid.ipv4)
    raise ConfigError(
        "--transport rdma: no active RDMA device with an IPv4 address here",
        hint="soft RoCE makes one of any network device: `rdma link add rxe0 type rxe netdev eth0`",
    )


def uri(listener: str) -> str:
    """NBD URI of a listener written as unix:PATH or tcp:HOST:PORT."""
    where = parse_endpoint(listener)
    return f"nbd+unix:///?socket={where}" if isinstance(where, str) else f"nbd://{listener.removeprefix('tcp:')}"


def socket_of(uri: str) -> Path | None:
    """Path of the unix socket that a URI of ours names."""
    path = uri.partition("?socket=")[2]
    return Path(path) if path else None


async def until(look: Callable[[], Awaitable[bool]], *, what: str, limit_s: float) -> None:
    """Returns when `look` says yes.

    Raises:
        PeerError: it did not within `limit_s`.
    """
    try:
        async with asyncio.timeout(limit_s):
            while not await look():
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise PeerError(f"waited {limit_s:g} s in vain for {what}") from None
