"""Lender: lends slabs and takes them back; keeps pool, ledger and the engine's exporter in step.

How it works
============
Every loan begins in ``lend`` and ends in ``end``, whatever the reason. The order in ``end`` is what safety hangs on:

1. the engine revokes the lease: when that returns, none of its threads touches the slab,
2. the ledger forgets the loan, so that nobody is answered about it any more,
3. the pool frees the slab, and makes a new one where one should be ready.

A slab on this host has no step 1: its borrower maps the memfd itself. Punching it out takes its content away from a
borrower that did not let go; it reads zeros where it expects data, and its page checksums tell it so. That is true of
ordinary pages only, so no memfd on huge pages is passed out.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from farside.clock import Clock
from farside.daemon.control.messages import ErrorCode
from farside.daemon.counters import Counters, Ending
from farside.daemon.headroom import MemorySnapshot, SlabCounts, leasable_slabs, slabs_to_give_back, slabs_to_grow
from farside.daemon.memory import MemoryWatch
from farside.daemon.slab.pool import Pool, Slab
from farside.daemon.slab.sessions import Ledger, Loan, LoanState, Refused, Session, Transport
from farside.daemon.tasks import Tasks
from farside.log import get_log

if TYPE_CHECKING:  # tests of the rest need no engine
    from farside.kmod_shim.engine.binding import ExportStats

_log = get_log("daemon")


class Exporter(Protocol):
    """One-sided access for borrowers that come over a network; ``binding.Exporter`` is one."""

    def lease(self, lease: int, session: int, token: int, addr: int, size_bytes: int, /) -> None:
        """Lets connections of the session reach the memory."""

    def revoke(self, lease: int, /) -> None:
        """End the lease; when this returns no thread uses the memory."""

    def conn(self, session: int, sock: int, keys: bytes = b"", /) -> None:
        """Serves data requests on the socket, which becomes the engine's."""

    def conn_rdma(self, session: int, sock: int, address: str, /) -> None:
        """Gives the session a queue pair beside the socket, which becomes the engine's."""

    def offer(self, addr: int, size_bytes: int, /) -> None:
        """Any thread: the memory may be leased soon."""

    def withdraw(self, addr: int, /) -> None:
        """Any thread: withdraw the offer; when this returns no RDMA device has the memory."""

    def fence(self, session: int, /) -> None:
        """Ends the session's connections; nothing of them can land afterwards."""

    def malformed(self) -> tuple[int, ...]:
        """Sessions of which a connection has ended, since the last call, for what came on it."""
        ...

    def stats(self) -> "ExportStats":
        """What was served so far."""
        ...

    def destroy(self) -> None:
        """Ends everything."""


