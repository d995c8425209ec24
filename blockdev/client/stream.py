"""A client's bytes during its negotiation: as they are, or through TLS.

Both read exactly what is asked for. Through TLS, what lies in the rest of a record stays with the session, which is the
engine's after the negotiation.
"""

import asyncio
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from farside.blockdev.client.tls_keys import TlsKeys
from farside.config import BlockdevConfig
from farside.kmod_shim.engine.tls import TlsSession, Wants


class Stream(Protocol):
    """Bytes of one client, whose socket does not block."""

    session: TlsSession | None
    """None: the bytes are clear."""
    told: Mapping[str, str]
    """What the log says of the client."""

    async def read_exactly(self, count: int) -> bytes:
        """Raises asyncio.IncompleteReadError: the client hung up before; OSError, EngineError: the connection broke."""
        ...

    async def send(self, data: bytes) -> None:
        """Returns when all of it is sent. Raises OSError, EngineError."""

    def close(self) -> None:
        """Ends what is not the engine's; the socket stays the caller's."""


class ClearStream:
    """Bytes as they are."""

    session: TlsSession | None = None

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.told: Mapping[str, str] = {}

    async def read_exactly(self, count: int) -> bytes:
        """Read exactly ``count`` bytes; raises as `Stream` says."""
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < count:
            part = await loop.sock_recv(self._sock, count - len(data))
            if not part:
                raise asyncio.IncompleteReadError(bytes(data), count)
            data += part
        return bytes(data)

    async def send(self, data: bytes) -> None:
        """Send all of it; raises as `Stream` says."""
        await asyncio.get_running_loop().sock_sendall(self._sock, data)

    def close(self) -> None:
        """There is nothing to end."""


class TlsStream:
    """Bytes of a client that has proved itself."""

    def __init__(self, sock: socket.socket, session: TlsSession) -> None:
        """Raises EngineError: there is no memory."""
        self.told: Mapping[str, str] = {"tls": session.describe()}
        self._sock = sock
        self._own = session
        self.session: TlsSession | None = session

    async def read_exactly(self, count: int) -> bytes:
        """Read exactly ``count`` bytes; raises as `Stream` says."""
        data = bytearray()
        while len(data) < count:
            part = self._own.read(count - len(data))
            if part is None:
                await until_ready(self._sock, Wants.READ)
            elif not part:
                raise asyncio.IncompleteReadError(bytes(data), count)
            else:
                data += part
        return bytes(data)

    async def send(self, data: bytes) -> None:
        """Send all of it; raises as `Stream` says."""
        while data:
            sent = self._own.write(data)
            data = data[sent:]
            if not sent:
                await until_ready(self._sock, Wants.WRITE)

    def close(self) -> None:
        """Ends the session, unless it is the engine's by now."""
        self._own.close()


class TlsDoor:
    """Where clients prove themselves."""

    def __init__(self, keys: TlsKeys) -> None:
        self._keys = keys
        # A handshake signs, which takes milliseconds: the loop also decides what lies where, for all clients. One
        # thread for all of them, so that strangers who come all the time have one processor at most.
        self._steps = ThreadPoolExecutor(1, thread_name_prefix="fs-tls")

    async def open(self, sock: socket.socket) -> TlsStream:
        """Have the client behind this socket prove itself.

        Raises:
            PeerError: it has not, and why.
            ConfigError: no file of keys is usable.
            EngineError: the connection broke.
        """
        session = self._keys.current().begin(sock.fileno())
        loop = asyncio.get_running_loop()
        try:
            while wants := await loop.run_in_executor(self._steps, session.handshake):
                await until_ready(sock, wants)
            return TlsStream(sock, session)
        except BaseException:
            # At the deadline, say, while the thread is in a step: this waits until that is over.
            session.close()
            raise


def door_of(config: BlockdevConfig, *, must: bool) -> TlsDoor | None:
    """The door that the settings ask for; None: no TLS. ``must``, and what it raises: as `TlsKeys`."""
    return TlsDoor(TlsKeys(config, must=must)) if config.has_tls else None


async def until_ready(sock: socket.socket, wants: Wants) -> None:
    """Returns when the socket is readable, or writable."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    watch, forget = (
        (loop.add_reader, loop.remove_reader) if wants is Wants.READ else (loop.add_writer, loop.remove_writer)
    )
    watch(sock, ready.set)
    try:
        await ready.wait()
    finally:
        forget(sock)
