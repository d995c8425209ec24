"""The nodes of a group over TCP: one has the synchroniser, the others have links to it.

A link that ends, or is silent for `SILENCE_S`, takes the whole group's turns with it until it is back: a worker that
can't be heard would hold its job's others at a subtask that never begins. All go on meanwhile.
"""

import asyncio
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress

from farside.agent.training import synchronizer
from farside.agent.training.link import NONCE_BYTES, Link
from farside.agent.training.messages import BEAT_S, SILENCE_S, Beat, JobGone, JobHere, OfLink, event_of, on_the_wire
from farside.agent.training.subtask import Apart, Progress, ToNode
from farside.agent.training.synchronizer import Joined, Left, Members, Synchronizer
from farside.endpoint import parse_address
from farside.errors import FarsideError, PeerError
from farside.log import get_log

_log = get_log("executor")

HANDSHAKE_LIMIT_S = 2.0
RETRY_S = 0.2
OUT_BYTES_MAX = 256 << 10
_READ_BYTES = 65_536

Tell = Callable[[ToNode], None]


class GroupHost:
    """The synchroniser of a group, on its first node."""

    def __init__(self, tell: Tell, *, node: str, nodes: frozenset[str], key: bytes = b"", epoch: int = 0) -> None:
        """``tell``: to this node; ``nodes``: all of the group's; ``epoch``: the newest that this node knows."""
        self._tell, self._node, self._nodes, self._key = tell, node, nodes, key
        self._is_closed = False
        # Nodes ignore what is older than they have seen, also of a synchroniser before this one.
        self._sync = Synchronizer(epoch=max(epoch, time.time_ns() // 1_000_000))
        self._links: dict[str, _Ends] = {}
        self._jobs: dict[str, dict[str, int]] = {}  # by job and node, how many workers it has
        self._change()
        self._step(Joined(node=node))

    @property
    def there(self) -> frozenset[str]:
        """Nodes that are there."""
        return self._sync.there

    @property
    def has_others(self) -> bool:
        """Whether other nodes are in the group."""
        return len(self._nodes) > 1

    def progress(self, said: Progress) -> None:
        """A worker of this node has done a subtask."""
        self._step(said)

    def here(self, job: str, workers: int) -> None:
        """This node has a worker of a job."""
        self._job_here(self._node, job, workers)

    def gone(self, job: str) -> None:
        """This node's worker of a job is gone."""
        self._job_gone(self._node, job)

    def close(self) -> None:
        """Another group follows on this node: the others' links end, and it says nothing more."""
        self._is_closed = True
        for ends in self._links.values():
            ends.close()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Another node's link, until it ends."""
        ends = _Ends(Link(self._key, nonce=secrets.token_bytes(NONCE_BYTES)), reader, writer)
        node = ""
        try:
            await ends.shake()
            assert ends.link.hello is not None
            name = ends.link.hello.node
            if name not in self._nodes or name == self._node:
                raise PeerError(f"{name} is no node of this group", hint="name it in --nodes")
            before = self._links.pop(name, None)
            if before is not None:
                before.close()
                self._left(name)
            if self._is_closed:
                raise PeerError("this node has left the group")
            node, self._links[name] = name, ends
            if ends.link.hello.epoch >= self._sync.epoch:
                self._change(ends.link.hello.epoch + 1)
            self._step(Joined(node=name))
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(ends.beat())
                await ends.read(lambda message: self._take(name, message))
                beating.cancel()
        except (FarsideError, OSError, TimeoutError, ExceptionGroup) as error:
            _log.warning("a node's link has ended", node=node or "unknown", reason=_reason(error))
        finally:
            ends.close()
            if node and self._links.get(node) is ends:
                del self._links[node]
                self._left(node)

    def _left(self, node: str) -> None:
        self._step(Left(node=node))
        for job in [job for job, nodes in self._jobs.items() if node in nodes]:
            self._job_gone(node, job)

    def _take(self, node: str, message: OfLink) -> None:
        if isinstance(message, JobHere):
            self._job_here(node, message.job, message.workers)
        elif isinstance(message, JobGone):
            self._job_gone(node, message.job)
        elif isinstance(event := event_of(message), Progress):
            self._step(event)

    def _job_here(self, node: str, job: str, workers: int) -> None:
        known = self._jobs.setdefault(job, {})
        is_new = workers not in known.values()
        known[node] = workers
        # One whose job is known only joins it: then nobody else has to begin anew.
        if is_new:
            self._change()

    def _job_gone(self, node: str, job: str) -> None:
        known = self._jobs.get(job, {})
        known.pop(node, None)
        if job not in self._jobs:
            return
        if not known:
            del self._jobs[job]
        # Also where others of its workers are left: one that comes back learns what is ready in a new epoch alone.
        self._change()

    def _change(self, epoch: int = 0) -> None:
        jobs = {job: max(known.values()) for job, known in self._jobs.items()}
        self._step(Members(epoch=max(epoch, self._sync.epoch + 1), nodes=self._nodes, jobs=jobs))

    def _step(self, event: synchronizer.Event) -> None:
        if self._is_closed:
            return
        self._sync, told = synchronizer.step(self._sync, event)
        for message in told:
            # First to the others: what this node says at once may have more messages follow.
            for ends in list(self._links.values()):
                ends.send(on_the_wire(message))
            self._tell(message)


class GroupMember:
    """A node whose group has its synchroniser on another one."""

    def __init__(self, tell: Tell, epoch: Callable[[], int], *, node: str, key: bytes, address: str) -> None:
        """``epoch``: the newest that this node knows; ``address``: of the synchroniser, HOST:PORT."""
        self._tell, self._epoch, self._node, self._key, self._address = tell, epoch, node, key, address
        self._ends: _Ends | None = None
        self._is_closed = False
        self._jobs: dict[str, int] = {}

    @property
    def there(self) -> frozenset[str]:
        """This node, if it has a link."""
        return frozenset({self._node} if self._ends is not None else ())

    def progress(self, said: Progress) -> None:
        """A worker of this node has done a subtask."""
        self._send(on_the_wire(said))

    def here(self, job: str, workers: int) -> None:
        """This node has a worker of a job."""
        self._jobs[job] = workers
        self._send(JobHere(job, workers))

    def gone(self, job: str) -> None:
        """This node's worker of a job is gone."""
        self._jobs.pop(job, None)
        self._send(JobGone(job))

    def _send(self, message: OfLink) -> None:
        if self._ends is not None:
            self._ends.send(message)

    def close(self) -> None:
        """Another group follows on this node; `keep` is to be cancelled as well."""
        self._is_closed = True

    async def keep(self) -> None:
        """Keeps the link until it is closed."""
        # A link that fails in the moment of the cancellation may hide that one: its task group raises one of the two.
        while not self._is_closed:
            try:
                await self._hold()
            except (FarsideError, OSError, TimeoutError, ExceptionGroup) as error:
                _log.debug("no link to the synchroniser", address=self._address, reason=_reason(error))
            await asyncio.sleep(RETRY_S)

    async def _hold(self) -> None:
        async with asyncio.timeout(HANDSHAKE_LIMIT_S):
            reader, writer = await asyncio.open_connection(*parse_address(self._address))
        link = Link(self._key, nonce=secrets.token_bytes(NONCE_BYTES), node=self._node, epoch=self._epoch())
        ends = _Ends(link, reader, writer)
        try:
            await ends.shake()
            self._ends = ends
            for job, workers in self._jobs.items():
                ends.send(JobHere(job, workers))
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(ends.beat())
                await ends.read(self._take)
                beating.cancel()
        finally:
            self._ends = None
            ends.close()
            self._tell(Apart(epoch=self._epoch()))

    def _take(self, message: OfLink) -> None:
        event = event_of(message)
        if event is not None and not isinstance(event, Progress):
            self._tell(event)


class _Ends:
    """A link on its connection."""

    def __init__(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.link, self._reader, self._writer = link, reader, writer
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._early: list[OfLink] = []

    async def shake(self) -> None:
        """Returns when both have proved the key."""
        async with asyncio.timeout(HANDSHAKE_LIMIT_S):
            self._flush()
            while not self.link.is_open:
                self._early += self.link.receive(await self._some())
                self._flush()

    async def read(self, take: Callable[[OfLink], None]) -> None:
        """Hands on what comes, until the link ends."""
        for message in self._early:
            take(message)
        while True:
            async with asyncio.timeout(SILENCE_S):
                data = await self._some()
            for message in self.link.receive(data):
                take(message)

    async def beat(self) -> None:
        """Lets the other end know that this one lives."""
        while True:
            self.send(Beat())
            await asyncio.sleep(BEAT_S)

    def send(self, message: OfLink) -> None:
        """Sends a message; a link whose other end does not read is closed."""
        if self._writer.is_closing():
            return
        self.link.send(message)
        self._flush()
        if self._writer.transport.get_write_buffer_size() > OUT_BYTES_MAX:
            self._writer.transport.abort()

    def close(self) -> None:
        """Ends it."""
        with suppress(OSError):
            self._writer.close()

    async def _some(self) -> bytes:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise PeerError("the other end closed the link")
        return data

    def _flush(self) -> None:
        self._writer.write(self.link.to_send())


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or ("silence" if isinstance(error, TimeoutError) else type(error).__name__)
