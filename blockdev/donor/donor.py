"""One donor: its control session, its data connections, and its health (up, suspect, failed).

How it works. ``run`` is a loop of sessions. Each opens the control connection, resumes the leases of before, gives the
engine a data connection for each worker, and then serves: answers and notices are read, KEEPALIVE is sent, and broken
data connections are replaced. Any fault ends the session and opens the next.

    DOWN -> UP <-> SUSPECT -> FAILED -> DOWN
            without a session for grace_s ^     ^ when no slab of it is left

A donor that refuses our session (it was restarted) fails at once: its memory is gone. FAILED means that its slabs are
emptied without being read and its leases never used again; it may then come back as a new donor.
"""

import asyncio
import enum
import math
import random
from collections.abc import Iterable

from farside.blockdev.carrier.choice import SHM, is_shared
from farside.blockdev.donor.control_connection import Line
from farside.blockdev.donor.links import RETRY_MAX_S, RETRY_MIN_S, SETTLE_S, Links
from farside.blockdev.donor.parts import EXPECTED, DonorParts
from farside.blockdev.donor.session import Session
from farside.blockdev.donor_port import Grant
from farside.blockdev.mapping.placement import DonorView
from farside.blockdev.peers_file import DonorAddress
from farside.daemon.control import messages as m
from farside.errors import PeerError, RemoteProtocolError
from farside.kmod_shim.engine.binding import DonorState
from farside.log import get_log
from farside.own_task import in_own_task

RECALL_REST_S = 5.0  # time after a recall in which the donor is not asked for slabs

log = get_log("blockdev.donor")


class DonorHealth(enum.StrEnum):
    """Health of a donor."""

    DOWN = "down"  # no session, and no slab of ours is there
    UP = "up"
    SUSPECT = "suspect"  # owes an answer, or lost its connections: writes avoid it
    FAILED = "failed"  # given up; what it had is being dropped


