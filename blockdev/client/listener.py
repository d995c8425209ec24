"""Listener for NBD clients: accepts, negotiates within a deadline, gives the socket to a free worker of the engine.

NBD proves nothing. By a unix socket the file's mode says who may come; by TCP processes of this machine, of this user
or root, as the kernel says, and whoever proves itself by TLS; unless the settings let everybody in
(``listen_unproved``). Those whom the kernel knows may have TLS too; by a unix socket it is not offered. [M11]

How it works. The handshake runs on the loop with exact reads, so not a byte of the transmission phase is taken from the
socket. A worker is reserved before the client is accepted. Between that answer and ``conn_attach`` the supervisor gets
a duplicate of the socket, so that from the first request on a killed process loses no connection. A TLS session can't
be duplicated: such a client's connection ends with the process that serves it.

Who has to prove itself has a place apart until then: strangers who come and say nothing keep out neither clients that
the kernel knows nor, beyond what one address may have, each other.
"""

import asyncio
import os
import socket
from collections.abc import Callable

from farside.blockdev.client.handshake import Export, Handshake, Next, Step, TlsRule
from farside.blockdev.client.peer_user import peer_uid
from farside.blockdev.client.stream import ClearStream, Stream, TlsDoor
from farside.blockdev.engine_port import Engine
from farside.blockdev.task import Tasks
from farside.errors import EngineError, FarsideError, PeerError
from farside.kmod_shim.engine.tls import TlsSession
from farside.log import Rarely, get_log
from farside.proof import Unproved, subnet

HANDSHAKE_LIMIT_S = 10.0
HANDSHAKES_MAX = 64  # at once; a client that comes then waits in the listen queue
# Clients that have not proved themselves by TLS; one more takes the place of the oldest. A device has 16 workers.
UNPROVED_AN_ADDRESS = 64
UNPROVED_ALL = 256

# A client whose machine has vanished would keep its worker for ever, and there are 16 at most. It is dropped after two
# minutes without an answer: 60 s of silence, then six probes.
TCP_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),  # seconds
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),  # seconds
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)

_WAYS_IN = "tls_psk_file, or tls_cert, has clients prove themselves; listen_unproved = true lets everybody in"

log = get_log("blockdev.clients")


class Clients:
    """Workers of one device and the clients connected to them.

    Attributes:
        taken: Workers with a client, or one that is about to come, or one whose last requests are being dropped.
        secure: Those of them whose client has TLS.
        closing: No one is let in any more.
    """

    def __init__(
        self, engine: Engine, workers: int, *, hold: Callable[[int, int], None], forget: Callable[[int], None]
    ) -> None:
        """``hold(worker, fd)`` and ``forget(worker)`` are called for the supervisor."""
        self._engine = engine
        self._workers = workers
        self._hold = hold
        self._forget = forget
        self._emptied = asyncio.Event()
        self.taken: set[int] = set()
        self.secure: set[int] = set()
        self.closing = False

    def reserve(self) -> int | None:
        """A free worker, taken from now on, or None."""
        free = next((w for w in range(self._workers) if w not in self.taken), None)
        if free is not None:
            self.taken.add(free)
        return free

    def give_up(self, worker: int) -> None:
        """Free a reserved worker that is not needed."""
        self.taken.discard(worker)
        self.secure.discard(worker)
        if not self.taken:
            self._emptied.set()

    def attach(self, worker: int, sock: socket.socket, session: TlsSession | None = None) -> None:
        """Serve a client that has finished its handshake. Owns socket and session from here on."""
        sock.setblocking(True)
        if session is not None:
            self._attach_tls(worker, sock.detach(), session)
            return
        # Before the engine reads the first request: a server that dies after this loses no connection.
        self._hold(worker, sock.fileno())
        self.resume(worker, sock.detach())

    def _attach_tls(self, worker: int, fd: int, session: TlsSession) -> None:
        # Nobody else holds it: no other process has the session, so its client is to see its end with this process.
        self.secure.add(worker)
        try:
            self._engine.conn_attach(worker, fd, session)
        except EngineError as error:
            log.error("a client can't be served", worker=worker, reason=error)
            session.close()
            os.close(fd)
            self.closed(worker, error.errno)

    def drop(self, worker: int) -> None:
        """Drop what a client has left unanswered whose connection ended with the process before this one."""
        self.taken.add(worker)
        self._engine.conn_forget(worker)

    def resume(self, worker: int, fd: int) -> None:
        """Serves a client, where its connection stopped if the state says so. Owns ``fd``."""
        self.taken.add(worker)
        try:
            self._engine.conn_attach(worker, fd)
        except EngineError as error:
            log.error("a client can't be served", worker=worker, reason=error)
            os.close(fd)
            self.closed(worker, error.errno)

    def closed(self, worker: int, error: int) -> None:
        """Take notice that the engine has ended this worker's connection."""
        log.info("client left", worker=worker, errno=error)
        self._forget(worker)
        self.give_up(worker)

    async def wait_until_none(self) -> None:
        """Returns when no client is connected."""
        # A worker may be taken again between the event and this task's turn.
        while self.taken:
            self._emptied.clear()
            await self._emptied.wait()