class Lender:
    """The donor's loans.

    Attributes:
        loans_changed: Set whenever a loan ends, or has less time than before; a task that waits for that clears it.
        is_closing: True once this donor ends: it lets no borrower in any more.
        drained_by: Who asked that no more is lent; nobody: it lends. What comes back is not made again then; borrowers
            that are here stay.
        limit_bytes: At most so much is lent, whatever memory there is; None: as much as that allows.
        limit_deadline_s: Time that borrowers get to move what was lent beyond it.
        limit_set: Set whenever the limit is; the cycle clears it.
    """

    def __init__(
        self,
        *,
        pool: Pool,
        ledger: Ledger,
        exporter: Exporter,
        memory: MemoryWatch,
        clock: Clock,
        counters: Counters,
        tasks: Tasks,
        token: Callable[[], int] = lambda: secrets.randbits(64),
    ) -> None:
        """``tasks`` is where slabs are freed; ``token`` makes what proves a lease."""
        self.pool = pool
        self.ledger = ledger
        self.exporter = exporter
        self.memory = memory
        self.clock = clock
        self.counters = counters
        self.loans_changed = asyncio.Event()
        self.is_closing = False
        self.drained_by: tuple[str, ...] = ()
        self.limit_bytes: int | None = None
        self.limit_deadline_s = 0.0
        self.limit_set = asyncio.Event()
        self._tasks = tasks
        self._token = token

    @property
    def is_draining(self) -> bool:
        """True while an asker wants the donor drained."""
        return bool(self.drained_by)

    @property
    def lends(self) -> bool:
        """True while slabs may be lent."""
        return not (self.is_closing or self.is_draining)

    @property
    def excess_slabs(self) -> int:
        """Slabs that are lent beyond the limit, and not recalled yet."""
        if self.limit_bytes is None:
            return 0
        return max(0, len(self.lent()) - self.limit_bytes // self.pool.slab_bytes)

    def within_limit(self, slabs: int) -> int:
        """Number of these slabs that may be lent, besides those that are."""
        if self.limit_bytes is None:
            return slabs
        return max(0, min(slabs, self.limit_bytes // self.pool.slab_bytes - len(self.ledger.loans)))

    def leasable_slabs(self, snapshot: MemorySnapshot) -> int:
        """Slabs that could be lent now, ready or made on demand."""
        return self.within_limit(leasable_slabs(snapshot, self.memory.params)) if self.lends else 0

    def lent(self) -> tuple[Loan, ...]:
        """Loans that are not recalled yet."""
        return tuple(loan for loan in self.ledger.loans if loan.state is LoanState.LENT)

    def snapshot(self) -> MemorySnapshot:
        """Memory and slabs as they are now."""
        loans = self.ledger.loans
        huge_mapped = sum(loan.slab.is_huge for loan in loans)
        mapped = len(self.recallable())
        return self.memory.snapshot(
            SlabCounts(
                unmapped=self.pool.ready - self.pool.huge_ready,
                mapped=mapped,
                # Slabs that are being made or freed have memory, but no recall brings it back: they count as recalled.
                recalled=len(loans) - huge_mapped - mapped + self.pool.changing,
                migrating=sum(loan.state is LoanState.MIGRATING for loan in loans),
                huge_unmapped=self.pool.huge_ready,
                huge_mapped=huge_mapped,
            )
        )

    def recallable(self) -> tuple[Loan, ...]:
        """Loans whose end would give other programs memory, and that are not recalled yet."""
        return tuple(loan for loan in self.lent() if not loan.slab.is_huge)

    async def lend(self, session: Session, *, device: str, count: int, transport: Transport) -> tuple[Loan, ...]:
        """Lends up to `count` slabs.

        Raises:
            Refused: not one can be lent.
        """
        if not self.lends:
            raise Refused(ErrorCode.NOT_NOW, "this donor is stopping")
        # Refused with its own code here; a quota that is used up on the way ends the loop with what was lent so far.
        self.ledger.check_quota(session.node)
        loans: list[Loan] = []
        while len(loans) < count and self._may_lend(session) and (slab := await self._slab(transport)) is not None:
            if not self._may_lend(session):  # any more: making the slab took its time
                await self.pool.take_back(slab, keep=self.lends)
                break
            loans.append(self._grant(session, slab, device, transport))
        # A recall or an expiry may have ended the first ones while the last were made.
        standing = tuple(loan for loan in loans if self.ledger.is_standing(loan))
        if not standing:
            raise Refused(ErrorCode.NO_MEMORY, "no memory to lend now")
        return standing

    def end(self, loan: Loan, how: Ending) -> None:
        """Ends a loan; its slab is freed in the background."""
        # 1. No thread of the engine uses the memory any more.
        if loan.transport is Transport.NETWORK:
            self.exporter.revoke(loan.lease)
        # 2. Nobody is answered about it any more.
        self.ledger.end(loan)
        self.counters.ended[how] += 1
        _log.info("loan ended", lease=loan.lease, borrower=loan.session.node, how=how)
        # 3. The memory goes, in the background: it takes milliseconds.
        self._tasks.start(self.pool.take_back(loan.slab, keep=self._is_wanted(how)), "freeing a slab")
        # Whoever waits for this loan to end looks again.
        self.loans_changed.set()

    def expire(self) -> None:
        """Takes back what silent borrowers have. [architecture: the donor never waits for a borrower]"""
        now_s = self.clock.now_s()
        for loan in self.ledger.expired_loans(now_s):
            self.end(loan, Ending.EXPIRED)
        for session in self.ledger.expired_sessions(now_s):
            _log.warning("borrower silent, session ended", borrower=session.node, loans=len(session.loans))
            # First of all its connections end: no write of it can land in a slab that is freed next.
            self.fence(session)
            for loan in tuple(session.loans.values()):
                self.end(loan, Ending.EXPIRED)
            self.ledger.close(session)
            # The connection may be open though nothing was heard on it, as when the borrower hangs.
            if session.channel is not None:
                session.channel.farewell(ErrorCode.SESSION, "silent for too long")

    def fence(self, session: Session) -> None:
        """Ends all data connections of a session."""
        self.exporter.fence(session.number)
        self.counters.fences += 1

    def _may_lend(self, session: Session) -> bool:
        has_room = self.within_limit(1) > 0 and self.ledger.has_quota(session.node)
        return self.lends and has_room and self.ledger.is_open(session)

    async def _slab(self, transport: Transport) -> Slab | None:
        """A ready slab, or one made now if memory bears it. Others may take it while it is made: hence the loop."""
        may_be_huge = transport is not Transport.SHM
        while (slab := self.pool.lend_nowait(may_be_huge=may_be_huge)) is None:
            snapshot = self.snapshot() if may_be_huge else replace(self.snapshot(), huge_free=0)
            if not slabs_to_grow(snapshot, self.memory.params):
                return None
            if not await self.pool.grow(1, may_be_huge=may_be_huge):
                return None
        return slab

    def _grant(self, session: Session, slab: Slab, device: str, transport: Transport) -> Loan:
        loan = self.ledger.grant(
            session,
            slab=slab,
            device=device,
            transport=transport,
            token=self._token(),
            now_s=self.clock.now_s(),
        )
        # A borrower on this host needs no lease of the engine: it maps the memfd.
        if transport is Transport.NETWORK:
            self.exporter.lease(loan.lease, session.number, loan.token, slab.address, slab.length_bytes)
        self.counters.lent += 1
        _log.info("slab lent", lease=loan.lease, borrower=session.node, device=device, transport=transport)
        return loan

    def _is_wanted(self, how: Ending) -> bool:
        """Whether a slab that comes back should be kept ready."""
        # A recalled slab was recalled because its memory is wanted elsewhere: one in its place would be recalled next.
        if not self.lends or how in (Ending.MIGRATED, Ending.EVICTED, Ending.REVOKED):
            return False
        params = self.memory.params
        is_short = self.pool.ready + self.pool.changing < self.within_limit(params.preallocate_slabs)
        return is_short and not slabs_to_give_back(self.snapshot(), params)
