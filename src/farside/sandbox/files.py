"""Small things that a sandbox needs of the system: a backup disk file, free ports, URIs, time to wait."""

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from farside.errors import ConfigError, PeerError

LOOK_EVERY_S = 0.05
# Below the kernel's usual range for outgoing connections (from 32768), so that nothing takes a donor's port while the
# donor is away.
PORTS = range(20000, 32000)


def make_disk(path: Path, size_bytes: int) -> bool:
    """Makes sure that a backup disk of that size stands there, its space allocated; true when it was made now.

    Raises:
        ConfigError: there is no room, or what stands there is too small.
    """
    made = not path.exists()
    try:
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
    except OSError as ex:
        if made:
            path.unlink(missing_ok=True)
        raise ConfigError(f"backup disk {path}: {ex.strerror}") from None
    return made


def free_port() -> int:
    """A loopback TCP port that nobody listens on now and no outgoing connection will take."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise PeerError("no free TCP port among a hundred tried")


def uri(listener: str) -> str:
    """NBD URI of a listener written as unix:PATH or tcp:HOST:PORT."""
    kind, _, where = listener.partition(":")
    return f"nbd+unix:///?socket={where}" if kind == "unix" else f"nbd://{where}"


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
