"""One donor: its control session, its data connections, and whether it can be relied on.

How it works. ``run`` is a loop of sessions. Each opens the control connection, resumes the leases of before, gives the
engine a data connection for each worker, and then serves: answers and notices are read, KEEPALIVE is sent, and broken
data connections are replaced, all of them together and under a higher epoch, so that the donor fences what the old ones
may still carry. Any fault ends the session and opens the next.

    DOWN -> UP <-> SUSPECT -> FAILED -> DOWN
            without a session for grace_s ^     ^ when no slab of it is left

A donor that refuses our session (it was restarted) fails at once: its memory is gone. FAILED means that its slabs are
emptied without being read and its leases never used again; it may then come back as a new donor.
"""

import asyncio
import enum
import math
import os
import random
import socket
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Protocol

from farside.blockdev.carrier.choice import Carrier, Ways, is_shared, wants_rdma, ways
from farside.blockdev.donor.control_connection import Answer, Line
from farside.blockdev.donor.dial import open_control, open_data
from farside.blockdev.donor.links import attach_all, attach_pairs, make_pair, open_all
from farside.blockdev.donor.peers_file import PeerAddress
from farside.blockdev.donor.port import Grant
from farside.blockdev.engine_port import Engine
from farside.blockdev.mapping.placement import DonorView
from farside.blockdev.mapping.table import Slab, Table
from farside.clock import Clock
from farside.config import BlockdevConfig
from farside.daemon import messages as m
from farside.daemon.channel import Channel
from farside.daemon.keys import KeyRing
from farside.errors import EngineError, PeerError, RemoteProtocolError
from farside.kmod_shim.engine.binding import MOVER, DonorState, RdmaLink
from farside.log import get_log
from farside.own_task import in_own_task

RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0
SETTLE_S = 1.0  # a session that held so long, its pages in reach, was a good one
RECALL_REST_S = 5.0  # a donor that has just wanted memory back is not asked for more
RDMA_AGAIN_S = 60.0  # after a fallback; a fabric is down for minutes, and asking costs one connection
KEEPALIVE_MAX_S = 2.0  # seldom enough to cost nothing, often enough for a status that people look at

_EXPECTED = (PeerError, RemoteProtocolError, EngineError, OSError, TimeoutError)  # how sessions end

log = get_log("blockdev.peer")


class PeerState(enum.StrEnum):
    """What a donor is to us."""

    DOWN = "down"  # no session, and no slab of ours is there
    UP = "up"
    SUSPECT = "suspect"  # owes an answer, or lost its connections: writes go round it
    FAILED = "failed"  # given up; what it had is being dropped


