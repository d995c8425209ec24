"""Limit on connections whose TLS handshake is not over, counted from accept(2) on.

asyncio tells a protocol of a connection once its handshake is over. Until then it has only time, not number, as its
limit; so the listening socket itself asks the crowd, and the accepted one says when it is closed.

Of a handshake that fails asyncio keeps 0.3 MiB: its error has the frames that it went through, and these have the
error. Such circles are found late (garbage_collection.py), so whoever opens and closes connections would fill the
memory. `forget_failed` has them broken at once, and what is said of a failure name the address.
"""

import asyncio
import socket
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import FrameType
from typing import Any

from farside.scheduler.manager.api.limit.connections import Connections
from farside.tls import PEER


class CountedListener(socket.socket):
    """A listening TCP socket whose connections belong to the crowd from the start."""

    def __init__(self, listener: socket.socket, connections: Connections, owner_of: Callable[[str], str] = str) -> None:
        """Takes over the file descriptor of ``listener``, which is closed as a socket.

        ``owner_of``: whose a connection from an address is.
        """
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._connections, self._owner_of = connections, owner_of

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            ConnectionAbortedError: Its address has too many, and all of these are being answered; asyncio goes on.
        """
        made, address = super().accept()
        accepted = _Accepted(made.family, made.type, made.proto, fileno=made.detach())
        fd = accepted.fileno()
        if not self._connections.shake(self._owner_of(address[0]), fd, accepted.hang_up):
            accepted.close()
            # accept(2) gives this error too, for a client that hung up before; asyncio passes it over and goes on
            # listening.
            raise ConnectionAbortedError(f"{address[0]} has too many connections")
        accepted.on_close = lambda: self._connections.shaken(fd)
        return accepted, address


class _Accepted(socket.socket):
    on_close: Callable[[], None] | None = None

    def hang_up(self) -> None:
        """Whoever reads from it, which is asyncio, finds its end."""
        with suppress(OSError):  # its client was faster
            # Not close: asyncio still has the descriptor registered, and the kernel could give its number to a new
            # connection.
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # Once only: close may be called twice, and by then the descriptor's number may be another connection's.
        told, self.on_close = self.on_close, None
        if told is not None:
            told()
        super().close()


def forget_failed(loop: asyncio.AbstractEventLoop) -> None:
    """Has a loop keep nothing of handshakes that failed."""
    loop.set_task_factory(_make_task)


def _make_task(
    loop: asyncio.AbstractEventLoop, made: Coroutine[Any, Any, Any] | Generator[Any, Any, Any], **more: Any
) -> "asyncio.Task[Any]":
    # asyncio's own, which waits for the handshake of one connection and swallows its error.
    if isinstance(made, Coroutine) and getattr(made, "__name__", "") == "_accept_connection2":
        made = _forgetting(made)
    return asyncio.Task(made, loop=loop, **more)


async def _forgetting(accepting: Coroutine[Any, Any, Any]) -> None:
    frame: FrameType | None = getattr(accepting, "cr_frame", None)
    if frame is not None:
        # All that the handshake does is called in this task's context, or in a copy of it. A unix socket has no name.
        peer = frame.f_locals.get("extra", {}).get("peername")
        PEER.set(str(peer[0]) if isinstance(peer, tuple) and peer else "")
    try:
        await accepting
    finally:
        if frame is not None:
            had = frame.f_locals
            waiter = had.get("waiter")
            if isinstance(waiter, asyncio.Future) and waiter.done() and not waiter.cancelled():
                error = waiter.exception()
                traceback.clear_frames(error.__traceback__ if error is not None else None)
                del error
            frame.clear()
            had.clear()
