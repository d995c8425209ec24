"""A borrower's control connection at the donor: its requests and their answers.

Each request is answered before the next is read, but for MAP: making slabs takes as long as the kernel needs, and what
the borrower says meanwhile (that it is alive, that it lets slabs go) must not wait for that. The MAPs of one connection
are answered one after another, so a borrower that asks for much waits for itself only.

What goes wrong with one request is an ERROR answer; what goes wrong with the protocol ends the connection, not the
session: its loans stand until they expire, and the borrower may come back.
"""

import asyncio
from collections.abc import Callable

from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.protocol import PeerClosed, Received
from farside.daemon.counters import Ending
from farside.daemon.slab.lender import Lender
from farside.daemon.slab.recall import Recaller
from farside.daemon.slab.sessions import Loan, LoanState, Refused, Session, Transport
from farside.daemon.tasks import Tasks
from farside.errors import PeerError

# What a DONE means depends on what was asked last; without any question it is a RELEASE.
_ENDING_OF_DONE = {
    LoanState.LENT: Ending.RELEASED,
    LoanState.MIGRATING: Ending.MIGRATED,
    LoanState.EVICTING: Ending.EVICTED,
}


class Conversation:
    """Answers one connected borrower."""

    def __init__(self, lender: Lender, recaller: Recaller, session: Session, channel: Channel, tasks: Tasks) -> None:
        """``tasks`` is where slabs are mapped."""
        self._lender = lender
        self._recaller = recaller
        self._session = session
        self._channel = channel
        self._tasks = tasks
        self._mapping = asyncio.Lock()  # fair: the first that waits is the first that gets it
        self._handlers: dict[type[m.Message], Callable[[int, m.Message], None]] = {
            m.QueryMem: self._on_query_mem,
            m.KeepAlive: self._on_query_mem,
            m.Map: self._on_map,
            m.Resume: self._on_resume,
            m.Release: self._on_release,
            m.Done: self._on_done,
            m.Activity: self._on_activity,
            m.Error: self._on_error,
        }

    async def run(self) -> None:
        """Answers until the borrower closes, or says that it is about to.

        Raises:
            PeerError: the connection was lost.
            RemoteProtocolError: the borrower broke the protocol.
        """
        while True:
            event = await self._channel.next_event()
            if isinstance(event, PeerClosed):
                return
            assert isinstance(event, Received)
            # Sequence 0: a farewell. The socket may stay open, but nothing after it counts.
            if isinstance(event.message, m.Error) and event.seq == 0:
                return
            # Any frame is a sign of life, and puts the expiry off.
            self._session.heard_s = self._lender.clock.now_s()
            try:
                self._handlers[type(event.message)](event.seq, event.message)
            except Refused as refused:
                self._refuse(event.seq, refused)

    @property
    def _transport(self) -> Transport:
        """How this borrower reaches slabs on this connection."""
        is_shm = self._channel.is_local and m.Feature.SHM in self._channel.connection.features
        return Transport.SHM if is_shm else Transport.NETWORK

    # ---- requests

    def _on_query_mem(self, seq: int, _: m.Message) -> None:
        lender = self._lender
        snapshot = lender.snapshot()
        self._channel.answer(seq, lender.memory.free_mem(snapshot, leasable_slabs=lender.leasable_slabs(snapshot)))

    def _on_map(self, seq: int, request: m.Message) -> None:
        assert isinstance(request, m.Map)
        self._tasks.start(self._map(seq, request), "mapping slabs")

    def _on_resume(self, seq: int, request: m.Message) -> None:
        assert isinstance(request, m.Resume)
        self._answer_leases(seq, self._lender.ledger.confirm(self._session, request.leases, self._transport))
        # What was recalled while it was away: the notices went nowhere, and their deadlines run.
        self._recaller.overdue_notices(self._session)

    def _on_release(self, seq: int, request: m.Message) -> None:
        assert isinstance(request, m.Release)
        # Those that it does hold are released all the same: they are of no use to it.
        unknown = [lease for lease in request.leases if lease not in self._session.loans]
        # A lease that is named twice ends once.
        for lease in dict.fromkeys(request.leases):
            if lease not in unknown:
                self._lender.end(self._session.loans[lease], Ending.RELEASED)
        if unknown:
            raise Refused(m.ErrorCode.NO_LEASE, f"you hold no leases {unknown[:8]}; the others are released")
        self._channel.answer(seq, m.Ok())

    def _on_done(self, seq: int, request: m.Message) -> None:
        assert isinstance(request, m.Done)
        loan = self._lender.ledger.find(self._session, request.lease)
        self._lender.counters.moved_pages += request.moved_pages
        self._lender.counters.dropped_pages += request.dropped_pages
        self._lender.end(loan, _ENDING_OF_DONE[loan.state])
        self._channel.answer(seq, m.Ok())

    # ---- slabs, in a task of their own

    async def _map(self, seq: int, request: m.Map) -> None:
        try:
            async with self._mapping:
                # Otherwise the borrower is gone, or is back on a newer connection, while an earlier MAP was answered.
                if self._session.channel is self._channel:
                    await self._lend(seq, request)
        except PeerError:
            self._channel.close()
        # A fault of ours: no answer will come, so the borrower must not wait for one.
        except Exception:
            self._channel.close()
            raise

    async def _lend(self, seq: int, request: m.Map) -> None:
        try:
            loans = await self._lender.lend(
                self._session, device=request.device, count=request.count, transport=self._transport
            )
        except Refused as refused:
            self._refuse(seq, refused)
            return
        try:
            self._answer_leases(seq, loans)
        except PeerError:
            for loan in loans:  # that the borrower has not heard of
                self._lender.end(loan, Ending.RELEASED)
            raise

    # ---- answers to what we asked

    def _on_activity(self, seq: int, answer: m.Message) -> None:
        assert isinstance(answer, m.Activity)
        future = self._session.asked.pop(seq, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def _on_error(self, seq: int, _: m.Message) -> None:
        future = self._session.asked.pop(seq, None)
        if future is not None:
            future.cancel()  # no answer, then

    def _refuse(self, seq: int, refused: Refused) -> None:
        self._lender.counters.refused[refused.code.name] += 1
        self._channel.answer(seq, m.Error(code=int(refused.code), message=str(refused)[:256]))

    def _answer_leases(self, seq: int, loans: tuple[Loan, ...]) -> None:
        leases = tuple(_lease(loan) for loan in loans)
        # In the order of the leases: that is how the borrower tells which is which.
        fds = [loan.slab.fd for loan in loans if loan.transport is Transport.SHM]
        self._channel.answer(seq, m.MrInfo(leases=leases), fds)


def _lease(loan: Loan) -> m.Lease:
    return m.Lease(lease=loan.lease, token=loan.token, rkey=0, addr=0, length=loan.slab.length_bytes, epoch=loan.epoch)