class Listener:
    """The listening sockets of one device."""

    def __init__(
        self,
        export: Export,
        clients: Clients,
        tasks: Tasks,
        *,
        takes_unproved: bool = False,
        tls: TlsDoor | None = None,
    ) -> None:
        """``tls``: where clients that come by TCP prove themselves; None: there is no TLS."""
        self._export = export
        self._takes_unproved = takes_unproved
        self._tls = tls
        self._unproved = Unproved(UNPROVED_AN_ADDRESS, UNPROVED_ALL)
        self._rarely = Rarely()
        self._clients = clients
        self._tasks = tasks
        self._accepting: list[asyncio.Task[None]] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(HANDSHAKES_MAX)

    def open(self, sock: socket.socket) -> None:
        """Accepts clients on a listening socket from now on; the socket stays the caller's."""
        sock.setblocking(False)
        self._accepting.append(self._tasks.spawn(self._accept(sock), name="accept"))

    async def close(self, limit_s: float) -> None:
        """Stop accepting, and let the handshakes under way end within ``limit_s``."""
        for task in self._accepting:
            task.cancel()
        # asyncio.wait() refuses an empty set.
        if self._handshakes:
            await asyncio.wait(self._handshakes, timeout=limit_s)

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            # Before accept(): clients beyond the bound stay in the kernel's queue, and cost no descriptor.
            await self._room.acquire()
            try:
                client, _ = await loop.sock_accept(sock)
            except OSError as error:
                # Out of descriptors, or the client has gone already: the next one may succeed. The pause keeps the loop
                # from spinning, as a client that can't be accepted stays in the queue.
                self._room.release()
                log.warning("accept failed", reason=error)
                await asyncio.sleep(0.1)
                continue
            task = self._tasks.spawn(self._come(client), name="handshake")
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _come(self, sock: socket.socket) -> None:
        try:
            refusal = self._why_not(sock)
            if not refusal:
                await self.negotiate(sock)
        finally:
            self._room.release()
        if refusal:
            await self._prove(sock, refusal)

    async def welcome(self, sock: socket.socket) -> int | None:
        """Let one client in that may come, or that proves itself; returns as `negotiate`. Owns the socket."""
        refusal = self._why_not(sock)
        return await (self._prove(sock, refusal) if refusal else self.negotiate(sock))

    def _why_not(self, sock: socket.socket) -> str:
        return "" if self._takes_unproved else why_not(sock)

    async def _prove(self, sock: socket.socket, refusal: str) -> int | None:
        """Lets a client in by TLS alone, if there is TLS."""
        address = _address_of(sock)
        if self._tls is None:
            self._say(log.warning, "a client was turned away", refusal, address)
            sock.close()
            return None
        task = asyncio.current_task()

        def give_way() -> None:
            assert task is not None, "there is no await without a task"
            task.cancel()

        stranger = subnet(address)
        if not self._unproved.come(stranger, task, give_way):
            reason = "too many clients at once had not proved themselves"
            self._say(log.warning, "the oldest handshake was ended for a new one", reason, address)
        try:
            return await self.negotiate(sock, must_prove=True)
        finally:
            self._unproved.leave(stranger, task)

    def _say(self, say: Callable[..., None], what: str, reason: str, client: str, hint: str = "") -> None:
        """Once a minute for each address: whoever is let in may try again without end. [L6]"""
        left_out = self._rarely.may((what, subnet(client)))
        if left_out is not None:
            told = {"hint": hint, "more_like_it": left_out}
            say(what, client=client, reason=reason, **{name: value for name, value in told.items() if value})

    async def negotiate(self, sock: socket.socket, *, must_prove: bool = False) -> int | None:
        """Runs one handshake; returns the worker that serves the client now, or None. Owns the socket.

        ``must_prove``: nothing is answered before the client has proved itself by TLS.
        """
        if sock.family != socket.AF_UNIX:
            for level, option, value in TCP_OPTIONS:
                sock.setsockopt(level, option, value)
        worker: int | None = None
        client = _address_of(sock)  # while it is there
        try:
            async with asyncio.timeout(HANDSHAKE_LIMIT_S):
                worker, stream = await self._converse(sock, self._tls_rule(sock, must_prove))
            if worker is not None:
                self._clients.attach(worker, sock, stream.session)
                log.info("client connected", worker=worker, **stream.told)
        except PeerError as error:
            self._say(log.warning, "a client was turned away", str(error), client)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, FarsideError) as error:
            reason = str(error) or type(error).__name__
            self._say(log.info, "a handshake failed", reason, client, "was it an NBD client?")
        finally:
            sock.close()  # harmless after attach, which detaches it
        return worker

    def _tls_rule(self, sock: socket.socket, must_prove: bool) -> TlsRule:
        if self._tls is None or sock.family == socket.AF_UNIX:
            return TlsRule.NONE
        return TlsRule.REQUIRED if must_prove else TlsRule.OFFERED

    async def _converse(self, sock: socket.socket, rule: TlsRule) -> tuple[int | None, Stream]:
        """The worker that serves the client now, whose session is then the caller's; None: it has been turned away."""
        sock.setblocking(False)
        handshake = Handshake(self._export, rule)
        stream: Stream = ClearStream(sock)
        worker: int | None = None
        is_served = False
        try:
            await stream.send(handshake.greeting())
            while True:
                step = handshake.receive(await stream.read_exactly(handshake.needed()))
                if step.next is Next.ASKED:
                    # Reserved before the answer: after it the client may already send requests, and can't be refused.
                    worker = None if self._clients.closing else self._clients.reserve()
                    step = handshake.accept() if worker is not None else self._refusal(handshake)
                await stream.send(step.send)
                if step.next is Next.START_TLS:
                    assert self._tls is not None, "it was offered"
                    stream = await self._tls.open(sock)
                    handshake.secured()
                if step.next is Next.TRANSMIT:
                    is_served = True
                    return worker, stream
                if step.next is Next.CLOSE:
                    self._say(log.info, "a client was turned away", step.reason, _address_of(sock))
                    return None, stream
        finally:
            if not is_served:
                stream.close()
                if worker is not None:
                    self._clients.give_up(worker)

    def _refusal(self, handshake: Handshake) -> Step:
        if self._clients.closing:
            return handshake.refuse("the device is being shut down", shutting_down=True)
        log.warning("a client was refused: all workers are taken; raise `workers`")
        return handshake.refuse("all connections of this device are taken")


def _address_of(sock: socket.socket) -> str:
    """Where a client is; one by a unix socket is this machine's."""
    if sock.family == socket.AF_UNIX:
        return "unix"
    try:
        return str(sock.getpeername()[0])
    except OSError:  # it has gone
        return "unknown"


def why_not(sock: socket.socket) -> str:
    """Why a client is not let in that proves nothing; empty: by whom it is."""
    if sock.family == socket.AF_UNIX:
        return ""
    try:
        uid = peer_uid(sock)
    except OSError as error:
        return f"whose connection it is can't be told: {error.strerror}"
    if uid is None:
        return (
            "the kernel (tcp_diag) finds no process of this machine at its other end, and NBD by TCP from another "
            f"machine proves nothing; {_WAYS_IN}"
        )
    if uid not in (0, os.geteuid()):
        return f"uid {uid} is neither this device's user nor root; {_WAYS_IN}"
    return ""
