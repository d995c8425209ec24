"""The donor's listeners: accept connections, check their keys, and hand them on.

Every connection begins with the handshake (control/protocol.py). A control connection opens a session or returns to
one, and becomes a conversation. A data connection is welcomed into its session and handed to the engine's threads at
the frame boundary; this process's Python never sees it again.

Whatever a peer sends, it can only end its own connection, or another one of those that have not proved the key: bounds
on time (HANDSHAKE_LIMIT_S) and number (`Unproved`) hold for them, and every refusal is counted by its reason.
"""

import asyncio
import secrets
import socket
from contextlib import suppress

from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.keys import KeyRing
from farside.daemon.control.protocol import Connection, Side
from farside.daemon.conversation import Conversation
from farside.daemon.newcomers import Newcomers
from farside.daemon.slab.lender import Lender
from farside.daemon.slab.recall import Recaller
from farside.daemon.slab.sessions import Refused, Session
from farside.daemon.tasks import Tasks
from farside.errors import EngineError, PeerError, RemoteProtocolError
from farside.log import Rarely, get_log
from farside.proof import Unproved

_log = get_log("daemon.server")

HANDSHAKE_LIMIT_S = 5.0
"""From accept to a proved key: two round trips, so 5 s is a peer that only holds a place."""
DATA_CONNECTIONS_MAX = 8192
"""Each has a thread; 16 workers and a mover of 480 borrowers. The kernel's own limit of threads is rarely lower."""
REFUSALS_TOLD_S = 60.0
"""A refusal of each kind is logged once in this time; the counters have them all."""
ACCEPTED_A_TURN, SERVED_A_TURN = 256, 64
"""A turn of the event loop: some 5 ms of accepting and 15 ms of serving. What a borrower says next waits for two."""
# By the reason of a refusal: what an operator can do.
_WAYS_OUT = {
    m.ErrorCode.VERSION: "update the older of the two",
    m.ErrorCode.AUTH: "the cluster has one key: copy its file to that machine, or keep it from this port",
    m.ErrorCode.MALFORMED: "is it a borrower of Farside? keep others from this port by a firewall",
}
ACCEPT_PAUSE_S = 0.1
"""After accept failed for want of descriptors or memory, so as not to spin on a listener that stays readable."""


