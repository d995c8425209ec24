"""An Aggregator's listeners: callers prove their job's key, say what they want, and their sockets go to the engine.

Whatever a caller sends, bytes or descriptors, it can only end its own connection. Until it has proved a key it may stay
for `DOOR_LIMIT_S`, and counts: of more than `STRANGERS_MAX` the oldest one of the address that has most is let go, so
that strangers from one address lock out nobody from another. By a unix socket the address is the user.
"""

import asyncio
import errno
import os
import secrets
import socket
from collections import Counter
from contextlib import suppress
from functools import partial

from farside.agent.aggregator.door import NONCE_BYTES, Attach, CopyFrom, Door, Pair, Request, Welcome
from farside.agent.aggregator.jobs import Jobs, NotAdmittedError, ServedJob
from farside.agent.aggregator.pairing import Made, Pairing
from farside.agent.lost_peer import notice_lost_peer
from farside.errors import EngineError, RemoteProtocolError
from farside.kmod_shim.engine.aggregation import Aggregator
from farside.kmod_shim.received_fd import receive_with_fd
from farside.listen import peer_uid
from farside.log import Rarely, get_log
from farside.proof import Unproved

_log = get_log("aggregator.entrance")

DOOR_LIMIT_S = 5.0
"""From accept to a whole request."""
STRANGERS_MAX = 256
REFUSALS_TOLD_S = 10.0
ACCEPT_PAUSE_S = 0.1
"""After accept failed for want of descriptors or memory."""


class Entrance:
    """Takes callers for one Aggregator process."""

    def __init__(self, engine: Aggregator, jobs: Jobs, *, incarnation: int, pairing: Pairing) -> None:
        self._engine = engine
        self._jobs = jobs
        self._incarnation = incarnation
        self._pairing = pairing
        self._strangers = Unproved(STRANGERS_MAX, STRANGERS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._rarely = Rarely(REFUSALS_TOLD_S)
        self.refused: Counter[str] = Counter()

    async def accept(self, listener: socket.socket) -> None:
        """Serves each caller of a listener, until cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:
                _log.warning("a connection could not be taken", error=error)
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            host = address[0] if isinstance(address, tuple) else f"uid {peer_uid(sock)}"
            if not self._strangers.come(host, sock, partial(_hang_up, sock)):
                self.refused["crowd"] += 1
            task = loop.create_task(self._serve(sock, host))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, sock: socket.socket, host: str) -> None:
        door = Door(self._jobs.key_of, secrets.token_bytes(NONCE_BYTES), self._pairing.features)
        fds: list[int] = []
        try:
            if sock.family != socket.AF_UNIX:
                notice_lost_peer(sock)
            async with asyncio.timeout(DOOR_LIMIT_S):
                await self._converse(sock, host, door, fds)
        except RemoteProtocolError as error:
            self._refuse(sock, door, "nonsense", str(error))
        except NotAdmittedError as error:
            self._refuse(sock, door, "request", str(error), is_final=error.is_final)
        except TimeoutError:
            self._refuse(sock, door, "slow", f"no whole request in {DOOR_LIMIT_S:g} s", is_final=False)
        except OSError as error:
            _log.debug("a caller was lost", reason=error)
        except Exception as error:  # a fault in one conversation must not end the Aggregator for all
            _log.error("unexpected fault", cause=error, work="a caller")
        finally:
            self._strangers.leave(host, sock)
            for fd in fds:
                os.close(fd)
            sock.close()

    async def _converse(self, sock: socket.socket, host: str, door: Door, fds: list[int]) -> None:
        loop = asyncio.get_running_loop()
        request: Request | Pair | None = None
        while request is None:
            part = await _receive(sock, door.needed, fds)
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, "the caller closed the connection")
            request = door.receive(part)
            if data := door.to_send():
                await loop.sock_sendall(sock, data)
            if request is None and door.refused is not None:
                # A member may come before its job's plan, or after it: that is no wrong key.
                reason = "key" if door.refused.is_final else "plan"
                name = door.hello.job if door.hello else ""
                self._count(reason, "a caller was refused", job=name, line=door.refused.line)
                return
        self._strangers.leave(host, sock)
        assert door.hello is not None
        if isinstance(request, Pair):
            # The connection is the queue pair's from here on, and closed by whoever makes that.
            self._pairing.come(door.hello, request, sock.dup(), door.welcome(Welcome(self._incarnation)))
            return
        self._check_key(door)
        job = self._jobs.admit(door.hello, request)
        if not (isinstance(request, Attach) and not request.has_region and door.has_rdma):
            self._let_in(sock, door, request, job, fds, None)
            return
        with self._jobs.awaiting(job):
            made = await self._invite(sock, door)
            try:
                self._check_key(door)
                self._jobs.admit_later(job, door.hello, request)
                self._let_in(sock, door, request, job, fds, made)
            finally:
                if made is not None:
                    made.link.close()  # unless the engine has it

    def _check_key(self, door: Door) -> None:
        """Whether the key that was proved is the job's still: a manager may have given it one of its own meanwhile."""
        assert door.hello is not None
        if self._jobs.key_of(door.hello) != door.key:
            raise NotAdmittedError(f"job {door.hello.job:.60} has another key by now", is_final=False)

    async def _invite(self, sock: socket.socket, door: Door) -> Made | None:
        assert door.hello is not None
        with self._pairing.invited(door.hello) as invitation:
            door.invite(invitation.number)
            await asyncio.get_running_loop().sock_sendall(sock, door.to_send())
            return await self._pairing.made(invitation)

    def _let_in(
        self, sock: socket.socket, door: Door, request: Request, job: ServedJob, fds: list[int], made: Made | None
    ) -> None:
        """Hands the socket to the engine, which says Welcome before anything of its own."""
        greeting = door.welcome(Welcome(self._incarnation, self._jobs.version(job), made is not None))
        region = self._region(request, fds) if isinstance(request, Attach) else None
        try:
            if isinstance(request, CopyFrom):
                # This end of a lane between Aggregators says nothing before it is spoken to.
                sock.send(greeting)
                self._engine.attach_previous(job.engine_number, request.old_number, sock.fileno(), door.head_keys)
            else:
                self._engine.attach(
                    job.engine_number, request.rank, sock.fileno(), region, greeting, keys=door.head_keys,
                    link=made.link if made else None, token=made.token if made else 0,
                )  # fmt: skip
        except EngineError as error:
            raise NotAdmittedError(_REASONS.get(error.errno, str(error)).format(job=job.name)) from error
        sock.detach()
        if region is not None:
            fds.remove(region)

    def _region(self, request: Attach, fds: list[int]) -> int | None:
        if not request.has_region:
            return None
        if not fds:
            raise RemoteProtocolError("the descriptor of the region did not come along")
        return fds[0]

    def _refuse(self, sock: socket.socket, door: Door, reason: str, line: str, *, is_final: bool = True) -> None:
        name = door.hello.job if door.hello else ""
        self._count(reason, "a caller was refused", job=name, line=line)
        door.refuse(line, is_final=is_final)
        # As much as the socket takes: nobody waits for a caller that does not read.
        with suppress(OSError):
            sock.setblocking(False)
            sock.send(door.to_send())

    def _count(self, reason: str, message: str, **fields: object) -> None:
        self.refused[reason] += 1
        if self._rarely.may(reason) is not None:
            _log.warning(message, reason=reason, **fields)


def _hang_up(sock: socket.socket) -> None:
    # Its task sees the end and closes it.
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


_REASONS = {
    errno.EPERM: "the region is not sealed against shrinking; let members have the Aggregator's Farside",
    errno.EINVAL: "the region is shorter than the model needs; let members have the Aggregator's Farside",
    errno.ENOMEM: "the Aggregator is out of memory for what job {job:.60} sends by TCP; raise memory_bytes",
}


async def _receive(sock: socket.socket, needed: int, fds: list[int]) -> bytes:
    """Some of the bytes that are needed; a descriptor that comes with them is kept in ``fds``, ours to close.

    A whole conversation has one at most, so that nobody fills this process's table of them.
    """
    loop = asyncio.get_running_loop()
    if sock.family != socket.AF_UNIX:
        return await loop.sock_recv(sock, needed)
    while True:
        try:
            data, fd, is_cut = receive_with_fd(sock, needed)
        except BlockingIOError:
            await _readable(sock)
            continue
        if fd >= 0:
            fds.append(fd)
        elif is_cut:
            raise OSError(errno.EMFILE, "no room for the descriptor that came along")
        if is_cut or len(fds) > 1:
            raise RemoteProtocolError("more than one descriptor came along")
        return data


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
