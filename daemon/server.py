"""The donor's listeners: accept connections, check their keys, and hand them on.

Every connection begins with the handshake (control/protocol.py). A control connection opens a session or returns to
one, and becomes a conversation. A data connection is welcomed into its session and handed to the engine's threads at
the frame boundary; this process's Python never sees it again.

Whatever a peer sends, it can only end its own connection, or another one of those that have not proved the key
(newcomers.py), and every refusal is counted by its reason.
"""

import secrets
import socket

from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.keys import KeyRing
from farside.daemon.control.protocol import Connection, Side
from farside.daemon.conversation import Conversation
from farside.daemon.newcomers import Newcomers
from farside.daemon.refusals import Refusals
from farside.daemon.slab.lender import Lender
from farside.daemon.slab.recall import Recaller
from farside.daemon.slab.sessions import Refused, Session
from farside.daemon.tasks import Tasks
from farside.errors import EngineError, PeerError, RemoteProtocolError
from farside.log import get_log

_log = get_log("daemon.server")

DATA_CONNECTIONS_MAX = 8192
"""Each has a thread; 16 workers and a mover of 480 borrowers. The kernel's own limit of threads is rarely lower."""
DATA_LOOK_S = 1.0
"""How often the engine is asked whose data connections it has ended: its threads tell nobody by themselves."""


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
        self._refusals = Refusals(self._lender.clock.now_s)

    async def accept(self, listener: socket.socket) -> None:
        """Serves each connection to a listening socket, until cancelled."""
        counters = self._lender.counters
        await Newcomers(
            listener, begin=self._connection, let_in=self._let_in, refused=self._note_refusal, counters=counters
        ).run()

    def _let_in(self, channel: Channel, hello: m.Hello, address: str) -> None:
        self._tasks.start(self._serve(channel, hello, address), "serving a connection")

    async def _serve(self, channel: Channel, hello: m.Hello, address: str) -> None:
        """Serves a connection that has proved the key to its end. Never raises for what a peer does."""
        try:
            if hello.role == "data":
                await self._serve_data(channel, hello)
            else:
                await self._serve_control(channel, hello, address)
        except RemoteProtocolError as error:
            self._refuse(channel, m.ErrorCode(error.code or m.ErrorCode.MALFORMED), str(error), address)
        except Refused as error:
            self._refuse(channel, error.code, str(error), address)
        except PeerError as error:
            _log.debug("connection lost", reason=error)
        finally:
            channel.close()

    def _connection(self) -> Connection:
        return Connection(
            side=Side.DONOR,
            keys=self._keys.current(),
            nonce=secrets.token_bytes(m.NONCE_BYTES),
            node=self._node,
            features=self._features,
        )

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

    async def watch_data(self) -> None:
        """Log data connections that the engine has ended for what came on them, until cancelled."""
        clock = self._lender.clock
        while True:
            await clock.sleep_until_s(clock.now_s() + DATA_LOOK_S)
            for number in self._lender.exporter.malformed():
                self._note_malformed(number)

    def _note_malformed(self, number: int) -> None:
        session = next((one for one in self._lender.ledger.sessions if one.number == number), None)
        self._refusals.ended_data(session.address if session else None, session.node if session else "")

    def _refuse(self, channel: Channel, code: m.ErrorCode, text: str, address: str) -> None:
        self._note_refusal(code, text, address)
        channel.farewell(code, text)

    def _note_refusal(self, code: m.ErrorCode, text: str, address: str) -> None:
        self._lender.counters.refused[code.name] += 1
        self._refusals.refused(code, text, address)