class Server:
    """Takes connections for one donor."""

    def __init__(
        self,
        *,
        node: str,
        keys: KeyRing,
        lender: Lender,
        recaller: Recaller,
        slab_bytes: int,
        tasks: Tasks,
        has_rdma: bool = False,
        rdma_address: str = "",
    ) -> None:
        """``tasks`` is where connections are served, and slabs mapped for them.

        ``has_rdma`` offers queue pairs, at ``rdma_address``, or otherwise at the address that a borrower came to.
        """
        self._node = node
        self._keys = keys
        self._lender = lender
        self._recaller = recaller
        self._slab_bytes = slab_bytes
        self._tasks = tasks
        self._features = (
            m.Feature.SHM | m.Feature.MIGRATE | m.Feature.CODES | (m.Feature.RDMA if has_rdma else m.Feature.NONE)
        )
        self._rdma_address = rdma_address
        self._unproved = Unproved()
        self._refusals = Rarely(REFUSALS_TOLD_S, now_s=self._lender.clock.now_s)  # by code

    async def accept(self, listener: socket.socket) -> None:
        """Serves each connection to a listening socket, until cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        newcomers = Newcomers()
        try:
            while True:
                try:
                    if not newcomers.count:
                        self._come(newcomers, *await loop.sock_accept(listener))
                    self._accept_waiting(listener, newcomers)
                except OSError as error:
                    _log.warning("a connection could not be taken", error=error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                for _ in range(SERVED_A_TURN):
                    one = newcomers.take()
                    if one is None:
                        break
                    self._tasks.start(self.serve(*one), "serving a connection")
                await asyncio.sleep(0)  # the turn of all that is being served
        finally:
            newcomers.close()

    def _accept_waiting(self, listener: socket.socket, newcomers: Newcomers) -> None:
        """Takes what waits in the kernel, up to a bound. Raises OSError."""
        with suppress(BlockingIOError):
            for _ in range(ACCEPTED_A_TURN):
                self._come(newcomers, *listener.accept())

    def _come(self, newcomers: Newcomers, sock: socket.socket, peer: object) -> None:
        # Of an unknown length by family; empty for a unix socket.
        address = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        sock.setblocking(False)
        if not newcomers.come(sock, address):
            self._lender.counters.refused["CONNECTIONS"] += 1

    async def serve(self, sock: socket.socket, address: str = "") -> None:
        """Serves one connection from this address to its end. Never raises for what a peer does."""
        if sock.family != socket.AF_UNIX:
            # Frames are small, and most wait for an answer: Nagle's algorithm would hold them back.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The keys are looked at for each connection: a changed key file counts from the next one on.
        channel = Channel(sock, self._connection())
        if not self._unproved.come(address, channel, channel.close):
            self._lender.counters.refused["CONNECTIONS"] += 1
        try:
            await self._serve(channel, address)
        except RemoteProtocolError as error:
            self._refuse(channel, m.ErrorCode(error.code or m.ErrorCode.MALFORMED), str(error), address)
        except Refused as error:
            self._refuse(channel, error.code, str(error), address)
        except TimeoutError:
            self._refuse(channel, m.ErrorCode.NOT_NOW, f"no proof of the key in {HANDSHAKE_LIMIT_S:g} s", address)
        except PeerError as error:
            _log.debug("connection lost", reason=error)
        finally:
            self._unproved.leave(address, channel)
            channel.close()

    def _connection(self) -> Connection:
        return Connection(
            side=Side.DONOR,
            keys=self._keys.current(),
            nonce=secrets.token_bytes(m.NONCE_BYTES),
            node=self._node,
            features=self._features,
        )

    async def _serve(self, channel: Channel, address: str) -> None:
        # The limit ends with the handshake: a borrower that has proved the key may be silent until its session expires.
        async with asyncio.timeout(HANDSHAKE_LIMIT_S):
            hello = await channel.accept()
        self._unproved.leave(address, channel)
        if hello.role == "data":
            await self._serve_data(channel, hello)
        else:
            await self._serve_control(channel, hello, address)

    # ---- control

    async def _serve_control(self, channel: Channel, hello: m.Hello, address: str) -> None:
        session = self._session(hello, address)
        if session.channel is not None:  # the old connection of a borrower that came back before we noticed
            session.channel.farewell(m.ErrorCode.SESSION, "replaced by a newer connection")
        session.channel = channel
        self._welcome(channel, session)
        _log.info("borrower connected", borrower=session.node, session=session.number, loans=len(session.loans))
        try:
            await Conversation(self._lender, self._recaller, session, channel, self._tasks).run()
        finally:
            # Otherwise a newer connection has taken its place, and what was asked on that one stands.
            if session.channel is channel:
                session.channel = None
                for future in session.asked.values():
                    future.cancel()
                session.asked.clear()
            _log.info("borrower disconnected", borrower=session.node, loans=len(session.loans))

    def _session(self, hello: m.Hello, address: str) -> Session:
        ledger, now_s = self._lender.ledger, self._lender.clock.now_s()
        if hello.session:
            return ledger.rejoin(number=hello.session, node=hello.node, now_s=now_s)
        if self._lender.is_closing:
            raise Refused(m.ErrorCode.NOT_NOW, "this donor is stopping")
        # The last bit is set, as 0 in HELLO asks for a new session.
        # 63 bits: not guessable, and fits what every language calls an integer.
        return ledger.open(number=secrets.randbits(63) | 1, node=hello.node, address=address, now_s=now_s)

    def _welcome(self, channel: Channel, session: Session) -> None:
        channel.decide(
            m.Welcome(
                session=session.number,
                slab_bytes=self._slab_bytes,
                lease_expiry_s=self._lender.ledger.lease_expiry_s,
            )
        )

    # ---- data

    async def _serve_data(self, channel: Channel, hello: m.Hello) -> None:
        ledger = self._lender.ledger
        served = self._lender.exporter.stats()
        if served.connections + served.rdma_connections >= DATA_CONNECTIONS_MAX:
            raise Refused(m.ErrorCode.NOT_NOW, f"{DATA_CONNECTIONS_MAX} data connections are open")
        session, must_fence = ledger.admit_data(number=hello.session, node=hello.node, epoch=hello.epoch)
        # Before WELCOME: the successor sends nothing before it reads that, so nothing of its predecessor lands after
        # it.
        if must_fence:
            _log.info("older data connections fenced", borrower=session.node, epoch=hello.epoch)
            self._lender.fence(session)
        self._welcome(channel, session)
        sock = await channel.hand_over()
        # hand_over waits, and other tasks run meanwhile.
        if not ledger.is_open(session) or session.data_epoch != hello.epoch:
            sock.close()  # expired or fenced while the last bytes of WELCOME waited
            return
        is_rdma = m.Feature.RDMA in channel.connection.features
        try:
            if is_rdma:
                self._lender.exporter.conn_rdma(session.number, sock.fileno(), self._rdma_address)
            else:
                self._lender.exporter.conn(session.number, sock.fileno(), channel.connection.head_keys)
        except EngineError as error:
            sock.close()
            _log.warning("the engine took no data connection", borrower=session.node, error=error)
            return
        session.carrier = "rdma" if is_rdma else "tcp"
        # The descriptor is the engine's now: Python must not close it.
        sock.detach()

    def _refuse(self, channel: Channel, code: m.ErrorCode, text: str, address: str) -> None:
        self._lender.counters.refused[code.name] += 1
        if self._refusals.may(code) is not None:
            hint = {"hint": _WAYS_OUT[code]} if code in _WAYS_OUT else {}
            _log.warning("connection refused", address=address or "unix", code=code.name, reason=text, **hint)
        channel.farewell(code, text)
