"""What the servers of both doors share: which connections they take, how long one may stall, and how all end.

Connections are counted by address, those of IPv6 by its first 64 bits: whoever has one such address has all of these.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from farside.listen import BACKLOG
from farside.proof import subnet
from farside.scheduler.manager.api.limit.connections import HEADER_LIMIT_S, Connections, say_rarely
from farside.scheduler.manager.api.limit.handshake import CountedListener, forget_failed
from farside.serve.http2.budget import WRITE_LIMIT_S, Share, Unsent

CONNECTIONS_MAX = 1024
# Of answers that wait for their clients, on all connections of a door.
UNSENT_BYTES_ALL = 512 << 20
_LOOK_EVERY_S = 1.0

# What is called where the client gives a request up before its answer.
Cancel = Callable[[], None]


class State(Protocol):
    """The sans-I/O side of a connection."""

    def lost(self) -> None:
        """The connection is gone."""
        ...


def door_connections() -> Connections:
    """Connections of a door, with its limit for an address."""
    return Connections(address_max=CONNECTIONS_MAX)


def counted_listener(listener: socket.socket, connections: Connections) -> socket.socket:
    """The listener of a door that speaks TLS: handshakes count as connections."""
    forget_failed(asyncio.get_running_loop())
    return CountedListener(listener, connections, subnet)


class DoorServer:
    """Listens, and ends its connections.

    Args:
        make: A new connection.
        listener: Listens already.
        tls: Context that speaks TLS.
        connections: Counts the connections of each address.
        alpn: The protocol that a TLS connection has to have agreed on; None: any.
    """

    def __init__(
        self, make: Callable[[], "DoorConnection"], *, listener: socket.socket, tls: ssl.SSLContext | None,
        connections: Connections, alpn: str | None = None,
    ) -> None:  # fmt: skip
        self.connections, self.address_max = connections, CONNECTIONS_MAX
        self.alpn = alpn if tls is not None else None
        self.open: set[DoorConnection] = set()
        self.unsent = Share(UNSENT_BYTES_ALL)
        self.is_stopping = False
        self._make, self._tls = make, tls
        self._listener = counted_listener(listener, connections) if tls is not None else listener
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        say_rarely(self._loop)

    @property
    def is_started(self) -> bool:
        """Whether it takes connections, or did until it was stopped."""
        return self._server is not None

    async def start(self) -> None:
        """Takes connections from now on."""
        options: dict[str, Any] = {} if self._tls is None else {"ssl_handshake_timeout": HEADER_LIMIT_S}
        self._server = await self._loop.create_server(self._make, sock=self._listener, ssl=self._tls, **options)
        # asyncio has made it 100, which is also how many it accepts in a turn. Of more that come meanwhile the kernel
        # would drop the first packet, and each would wait a second.
        self._listener.listen(BACKLOG)
        self._look()

    async def stop(self, grace_s: float) -> None:
        """Refuses new requests, and ends once those under way are answered, or after ``grace_s`` seconds."""
        self.is_stopping = True  # whoever is in a TLS handshake comes later
        self.close()
        for one in tuple(self.open):
            one.leave()
        end_s = self._loop.time() + grace_s
        while self.open and self._loop.time() < end_s:
            await asyncio.sleep(0.01)
        if self._timer is not None:
            self._timer.cancel()
        for one in tuple(self.open):
            one.end()
        await asyncio.sleep(0)

    def make_room(self) -> None:
        """Closes connections whose clients are furthest behind in reading, where more answers wait than may."""
        if self.unsent.held > self.unsent.most:
            for one in sorted(self.open, key=lambda one: one.unsent.latest_s):
                one.drop()
                if self.unsent.held <= self.unsent.most:
                    break

    def close(self) -> None:
        """Listens no longer."""
        if self._server is not None:
            self._server.close()
        else:
            self._listener.close()

    def _look(self) -> None:
        for one in tuple(self.open):
            one.look()
        self._timer = self._loop.call_later(_LOOK_EVERY_S, self._look)


class DoorConnection(asyncio.Protocol):
    """One connection, counted among those of its address; one that waits for its client may be closed for another.

    Args:
        server: Whose it is.
        loop: Its loop.
        state: What takes its bytes apart.
        unsent: Answers that wait for its client; it gives them back by `release`.
    """

    def __init__(self, server: DoorServer, loop: asyncio.AbstractEventLoop, state: State, unsent: Unsent) -> None:
        self._door, self._loop, self._lost_by, self.unsent = server, loop, state, unsent
        self._transport: Any = None
        self._owner = ""  # empty: it does not count
        self._is_waiting = True  # for its client
        self._is_leaving = False
        self._stalled_s, self._closes_s = 0.0, loop.time()

    # ---- what a kind of connection does in its own way

    def opened(self) -> None:
        """The connection is counted, and may send."""

    def gone(self) -> None:
        """The client has gone: what it waits for is cancelled."""

    def release(self) -> None:
        """Gives back what it holds of what all connections hold together; it has no connection any more."""
        self._lost_by.lost()

    def due(self, now_s: float) -> None:
        """About once a second: what takes too long ends."""

    def leave(self) -> None:
        """Takes nothing new, and closes once what is under way is answered."""
        self._is_leaving = True

    # ---- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Counts it."""
        self._transport = transport
        owner = subnet((transport.get_extra_info("peername") or ("nobody",))[0])
        server = self._door
        server.connections.shaken(transport.get_extra_info("socket").fileno())
        spoken = transport.get_extra_info("ssl_object")
        is_wrong = server.alpn is not None and (spoken is None or spoken.selected_alpn_protocol() != server.alpn)
        if is_wrong or not server.connections.admit(owner, server.address_max):
            self._transport.abort()
            return
        self._owner = owner
        server.connections.waits(owner, self, self._evict)
        server.open.add(self)
        if server.is_stopping:
            self.leave()
        self.opened()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends what its client waits for."""
        self._uncount()
        self.release()
        self._door.open.discard(self)
        self.gone()

    def eof_received(self) -> bool:
        """Closes: a client that has ended its side has gone."""
        return False

    def look(self) -> None:
        """About once a second: whether it is still worth its place."""
        now_s = self._loop.time()
        if not self._transport.is_closing():
            self._closes_s = now_s
            self.due(now_s)
        # What was written last before it closed may find no reader either.
        if now_s - min(self._closes_s, self._stalled_s or now_s) > WRITE_LIMIT_S:
            self._transport.abort()

    def end(self) -> None:
        """Closes now."""
        self._transport.abort()

    def drop(self) -> None:
        """Closes now, and gives back at once what it holds."""
        self.release()
        self._transport.abort()

    def finish(self) -> None:
        """Closes once what was written is sent."""
        if not self._transport.is_closing():  # asyncio forgets a TLS connection that is closed twice
            self._transport.close()

    def count(self, *, is_waiting: bool) -> None:
        """Whether it waits for its client: with a request or an answer in between it does not."""
        if self._owner and is_waiting != self._is_waiting:
            self._is_waiting = is_waiting
            if is_waiting:
                self._door.connections.waits(self._owner, self, self._evict)
            else:
                self._door.connections.is_answered(self._owner, self)

    def _evict(self) -> None:
        self._owner = ""
        self._transport.abort()

    def _uncount(self) -> None:
        if self._owner:
            self._door.connections.leave(self._owner, self)
            self._owner = ""