class PeerHooks(Protocol):
    """What a donor's messages and faults lead to; ``device.py`` has them."""

    def recall(self, donor: int, message: m.Migrate | m.Evict) -> None:
        """The donor wants slabs back."""

    def lease_activity(self, donor: int, leases: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """(lease, pages a second and GiB) for those that we have."""
        ...

    def donor_lost(self, donor: int) -> None:
        """The donor is given up."""

    def slabs_lost(self, slabs: Sequence[Slab]) -> None:
        """The donor is there and does not have these any more."""

    def still_held(self, slab: Slab) -> None:
        """The donor has not heard that this slab is its own again."""

    def retire(self, donor: int) -> None:
        """The donor has left the peers file."""

    def pump_events(self) -> None:
        """Handles what the engine has told so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerParts:
    """What every peer shares."""

    config: BlockdevConfig
    keys: KeyRing
    engine: Engine
    table: Table
    clock: Clock
    hooks: PeerHooks
    has_rdma: bool = False  # this machine has an RDMA device
    connect_rdma: Callable[[int, int], RdmaLink] = RdmaLink  # on a socket, within milliseconds


class Peer:
    """One donor of the peers file.

    Attributes:
        state: What it is to us now.
        figures: Its last FREE_MEM, None before the first.
        retired: It left the peers file; nothing new is leased from it.
    """

    def __init__(self, parts: PeerParts, address: PeerAddress) -> None:
        self.address = address
        self.state = PeerState.DOWN
        self.figures: m.FreeMem | None = None
        self.retired = False
        self.task: asyncio.Task[None] | None = None  # donors.py's
        self.reason = "not connected yet"
        self.linked = asyncio.Event()  # its pages can be reached
        self._parts = parts
        self._record = parts.table.donor(address.node)
        self._line: Line | None = None
        self._expiry_s = 0.0
        self._recalled_s = -RECALL_REST_S
        self._lost_s = 0.0  # since when there has been no good session
        self._retry_s = RETRY_MIN_S
        self._carrier = ""
        self._fell_back = False  # to TCP, though RDMA was preferred
        self._donor_has_rdma = False
        self._linked_s = math.inf  # when the pages of this session came into reach
        self._slow_asks = 0  # MAP and RESUME without an answer
        self._relink = asyncio.Event()
        self._broke_by = 0  # errno of the data connection that broke last; 0 where it is not known
        self._breaks_on = False  # its data connections broke again and again for all of grace_s
        self._mapped_tokens: set[int] = set()  # leases whose memory the engine has in this process

    @property
    def donor(self) -> int:
        """Its number in engine and table."""
        return self._record.donor

    @property
    def is_shared(self) -> bool:
        """Its slabs are memory of this host."""
        return is_shared(self.address.control, self._parts.config.transport)

    @property
    def transport(self) -> str:
        """``shm``, ``rdma`` or ``tcp``: how its pages travel, or last did; empty before they could."""
        return Carrier.SHM if self.is_shared else self._carrier

    def view(self) -> DonorView:
        """The donor as the placement sees it."""
        figures = self.figures
        return DonorView(
            donor=self.donor,
            slabs=self._parts.table.slab_count(self.donor),
            free_slabs=figures.free_slabs if figures else 0,
            used_bytes=figures.used_bytes if figures else 0,
            total_bytes=figures.total_bytes if figures else 1,
            usable=self.state is PeerState.UP and not self.retired and not self._is_recalling(),
        )

    def _is_recalling(self) -> bool:
        return self._parts.clock.now_s() - self._recalled_s < RECALL_REST_S

    # ---------------------------------------------------------------- requests

    async def ask(self, message: m.Message) -> m.Message:
        """The donor's answer to a request. Raises PeerError: it refused, is gone, or is late."""
        # A donor may answer in order: what stands behind a MAP or RESUME is late for that reason alone.
        answer, _ = await self._connected().ask(message, self._long_s if self._slow_asks else self._deadline_s)
        return answer

    async def query(self) -> DonorView | None:
        """Its figures now, or None when it does not say within the deadline. [infiniswap §2.4.2]"""
        try:
            answer, _ = await self._connected().ask(m.QueryMem(device=self._parts.config.name), self._deadline_s)
        except PeerError:
            return None
        assert isinstance(answer, m.FreeMem)
        self.figures = answer
        return self.view()

    async def lease(self) -> Grant:
        """One slab. Raises PeerError."""
        line = self._connected()
        answer, fds = await self._ask_slow(line, m.Map(device=self._parts.config.name, count=1))
        assert isinstance(answer, m.MrInfo)
        if len(answer.leases) != 1 or self.retired:
            line.put_back(answer, fds)
            raise PeerError(f"granted {len(answer.leases)} slabs, not one, or is leaving", code=m.ErrorCode.NO_MEMORY)
        lease = answer.leases[0]
        if fds:
            self._mapped_tokens.add(lease.token)
        return Grant(lease=lease.lease, token=lease.token, epoch=lease.epoch, memfd=fds[0] if fds else -1)

    async def release(self, leases: Iterable[int]) -> None:
        """Gives leases back. Raises PeerError; a lease that the donor does not know counts as given back."""
        try:
            await self.ask(m.Release(leases=tuple(leases)))
        except PeerError as error:
            if error.code != m.ErrorCode.NO_LEASE:
                raise

    async def done(self, lease: int, *, moved_pages: int, dropped_pages: int) -> None:
        """Says that a recalled slab is free. Raises PeerError as ``release``."""
        try:
            await self.ask(m.Done(lease=lease, moved_pages=moved_pages, dropped_pages=dropped_pages))
        except PeerError as error:
            if error.code != m.ErrorCode.NO_LEASE:
                raise

    def forget(self) -> None:
        """The donor is ours no more: ends its task, and frees its number."""
        if self.task is not None:
            self.task.cancel()
        self._set_engine_state(DonorState.NONE)
        self._parts.table.forget_donor(self.address.node)
        self._parts.table.save()

    def links_broke(self, error: int = 0) -> None:
        """Called for LINK_DOWN, with its errno, and DONOR_SUSPECT: all data connections are replaced."""
        self._broke_by = error or self._broke_by
        if self.state is PeerState.UP:
            self.state = PeerState.SUSPECT
        self._relink.set()

    @property
    def _deadline_s(self) -> float:
        return self._parts.config.deadline_s

    @property
    def _long_s(self) -> float:
        # A donor without a prepared slab must zero one first: that is no reason to suspect it.
        return max(self._deadline_s, self._parts.config.grace_s)

    def _connected(self) -> Line:
        if self._line is None:
            raise PeerError(f"not connected: {self.reason}")
        return self._line

    async def _ask_slow(self, line: Line, message: m.Message) -> Answer:
        self._slow_asks += 1
        try:
            return await line.ask(message, self._long_s)
        finally:
            self._slow_asks -= 1

    # ---------------------------------------------------------------- sessions

    async def run(self) -> None:
        """Keeps a session with this donor until cancelled."""
        clock = self._parts.clock
        self._lost_s = clock.now_s()
        while True:
            try:
                await self._judge()  # the process before us may have just given it up
                await self._hold_session()
                await self._judge()
            # Whatever one session met, the next must come: else the donor's pages would never be reached again.
            except Exception as error:
                log.error("unexpected fault", donor=self.address.node, cause=error)
            await clock.sleep_until_s(clock.now_s() + self._retry_s * random.uniform(0.75, 1.25))
            self._retry_s = min(RETRY_MAX_S, 2 * self._retry_s)

    async def _hold_session(self) -> None:
        self._linked_s = math.inf
        try:
            await in_own_task(self._session())
        except* Exception as group:
            self._note_lost(group)
        now_s = self._parts.clock.now_s()
        # Counted from the links on: a donor that greets us and never gets as far as that is not there.
        if now_s - self._linked_s >= SETTLE_S + self._deadline_s:
            self._retry_s, self._lost_s = RETRY_MIN_S, now_s

    async def _judge(self) -> None:
        """Without a session: gives the donor up when nothing is to be hoped for, or not any more."""
        now_s = self._parts.clock.now_s
        if self._parts.table.slab_count(self.donor):
            is_hopeless = self._record.session == 0 or self._breaks_on
            if not is_hopeless and now_s() - self._lost_s < self._parts.config.grace_s:
                return
            await self._fail()
        self.state, self._lost_s, self._breaks_on = PeerState.DOWN, now_s(), False

    def _note_lost(self, group: ExceptionGroup[Exception]) -> None:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if not isinstance(error, _EXPECTED):
            log.error("unexpected fault", donor=self.address.node, cause=group)
        reason = str(error) or f"no answer within {self._parts.config.deadline_s:g} s"
        if reason != self.reason:
            log.warning("no session with a donor", donor=self.address.node, reason=reason)
        self.reason = reason
        if isinstance(error, PeerError) and error.code == m.ErrorCode.SESSION:
            self._record.session = 0  # it was restarted, or we were silent too long: what it had of ours is gone
            self._parts.table.save()
        if self._parts.table.slabs_of(self.donor):
            self.state = PeerState.SUSPECT
            self._set_engine_state(DonorState.SUSPECT)

    async def _session(self) -> None:
        parts, record = self._parts, self._record
        features = m.Feature.MIGRATE | (m.Feature.SHM if self.is_shared else m.Feature.NONE)
        if wants_rdma(self.address.control, parts.config.transport, has_device=parts.has_rdma):
            features |= m.Feature.RDMA
        async with asyncio.timeout(parts.config.deadline_s):
            channel, welcome = await open_control(
                self.address.control, keys=parts.keys.current(), node=node_name(parts.config), session=record.session,
                features=features,
            )  # fmt: skip
        line = Line(channel, has_fds=self.is_shared, on_notice=self._on_notice, is_known=self._is_known)
        try:
            self._check(channel, welcome)
            if record.session not in (0, welcome.session):
                raise PeerError("the donor gave another session than ours", code=m.ErrorCode.SESSION)
            self._donor_has_rdma = m.Feature.RDMA in channel.connection.features
            record.session, self._expiry_s = welcome.session, welcome.lease_expiry_s
            record.control = self.address.control
            parts.table.save()
            self._line = line
            async with asyncio.TaskGroup() as group:
                group.create_task(line.read())
                await self._resume()
                await self._link()
                group.create_task(self._keep_alive())
                group.create_task(self._keep_links())
        finally:
            self._line = None
            self.linked.clear()
            line.close()

    def _check(self, channel: Channel, welcome: m.Welcome) -> None:
        reply = channel.connection.reply
        assert reply is not None
        if reply.node != self.address.node:
            raise PeerError(f"the donor there calls itself {reply.node}; correct the peers file")
        if welcome.slab_bytes != self._parts.config.slab_bytes:
            ours = self._parts.config.slab_bytes
            raise PeerError(f"the donor's slabs have {welcome.slab_bytes} bytes, ours {ours}; make them the same")
        if self.is_shared and m.Feature.SHM not in channel.connection.features:
            raise PeerError("the donor does not pass memory by descriptor")

    async def _resume(self) -> None:
        """Asks which leases of before still stand; what does not is lost."""
        slabs = [slab for slab in self._parts.table.slabs_of(self.donor) if not slab.failed]
        held: dict[tuple[int, int], int] = {}  # (lease, token) -> descriptor, or -1
        try:
            for start in range(0, len(slabs), m.LEASES_MAX):
                await self._confirm(slabs[start : start + m.LEASES_MAX], held)
            lost = []
            for slab in slabs:
                if self._parts.table.slabs.get(slab.slab) is not slab:
                    continue  # it became empty and went back while we asked; its number may be another's by now
                memfd = held.pop((slab.lease, slab.token), None)
                if memfd is None:
                    lost.append(slab)
                elif slab.returned:
                    self._close(memfd)
                else:
                    self._remap(slab, memfd)
        finally:
            for memfd in held.values():
                self._close(memfd)
        if lost:
            self._parts.hooks.slabs_lost(lost)

    async def _confirm(self, slabs: Sequence[Slab], held: dict[tuple[int, int], int]) -> None:
        leases = tuple((slab.lease, slab.token) for slab in slabs)
        request = m.Resume(device=self._parts.config.name, leases=leases)
        answer, fds = await self._ask_slow(self._connected(), request)
        assert isinstance(answer, m.MrInfo)
        for lease, memfd in zip_longest(answer.leases, fds, fillvalue=-1):
            assert isinstance(lease, m.Lease)  # there is no descriptor without a lease
            self._close(held.pop((lease.lease, lease.token), -1))
            held[lease.lease, lease.token] = memfd

    def _remap(self, slab: Slab, memfd: int) -> None:
        if memfd < 0 or slab.token in self._mapped_tokens:
            self._close(memfd)
            return
        try:
            self._parts.engine.slab_remap(slab.slab, memfd)
        except EngineError:
            self._close(memfd)
            raise
        self._mapped_tokens.add(slab.token)

    def _close(self, fd: int) -> None:
        if fd >= 0:
            os.close(fd)

    async def _link(self) -> None:
        """Gives every worker a new connection to the donor, older ones being fenced by it."""
        parts = self._parts
        choice = self._ways()
        reason = choice.missing
        for carrier in choice.tried:
            try:
                await self._link_by(carrier)
                break
            except _EXPECTED as error:
                if carrier is choice.tried[-1]:
                    raise
                reason = str(error) or f"not within {self._rdma_limit_s:g} s"
        else:
            raise PeerError(reason)
        self._note_carrier(carrier, reason)
        self._set_engine_state(DonorState.UP)
        self.state, self.reason = PeerState.UP, ""
        if not self.linked.is_set():
            self._linked_s = parts.clock.now_s()
        self.linked.set()
        log.info("donor is up", donor=self.address.node, transport=self.transport, epoch=self._record.epoch)

    def _ways(self) -> Ways:
        return ways(
            self.address.control,
            self._parts.config.transport,
            has_device=self._parts.has_rdma,
            donor_has_rdma=self._donor_has_rdma,
        )

    def _note_carrier(self, carrier: Carrier, reason: str) -> None:
        self._carrier = carrier
        self._fell_back = bool(reason)
        if reason:
            self._parts.table.counters.rdma_fallbacks += 1
            self._parts.table.save()
            log.warning("no RDMA to a donor, its pages go by TCP", donor=self.address.node, reason=reason)

    async def _link_by(self, carrier: Carrier) -> None:
        parts = self._parts
        if carrier is Carrier.SHM:
            self._relink.clear()
            parts.engine.link_attach_shm(self.donor)
            return
        workers = (*range(parts.config.workers), MOVER)
        self._record.epoch += 1
        parts.table.save()
        attach = await (self._open_pairs(workers) if carrier is Carrier.RDMA else self._open_socks(workers))
        # Old connections died by the fence while the new ones were made: what they say about it is old news.
        parts.hooks.pump_events()
        self._relink.clear()
        self._broke_by = 0
        attach()

    async def _open_socks(self, workers: Sequence[int]) -> Callable[[], None]:
        async with asyncio.timeout(self._deadline_s):
            socks = await open_all(workers, self._open_data)
        return lambda: attach_all(self._parts.engine, self.donor, workers, socks)

    async def _open_pairs(self, workers: Sequence[int]) -> Callable[[], None]:
        async with asyncio.timeout(self._rdma_limit_s):
            links = await open_all(workers, self._open_rdma)
        return lambda: attach_pairs(self._parts.engine, self.donor, workers, links)

    @property
    def _rdma_limit_s(self) -> float:
        # Three round trips of the fabric's own, which it repeats after seconds when one is lost.
        return self._long_s

    def _open_data(self, worker: int, features: m.Feature = m.Feature.NONE) -> Coroutine[object, object, socket.socket]:
        return open_data(
            self.address.control,
            keys=self._parts.keys.current(),
            node=node_name(self._parts.config),
            session=self._record.session,
            worker=worker,
            epoch=self._record.epoch,
            features=features,
        )

    async def _open_rdma(self, worker: int) -> RdmaLink:
        sock = await self._open_data(worker, m.Feature.RDMA)
        return await make_pair(self._parts.connect_rdma, sock, limit_s=self._rdma_limit_s)

    def _set_engine_state(self, state: DonorState) -> None:
        self._parts.engine.donor_set(self.donor, state)

    async def _fail(self) -> None:
        """Gives the donor up, and returns when nothing of it is left."""
        parts = self._parts
        self.state = PeerState.FAILED
        self._record.session = 0
        parts.table.counters.failovers += 1
        parts.table.save()
        self._set_engine_state(DonorState.FAILED)
        log.error("donor failed", donor=self.address.node, reason=self.reason)
        parts.hooks.donor_lost(self.donor)
        while parts.table.slab_count(self.donor):
            await parts.clock.sleep_until_s(parts.clock.now_s() + RETRY_MIN_S)
        self._set_engine_state(DonorState.NONE)

    # ------------------------------------------------------- while it is there

    def _on_notice(self, line: Line, seq: int, message: m.Message) -> None:
        if isinstance(message, m.CheckActivity):
            line.answer(seq, m.Activity(activity=self._parts.hooks.lease_activity(self.donor, message.leases)))
        elif isinstance(message, m.Migrate | m.Evict):
            self._recalled_s = self._parts.clock.now_s()
            self._parts.hooks.recall(self.donor, message)

    def _is_known(self, lease: int) -> bool:
        return self._parts.table.slab_by_lease(self.donor, lease) is not None

    async def _keep_alive(self) -> None:
        clock = self._parts.clock
        period_s = min(self._expiry_s / 4, KEEPALIVE_MAX_S)
        while True:
            answer = await self.ask(m.KeepAlive())
            assert isinstance(answer, m.FreeMem)
            self.figures = answer
            for slab in self._parts.table.slabs_of(self.donor):
                if slab.returned:
                    self._parts.hooks.still_held(slab)
            await clock.sleep_until_s(clock.now_s() + period_s)

    async def _until_relink(self) -> None:
        """Returns when the links are to be made anew: they broke, or RDMA, which was preferred, is there again."""
        while True:
            try:
                async with asyncio.timeout(RDMA_AGAIN_S if self._fell_back else None):
                    await self._relink.wait()
            except TimeoutError:
                if not await self._has_rdma_again():
                    continue
            return

    def _relink_reason(self) -> str:
        if self._broke_by:
            return os.strerror(self._broke_by)
        return "RDMA, which is preferred, is there again" if self._fell_back else "one broke"

    async def _has_rdma_again(self) -> bool:
        # One queue pair under the epoch in force: the connections that pages go by stay as they are.
        if Carrier.RDMA not in self._ways().tried:
            return False
        try:
            async with asyncio.timeout(self._rdma_limit_s):
                link = await self._open_rdma(MOVER)
        except _EXPECTED as error:
            log.debug("still no RDMA to a donor", donor=self.address.node, reason=error)
            return False
        link.close()
        return True

    async def _keep_links(self) -> None:
        clock = self._parts.clock
        pause_s = RETRY_MIN_S
        broke_s = clock.now_s()
        while True:
            began_s = clock.now_s()
            await self._until_relink()
            if clock.now_s() - began_s > SETTLE_S:
                pause_s, broke_s = RETRY_MIN_S, clock.now_s()
            if clock.now_s() - broke_s > self._parts.config.grace_s:
                self._breaks_on = True
                raise PeerError("its data connections keep breaking")
            log.warning("replacing a donor's data connections", donor=self.address.node, reason=self._relink_reason())
            await clock.sleep_until_s(clock.now_s() + pause_s)
            pause_s = min(RETRY_MAX_S, 2 * pause_s)
            await self._link()


def node_name(config: BlockdevConfig) -> str:
    """The name by which donors know this machine."""
    return config.node or socket.gethostname()