class Donor:
    """One donor of the peers file.

    Attributes:
        health: What it is to us now.
        figures: Its last FREE_MEM, None before the first.
        retired: It left the peers file; nothing new is leased from it.
        reason: Why there is no session, in words; empty while there is one.
        linked: Set while its pages can be reached.
    """

    def __init__(self, parts: DonorParts, address: DonorAddress) -> None:
        self.health = DonorHealth.DOWN
        self.figures: m.FreeMem | None = None
        self.retired = False
        self.task: asyncio.Task[None] | None = None  # donors.py has it
        self.reason = "not connected yet"
        self.linked = asyncio.Event()
        self._parts = parts
        self._record = parts.table.donor(address.node)
        self._links = Links(parts, self._record, address, on_up=self._on_linked)
        self._session: Session | None = None
        self._recalled_s = -RECALL_REST_S
        # When the last good session ended. Sessions that were opened and came to nothing do not change it, so that a
        # donor that only greets us fails in the end.
        self._lost_s = 0.0
        self._retry_s = RETRY_MIN_S
        self._linked_s = math.inf  # when the pages of this session came into reach
        self._mapped_tokens: set[int] = set()  # leases whose memory the engine has in this process

    @property
    def number(self) -> int:
        """Number of the donor in engine and table."""
        return self._record.donor

    @property
    def address(self) -> DonorAddress:
        """Address of the donor, used by the next connection."""
        return self._links.address

    @address.setter
    def address(self, address: DonorAddress) -> None:
        self._links.address = address

    @property
    def is_shared(self) -> bool:
        """True when its slabs are memory of this host."""
        return is_shared(self.address.control, self._parts.config.transport)

    @property
    def transport(self) -> str:
        """Carrier of its pages, or the last one; empty before the first."""
        return SHM if self.is_shared else self._links.transport

    @property
    def has_codes(self) -> bool:
        """True where heads between us carry codes, or none travel: shared memory and RDMA have none."""
        return self._links.has_codes or self.transport != "tcp"

    def view(self) -> DonorView:
        """The donor as the placement sees it."""
        figures = self.figures
        is_recalling = self._parts.clock.now_s() - self._recalled_s < RECALL_REST_S
        return DonorView(
            donor=self.number,
            slabs=self._parts.table.slab_count(self.number),
            free_slabs=figures.free_slabs if figures else 0,
            used_bytes=figures.used_bytes if figures else 0,
            # Without figures it counts as empty: QUERY_MEM brings them before a slab is leased.
            total_bytes=figures.total_bytes if figures else 1,
            usable=self.health is DonorHealth.UP and not self.retired and not is_recalling,
        )

    # ---------------------------------------------------------------- requests

    async def query(self) -> DonorView | None:
        """Figures of the donor now, or None without an answer within the deadline. [infiniswap §2.4.2]"""
        try:
            self.figures = await self._connected().query()
        except PeerError:
            return None
        return self.view()

    async def lease(self) -> Grant:
        """One slab. Raises PeerError."""
        return await self._connected().lease(is_wanted=lambda: not self.retired)

    async def release(self, leases: Iterable[int]) -> None:
        """Gives leases back. Raises PeerError; a lease that the donor does not know counts as given back."""
        await self._say(m.Release(leases=tuple(leases)))

    async def done(self, lease: int, *, moved_pages: int, dropped_pages: int) -> None:
        """Report that a recalled slab is free. Raises PeerError as ``release``."""
        await self._say(m.Done(lease=lease, moved_pages=moved_pages, dropped_pages=dropped_pages))

    # A lease that the donor does not know is what we wanted: that happens when its answer to the first try was lost.
    async def _say(self, message: m.Message) -> None:
        try:
            await self._connected().ask(message)
        except PeerError as error:
            if error.code != m.ErrorCode.NO_LEASE:
                raise

    def _connected(self) -> Session:
        if self._session is None:
            raise PeerError(f"not connected: {self.reason}")
        return self._session

    def forget(self) -> None:
        """End the task of a donor that is no longer used, and free its number."""
        if self.task is not None:
            self.task.cancel()
        self._set_engine_state(DonorState.NONE)
        self._parts.table.forget_donor(self.address.node)
        self._parts.table.save()

    def links_broke(self, error: int = 0) -> None:
        """Called for LINK_DOWN, with its errno, and DONOR_SUSPECT: all data connections are replaced."""
        # A donor that has failed, or has not been up yet, keeps its state.
        if self.health is DonorHealth.UP:
            self.health = DonorHealth.SUSPECT
        self._links.broke(error)

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
            # Whatever one session met, the next must come: otherwise the donor's pages would never be reached again.
            except Exception as error:
                log.error("unexpected fault", donor=self.address.node, cause=error)
            # By chance a little sooner or later, so that the borrowers of a donor that restarts do not all come at
            # once.
            await clock.sleep_until_s(clock.now_s() + self._retry_s * random.uniform(0.75, 1.25))
            self._retry_s = min(RETRY_MAX_S, 2 * self._retry_s)

    async def _hold_session(self) -> None:
        self._linked_s = math.inf
        try:
            # In a task of its own: after a TaskGroup has failed in this one, its next timeouts would end as
            # cancellations (python/cpython issue 116720), and the donor's loop with them.
            await in_own_task(self._serve())
        except* Exception as group:
            self._note_lost(group)
        now_s = self._parts.clock.now_s()
        # Counted from the data connections on: a donor that greets us and does not get that far counts as absent.
        if now_s - self._linked_s >= SETTLE_S + self._parts.config.deadline_s:
            self._retry_s, self._lost_s = RETRY_MIN_S, now_s

    async def _serve(self) -> None:
        session = Session(
            self._parts, self._record, self.address,
            is_shared=self.is_shared, on_notice=self._on_notice, mapped_tokens=self._mapped_tokens,
        )  # fmt: skip
        try:
            await session.open(self._links.wanted_features())
            self._session = session
            # 1. read from the start: the answers to everything below arrive there
            async with asyncio.TaskGroup() as group:
                group.create_task(session.read())
                # 2. drop slabs that the donor does not have any more, before the engine may use the donor again
                await session.resume()
                # 3. data connections; pages are in reach from here on
                await self._links.make(session.features)
                # 4. until one of these three fails, which ends the other two
                group.create_task(session.keep_alive(self._on_figures))
                group.create_task(self._links.keep())
        finally:
            self._session = None
            self.linked.clear()
            session.close()

    def _on_linked(self) -> None:
        self._set_engine_state(DonorState.UP)
        self.health, self.reason = DonorHealth.UP, ""
        # Only the first set of connections of a session counts: later sets replace broken ones.
        if not self.linked.is_set():
            self._linked_s = self._parts.clock.now_s()
        self.linked.set()
        log.info("donor is up", donor=self.address.node, transport=self.transport, epoch=self._record.epoch)

    def _on_figures(self, figures: m.FreeMem) -> None:
        self.figures = figures
        # The donor answers, so this is the moment to repeat a DONE or RELEASE that it has not confirmed.
        for slab in self._parts.table.slabs_of(self.number):
            if slab.returned:
                self._parts.hooks.still_held(slab)

    def _on_notice(self, line: Line, seq: int, message: m.Message) -> None:
        if isinstance(message, m.CheckActivity):
            line.answer(seq, m.Activity(activity=self._parts.hooks.lease_activity(self.number, message.leases)))
        elif isinstance(message, m.Migrate | m.Evict):
            # Placement leaves the donor out for RECALL_REST_S.
            self._recalled_s = self._parts.clock.now_s()
            self._parts.hooks.recall(self.number, message)

    # ------------------------------------------------------------- the verdict

    async def _judge(self) -> None:
        """Without a session: fail the donor at once if its memory is gone, otherwise after ``grace_s``."""
        now_s = self._parts.clock.now_s
        if self._parts.table.slab_count(self.number):
            # Session 0: the donor has said that it does not know us any more. breaks_on: it answers, but its pages stay
            # out of reach.
            is_hopeless = self._record.session == 0 or self._links.breaks_on
            if not is_hopeless and now_s() - self._lost_s < self._parts.config.grace_s:
                return
            await self._fail()
        self.health, self._lost_s, self._links.breaks_on = DonorHealth.DOWN, now_s(), False

    def _note_lost(self, group: ExceptionGroup[Exception]) -> None:
        # Each TaskGroup on the way has wrapped the reason once more.
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if not isinstance(error, EXPECTED):
            log.error("unexpected fault", donor=self.address.node, cause=group)
        # A TimeoutError has no text of its own.
        reason = str(error) or f"no answer within {self._parts.config.deadline_s:g} s"
        if reason != self.reason:
            log.warning("no session with a donor", donor=self.address.node, reason=reason)
        self.reason = reason
        # Attempts to reach a donor that is away are none. A frame that someone on the way has changed is one. [H1]
        if self._linked_s < math.inf or isinstance(error, RemoteProtocolError):
            self._parts.table.counters.sessions_broken += 1
            self._parts.table.save()
        if isinstance(error, PeerError) and error.code == m.ErrorCode.SESSION:
            # It was restarted, or we were silent for too long: our pages are gone there. Saved at once, so that a
            # successor does not wait for them either.
            self._record.session = 0
            self._parts.table.save()
        if self._parts.table.slabs_of(self.number):
            self.health = DonorHealth.SUSPECT
            self._set_engine_state(DonorState.SUSPECT)

    async def _fail(self) -> None:
        """Fail the donor, and return when none of its slabs is left."""
        parts = self._parts
        self.health = DonorHealth.FAILED
        self._record.session = 0
        parts.table.counters.failovers += 1
        parts.table.save()
        self._set_engine_state(DonorState.FAILED)
        log.error("donor failed", donor=self.address.node, reason=self.reason)
        parts.hooks.donor_lost(self.number)
        # The donor may come back as a new one under the same number: no old slab of it may be left then.
        while parts.table.slab_count(self.number):
            await parts.clock.sleep_until_s(parts.clock.now_s() + RETRY_MIN_S)
        self._set_engine_state(DonorState.NONE)

    def _set_engine_state(self, state: DonorState) -> None:
        self._parts.engine.donor_set(self.number, state)
