"""Connections that have not got through a TLS handshake yet, counted from when they are accepted.

asyncio tells a protocol of a connection once its handshake is over. Until then it has only time, not number, as its
limit; so the listening socket itself asks the crowd, and the accepted one says when it is closed.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from farside.scheduler.live.api.crowd import Crowd


class CountedListener(socket.socket):
    """A listening TCP socket whose connections belong to the crowd from the start."""

    def __init__(self, listener: socket.socket, crowd: Crowd) -> None:
        """Takes the place of ``listener``, which is no socket any more."""
        super().__init__(listener.family, listener.type, listener.proto, fileno=listener.detach())
        self._crowd = crowd

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            ConnectionAbortedError: Its address has too many, and all of these are being answered; asyncio goes on.
        """
        made, address = super().accept()
        accepted = _Accepted(made.family, made.type, made.proto, fileno=made.detach())
        fd = accepted.fileno()
        if not self._crowd.shake(address[0], fd, accepted.hang_up):
            accepted.close()
            raise ConnectionAbortedError(f"{address[0]} has too many connections")
        accepted.on_close = lambda: self._crowd.shaken(fd)
        return accepted, address


class _Accepted(socket.socket):
    on_close: Callable[[], None] | None = None

    def hang_up(self) -> None:
        """Whoever reads from it, which is asyncio, finds its end."""
        with suppress(OSError):  # its client was faster
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        told, self.on_close = self.on_close, None
        if told is not None:
            told()
        super().close()
