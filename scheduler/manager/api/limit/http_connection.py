"""An HTTP connection that is closed when its request takes too long, or when its owner has too many.

uvicorn has a limit for neither a header nor a body, of time or of bytes; only for the pause between two requests.
"""

import asyncio
from typing import Any

from farside.log import Rarely, get_log
from farside.scheduler.manager.api.limit import connections as limits
from farside.scheduler.manager.auth.caller import UNTOLD, PeerProtocol, is_peer

UVICORNS_LINE = "Invalid HTTP request received."
"""What uvicorn logs of bytes that are no request: it says neither whose they were nor what to do."""

_log = get_log("manager.connections")
_rarely = Rarely()


class LimitedProtocol(PeerProtocol):
    """One connection, among those of its owner."""

    address_max = limits.CONNECTIONS_AN_ADDRESS
    body_bytes_max = limits.BODY_BYTES_MAX

    def __init__(self, *args: Any, connections: limits.Connections, **more: Any) -> None:
        super().__init__(*args, **more)
        self._connections = connections
        self._owner = ""  # empty: it does not count
        self._late: asyncio.TimerHandle | None = None  # None: nothing of a request is missing
        self._bytes, self._bytes_max = 0, limits.HEADER_BYTES_MAX

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts it."""
        super().connection_made(transport)
        owner = self.client[0] if self.client is not None else "nobody"
        # The handshake counted it by its descriptor until now; from here on it counts as this object.
        self._connections.shaken(transport.get_extra_info("socket").fileno())
        most = limits.CONNECTIONS_A_USER if is_peer(owner) else self.address_max
        if not self._connections.admit(owner, most):
            self.transport.abort()
            return
        self._owner = owner
        self._expect(limits.HEADER_LIMIT_S, limits.HEADER_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops counting this connection."""
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some of a request. Blank lines before one keep nobody's connection open, so they are part of its header."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if self._late is None and is_idle:
            self._expect(limits.HEADER_LIMIT_S, limits.HEADER_BYTES_MAX)
        self._bytes += len(data)
        super().data_received(data)
        # Checked after the parser has seen the bytes: they may have completed the request, and then there is no limit.
        if self._late is not None and self._bytes > self._bytes_max:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are no request, and says so once a minute for each address. [L6]"""
        client = self.client[0] if self.client is not None else "nobody"
        left_out = _rarely.may(client) if msg == UVICORNS_LINE else None
        if left_out is not None:
            hint = "if it speaks TLS, name tls_cert; if it is no client of ours, keep it from this port"
            _log.warning("bytes that are no HTTP request", client=client, hint=hint, more_like_it=left_out)
        super().send_400_response(msg)

    def on_message_begin(self) -> None:
        """A header begins."""
        super().on_message_begin()
        if self._late is None:
            self._expect(limits.HEADER_LIMIT_S, limits.HEADER_BYTES_MAX)

    def on_headers_complete(self) -> None:
        """A body may follow."""
        super().on_headers_complete()
        self._expect(limits.BODY_LIMIT_S, self.body_bytes_max)

    def on_message_complete(self) -> None:
        """All of a request is here."""
        super().on_message_complete()
        self._expect_nothing()
        if not self.flow.write_paused:  # else we wait for its client, whatever else he asks for
            self._connections.is_answered(self._owner, self)

    def on_response_complete(self) -> None:
        """Another request may follow, or not."""
        super().on_response_complete()
        # With a pipelined request behind it the client waits for the manager, and not the other way round.
        if self._owner and not self.pipeline:
            self._connections.waits(self._owner, self, self._evict)

    def pause_writing(self) -> None:
        """Its client does not read what it is sent: a long answer waits for it."""
        super().pause_writing()
        if self._owner:
            self._connections.waits(self._owner, self, self._evict)

    def resume_writing(self) -> None:
        """Reading goes on."""
        super().resume_writing()
        if self._owner and self.cycle is not None and not self.cycle.response_complete:
            self._connections.is_answered(self._owner, self)

    def handle_websocket_upgrade(self) -> None:
        """An agent's session has its own limits once its HELLO has come; until then anybody may have opened it."""
        self._expect_nothing()
        if self._owner:
            self._connections.waits(self._owner, self, self._evict)
        self.app_state = {**self.app_state, UNTOLD: self._leave}
        super().handle_websocket_upgrade()

    def _expect(self, limit_s: float, bytes_max: int) -> None:
        self._expect_nothing()
        self._late = self.loop.call_later(limit_s, self.transport.abort)
        self._bytes, self._bytes_max = 0, bytes_max
        if self._owner:
            self._connections.waits(self._owner, self, self._evict)

    def _expect_nothing(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _evict(self) -> None:
        self._owner = ""
        self._expect_nothing()
        self.transport.abort()

    def _leave(self) -> None:
        self._expect_nothing()
        if self._owner:
            self._connections.leave(self._owner, self)
            self._owner = ""
