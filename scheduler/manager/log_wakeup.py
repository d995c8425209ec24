"""Wake-up datagrams: one process of the manager signals another that the log has new entries.

A datagram on a unix socket, empty: it says only that it is time to look. Lost ones do no harm, as everybody looks once
a second anyway.
"""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOK_PERIOD_S = 1.0


class Sleeper:
    """Waits for a datagram, or until it is time."""

    def __init__(self) -> None:
        self._called = asyncio.Event()

    def call(self) -> None:
        """Wakes it, now or the next time it would sleep."""
        self._called.set()

    async def sleep(self, seconds: float) -> None:
        """Returns after a call, or after so long, at least one turn of the event loop."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(seconds, LOOK_PERIOD_S))):
                await self._called.wait()
        # A call during the caller's work stays set until the next sleep, so no call is lost between looking and
        # sleeping.
        self._called.clear()


@contextmanager
def sleeping_at(path: Path) -> Iterator[Sleeper]:
    """A sleeper that datagrams to this socket wake; in an event loop."""
    sleeper = Sleeper()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as receiver:
        path.unlink(missing_ok=True)  # of a process that was killed; one process at a time has this folder
        receiver.bind(os.fspath(path))
        # bind makes the socket by the umask, and any user who may write it could keep the process busy.
        os.chmod(path, 0o600)
        loop = asyncio.get_running_loop()
        loop.add_reader(receiver, _drain, receiver, sleeper)
        try:
            yield sleeper
        finally:
            loop.remove_reader(receiver)
            path.unlink(missing_ok=True)


def _drain(receiver: socket.socket, sleeper: Sleeper) -> None:
    with suppress(BlockingIOError):
        # All that wait are read: many calls mean one look.
        while True:
            receiver.recv(1)
            sleeper.call()


def wake(path: Path) -> None:
    """Wakes who sleeps there, if anybody does."""
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:  # nobody there, or called often enough
        sender.sendto(b"\0", os.fspath(path))
