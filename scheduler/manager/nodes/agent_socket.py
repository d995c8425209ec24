"""WebSockets as uvicorn speaks them, that read on while a few frames wait.

uvicorn stops to read from a socket at each frame and goes on when the application has taken it. That is two calls of
the kernel for each report, a quarter of all that the API did under two thousand agents. Here it stops once
`WAITING_MAX` frames wait, so that an agent that floods still costs bounded memory.
"""

from asyncio import BaseTransport
from typing import cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from farside.scheduler.manager.auth.caller import UNTOLD, peer_of

# More than the reports that an agent may have under way (`outbox.IN_FLIGHT_MAX`): while nothing is read its answers to
# pings are not seen either, and its connection ends. Each frame is of at most 1 MiB.
WAITING_MAX = 20
UVICORNS_REFUSAL = "ASGI callable returned without completing handshake."
"""What uvicorn logs of an agent that was refused: it says neither whose agent it was nor why."""
SILENT_S = "farside.silent_s"
"""In the scope of a connection that ended because nothing came: for how long."""


class AgentSocketProtocol(WebSocketsSansIOProtocol):
    """One connection, that knows the user at the other end of a unix socket."""

    def connection_made(self, transport: BaseTransport) -> None:
        """Asks the kernel once a connection, as for other requests."""
        super().connection_made(transport)
        self.client = peer_of(transport) or self.client

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection among those whose HELLO has not come."""
        if UNTOLD in self.app_state:
            self.app_state[UNTOLD]()
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        """Ends a connection that did not answer, and notes for how long it has been silent."""
        cast("dict[str, object]", self.scope)[SILENT_S] = self.loop.time() - self.ping_sent_at
        super().keepalive_timeout()
        # What still waits to be sent would be waited for: nobody takes it.
        self.transport.abort()

    def send_receive_event_to_app(self) -> None:
        """Hands one frame to the application, which takes it when it comes to it."""
        was_paused, self.read_paused = self.read_paused, True  # so that it is not done there
        super().send_receive_event_to_app()
        self.read_paused = was_paused
        if not was_paused and self.queue.qsize() >= WAITING_MAX:
            self.read_paused = True
            self.transport.pause_reading()
