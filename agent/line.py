"""Open connection to a manager: the WebSocket, and the codes of its frames where both sides proved themselves."""

import asyncio
import secrets
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from websockets.asyncio.client import ClientConnection, connect

from farside.agent.mutual_proof import (
    CODED_BYTES_MAX,
    HEADER,
    NONCE_BYTES,
    Frames,
    PlainFrames,
    check_answer,
    key_of,
    offer,
)
from farside.agent.protocol import PATH, Text

OPEN_LIMIT_S = 10.0
PING_EVERY_S = 10.0
"""A dead manager, or a cut cable, is noticed within twice this."""


class Line:
    """An open connection; `open_line` and `open_proved_line` make one.

    Attributes:
        connection: The WebSocket; its own `send` and `recv` would break the codes.
        is_proved: The manager has proved itself.
        lasting_token: The node's token from now on, if it came by an invitation.
    """

    def __init__(
        self, connection: ClientConnection, frames: Frames, *, is_proved: bool, lasting_token: str = ""
    ) -> None:
        self.is_proved = is_proved
        self.lasting_token = lasting_token
        self.connection = connection
        self._frames = frames
        self._sending = asyncio.Lock()

    async def send(self, frame: str) -> None:
        """Sends a frame of the protocol."""
        # A code counts the frames before it, so they leave in the order in which they are sealed.
        async with self._sending:
            await self.connection.send(self._frames.seal(frame))

    async def receive(self) -> Text:
        """The next frame of the protocol.

        Raises:
            ConnectionClosed: there is none.
            RemoteProtocolError: it is not of the manager that proved itself.
        """
        return self._frames.open(await self.connection.recv())

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Hangs up."""
        await self.connection.close(code, reason)


class _Connection(ClientConnection):
    """Connection whose failure to open has the reason from TLS, where there is one.

    A manager refuses a node's certificate after the node's own handshake is over: when HTTP's is under way.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if isinstance(exc, ssl.SSLError):
            self.protocol.handshake_exc = exc


@asynccontextmanager
async def open_line(
    url: str,
    headers: Mapping[str, str],
    *,
    is_proved: bool,
    sock: socket.socket | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Line]:
    """A connection whose frames have no codes. ``headers``: what the manager knows us by, if it needs any.

    ``is_proved``: TLS or the kernel proves the manager. The connection ends with the body.

    Raises:
        OSError, WebSocketException: there is none; InvalidStatus has the manager's answer.
    """
    async with _connect(url, headers, sock=sock, tls=tls) as connection:
        yield Line(connection, PlainFrames(), is_proved=is_proved)


@asynccontextmanager
async def open_proved_line(url: str, token: str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Line]:
    """A connection to a manager that has proved by the token that it is ours; it does not get the token.

    Raises:
        OSError, WebSocketException: there is none; InvalidStatus has the manager's answer.
        RemoteProtocolError: what answers there is not the manager.
    """
    key = key_of(token)
    offered = offer(key, secrets.token_bytes(NONCE_BYTES))
    async with _connect(url, {HEADER: offered.text}, tls=tls) as connection:
        shown = connection.response.headers.get(HEADER, "") if connection.response is not None else ""
        frames = check_answer(key, offered, shown)
        yield Line(connection, frames, is_proved=True, lasting_token=frames.lasting_token)


def _connect(
    url: str,
    headers: Mapping[str, str],
    *,
    sock: socket.socket | None = None,
    tls: ssl.SSLContext | None = None,
) -> connect:
    return connect(
        url.rstrip("/") + PATH,
        sock=sock,
        additional_headers=headers,
        ssl=tls,
        create_connection=_Connection,
        compression=None,
        max_size=CODED_BYTES_MAX,
        open_timeout=OPEN_LIMIT_S,
        ping_interval=PING_EVERY_S,
        ping_timeout=PING_EVERY_S,
        user_agent_header=None,
        proxy=None,  # the cluster's own network; an environment variable meant for browsers must not reroute it
    )
