"""Listener for NBD clients: accepts, negotiates within a deadline, gives the socket to a free worker of the engine.

NBD proves nothing. By a unix socket the file's mode says who may come; by TCP only processes of this machine, of this
user or root, unless the settings let everybody in (``listen_unproved``). [M11]

How it works. The handshake runs on the loop with exact reads, so not a byte of the transmission phase is taken from the
socket. A worker is reserved before the client is accepted. Between that answer and ``conn_attach`` the supervisor gets
a duplicate of the socket, so that from the first request on a killed process loses no connection.
"""

import asyncio
import os
import socket
from collections.abc import Callable

from farside.blockdev.client.handshake import Export, Handshake, Next, Step
from farside.blockdev.client.peer_user import peer_uid
from farside.blockdev.engine_port import Engine
from farside.blockdev.task import Tasks
from farside.errors import EngineError
from farside.log import Rarely, get_log

HANDSHAKE_LIMIT_S = 10.0
HANDSHAKES_MAX = 64  # at once; a client that comes then waits in the listen queue

# A client whose machine has vanished would keep its worker for ever, and there are 16 at most. It is dropped after two
# minutes without an answer: 60 s of silence, then six probes.
TCP_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),  # seconds
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),  # seconds
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
)

log = get_log("blockdev.clients")


class Clients:
    """Workers of one device and the clients connected to them.

    Attributes:
        taken: Workers with a client, or one that is about to come.
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
        if not self.taken:
            self._emptied.set()

    def attach(self, worker: int, sock: socket.socket) -> None:
        """Serve a client that has finished its handshake. Owns the socket from here on."""
        sock.setblocking(True)
        # Before the engine reads the first request: a server that dies after this loses no connection.
        self._hold(worker, sock.fileno())
        self.resume(worker, sock.detach())

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

    def __init__(self, export: Export, clients: Clients, tasks: Tasks, *, takes_unproved: bool = False) -> None:
        self._export = export
        self._takes_unproved = takes_unproved
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
            task = self._tasks.spawn(self._welcome(client), name="handshake")
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _welcome(self, sock: socket.socket) -> None:
        try:
            refusal = "" if self._takes_unproved else why_not(sock)
            if refusal:
                self._say(log.warning, "a client was turned away", refusal, _address_of(sock))
                sock.close()
            else:
                await self.negotiate(sock)
        finally:
            self._room.release()

    def _say(self, say: Callable[..., None], what: str, reason: str, client: str, hint: str = "") -> None:
        """Once a minute for each address: whoever is let in may try again without end. [L6]"""
        left_out = self._rarely.may((what, client))
        if left_out is not None:
            told = {"hint": hint, "more_like_it": left_out}
            say(what, client=client, reason=reason, **{name: value for name, value in told.items() if value})

    async def negotiate(self, sock: socket.socket) -> int | None:
        """Runs one handshake; returns the worker that serves the client now, or None. Owns the socket."""
        if sock.family != socket.AF_UNIX:
            for level, option, value in TCP_OPTIONS:
                sock.setsockopt(level, option, value)
        worker: int | None = None
        client = _address_of(sock)  # while it is there
        try:
            async with asyncio.timeout(HANDSHAKE_LIMIT_S):
                worker = await self._converse(sock)
            if worker is not None:
                self._clients.attach(worker, sock)
                log.info("client connected", worker=worker)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            reason = str(error) or type(error).__name__
            self._say(log.info, "a handshake failed", reason, client, "was it an NBD client?")
        finally:
            sock.close()  # harmless after attach, which detaches it
        return worker

    async def _converse(self, sock: socket.socket) -> int | None:
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        handshake = Handshake(self._export)
        worker: int | None = None
        try:
            await loop.sock_sendall(sock, handshake.greeting())
            while True:
                step = handshake.receive(await _read_exactly(sock, handshake.needed()))
                if step.next is Next.ASKED:
                    # Reserved before the answer: after it the client may already send requests, and can't be refused.
                    worker = None if self._clients.closing else self._clients.reserve()
                    step = handshake.accept() if worker is not None else self._refusal(handshake)
                await loop.sock_sendall(sock, step.send)
                if step.next is Next.TRANSMIT:
                    # So that `finally` does not free it.
                    kept, worker = worker, None
                    return kept
                if step.next is Next.CLOSE:
                    self._say(log.info, "a client was turned away", step.reason, _address_of(sock))
                    return None
        finally:
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
            "machine proves nothing; listen_unproved = true lets everybody in"
        )
    if uid not in (0, os.geteuid()):
        return f"uid {uid} is neither this device's user nor root; listen_unproved = true lets everybody in"
    return ""


async def _read_exactly(sock: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = bytearray()
    while len(data) < count:
        part = await loop.sock_recv(sock, count - len(data))
        if not part:
            raise asyncio.IncompleteReadError(bytes(data), count)
        data += part
    return bytes(data)
