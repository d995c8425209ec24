"""Lanes to the Aggregators that chunks move to: one for each job and next owner, for as long as the plan moves any."""

import asyncio
import errno
import secrets
import socket
from contextlib import suppress
from typing import Any

from farside.agent.aggregator.door import NONCE_BYTES, Caller, CopyFrom, Feature, Refused
from farside.agent.aggregator.jobs import JobId, Jobs, ServedJob
from farside.agent.aggregator.plan import AggregatorAddress
from farside.agent.lost_peer import notice_lost_peer
from farside.endpoint import parse_address
from farside.errors import FarsideError, PeerError
from farside.kernel_file import boot_id
from farside.kmod_shim.engine.aggregation import Aggregator
from farside.log import get_log

_log = get_log("aggregator.movers")

DIAL_LIMIT_S = 5.0
RETRY_S = 0.2
TELL_PERIOD_S = 10.0

_Way = tuple[JobId, int]


class Movers:
    """The outgoing lanes of one Aggregator process."""

    def __init__(self, engine: Aggregator, jobs: Jobs) -> None:
        self._engine = engine
        self._jobs = jobs
        self._open: dict[_Way, ServedJob] = {}
        self._changed = asyncio.Event()
        self._told_s: dict[_Way, float] = {}

    def plan_changed(self) -> None:
        """Looks at what moves."""
        self._changed.set()

    def lane_ended(self, job: ServedJob, number: int) -> None:
        """The engine has lost the lane to the Aggregator with this number."""
        self._open.pop(((job.name, job.start), number), None)
        self._changed.set()

    async def run(self) -> None:
        """Keeps a lane for each way that chunks move, until cancelled."""
        while True:
            self._changed.clear()
            wanted = self._jobs.next_owners()
            # A job that was let go and came back has no lane any more.
            self._open = {way: job for way, job in self._open.items() if way in wanted and wanted[way][0] is job}
            missing = [way for way in wanted if way not in self._open]
            made = await asyncio.gather(*(self._dial(way, *wanted[way]) for way in missing))
            with suppress(TimeoutError):
                async with asyncio.timeout(None if all(made) else RETRY_S):
                    await self._changed.wait()

    async def _dial(self, way: _Way, job: ServedJob, address: AggregatorAddress) -> bool:
        try:
            async with asyncio.timeout(DIAL_LIMIT_S):
                sock = await _connected(address)
                try:
                    keys = await self._converse(sock, job, address)
                    self._engine.attach_next(job.engine_number, address.number, sock.fileno(), keys)
                    sock.detach()
                finally:
                    sock.close()
        except (OSError, FarsideError) as error:  # TimeoutError is one
            self._tell(way, str(error) or "no answer in time")
            return False
        self._open[way] = job
        _log.info("lane to the next owner", job=job.name, where=address.tcp or address.unix)
        return True

    async def _converse(self, sock: socket.socket, job: ServedJob, address: AggregatorAddress) -> bytes:
        """Returns the keys of the lane's codes."""
        order = self._jobs.order(job)
        if order is None:
            raise PeerError("the plan has the job no longer")
        request = CopyFrom(
            number=address.number,
            old_number=job.number,
            members=job.members,
            rule=job.rule,
            tensors=job.layout.tensors,
            hold=job.hold,
        )
        nonce = secrets.token_bytes(NONCE_BYTES)
        features = Feature.NONE if sock.family == socket.AF_UNIX else Feature.CODES
        features |= Feature.APART if job.layout.has_apart else Feature.NONE
        caller = Caller(order.plan.key, job=job.name, start=job.start, nonce=nonce, request=request, features=features)
        loop = asyncio.get_running_loop()
        answer = None
        while answer is None:
            if data := caller.to_send():
                await loop.sock_sendall(sock, data)
            part = await loop.sock_recv(sock, caller.needed)
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, "the connection ended")
            answer = caller.receive(part)
        if isinstance(answer, Refused):
            raise PeerError(answer.line)
        return caller.head_keys

    def _tell(self, way: _Way, why: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._told_s.get(way, -TELL_PERIOD_S) >= TELL_PERIOD_S:
            self._told_s[way] = now_s
            _log.warning("no lane to the next owner", job=way[0][0], number=way[1], reason=why)


async def _connected(address: AggregatorAddress) -> socket.socket:
    loop = asyncio.get_running_loop()
    if address.unix and address.machine in ("", boot_id()):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        target: str | tuple[Any, ...] = address.unix
    else:
        host, port = parse_address(address.tcp)
        family, kind, protocol, _name, found = (await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        target = found[0], found[1]
        sock = socket.socket(family, kind, protocol)
        notice_lost_peer(sock)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock
