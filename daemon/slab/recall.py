"""Recall of slabs from borrowers: asks which matter least, gives time to move them, and takes what is late.

`eviction.py` chooses the slabs, this module asks borrowers for them, and `blockdev/mapping/recall.py` is their answer.

How it works
============
::

    lent --MIGRATE, deadline--> migrating --late--> EVICT, deadline --> evicting --late--> revoked
                                    |                                      |
                                    +--DONE--> migrated                    +--DONE--> evicted

A slab whose deadline is 0, or whose borrower cannot migrate or is not connected, begins at EVICT. Each batch has its
own task and waits for its own loans only; nothing else waits for a borrower, ever. So a slab that is recalled is free
after both deadlines at the latest, whatever its borrower does. [infiniswap §2.5.2; MIGRATE and the deadlines are ours]

When memory gets so short that nobody can wait for pages to move, all that migrate are told to evict (``hasten``).

A borrower that lost its connection meanwhile hears of it when it comes back in time (``overdue_notices``).
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from farside.clock import Clock
from farside.daemon.control.messages import LEASES_MAX, Activity, CheckActivity, Evict, Feature, Migrate
from farside.daemon.counters import Ending
from farside.daemon.slab.eviction import MappedSlab, candidates, choose, is_asking_needed
from farside.daemon.slab.lender import Lender
from farside.daemon.slab.sessions import Loan, LoanState, Session
from farside.errors import LocalProtocolError, PeerError
from farside.log import get_log
from farside.own_task import wait_first

_log = get_log("daemon.recall")


class Recaller:
    """Takes loans back, in batches."""

    def __init__(
        self, lender: Lender, *, clock: Clock, rng: random.Random, evict_extra: int, evict_deadline_s: float
    ) -> None:
        """``evict_extra`` is E' (-1: as many as E); ``evict_deadline_s`` bounds answers to CHECK_ACTIVITY too."""
        self._lender = lender
        self._clock = clock
        self._rng = rng
        self._extra = evict_extra
        self._evict_deadline_s = evict_deadline_s

    async def choose(self, count: int, among: Callable[[], Iterable[Loan]] | None = None) -> tuple[Loan, ...]:
        """Choose ``count`` loans to recall: the least active of those asked about. [infiniswap §2.5.2]

        ``among``: those that may be chosen; None: those whose end would give programs memory.
        """
        among = among or self._lender.recallable
        loans = {loan.lease: loan for loan in among()}
        mapped = tuple(MappedSlab(lease=loan.lease, leased_at_s=loan.since_s) for loan in loans.values())
        asked = candidates(mapped, count=count, extra=self._extra, rng=self._rng)
        activity: dict[int, float] = {}
        # The answers take up to a deadline, in which programs wait for their memory.
        if is_asking_needed(asked, count):
            activity = await self._activity([loans[slab.lease] for slab in asked])
        victims = choose(asked, activity, count=count)
        for victim in victims:
            _log.info("slab chosen for recall", lease=victim.lease, reason=victim.reason)
        # While we asked, some may have ended or been recalled by another batch.
        still_lent = set(among())
        return tuple(loan for loan in (loans[victim.lease] for victim in victims) if loan in still_lent)

    def begin(self, loans: Sequence[Loan], deadline_s: float) -> None:
        """Marks loans as recalled, so that no other batch takes them; ``finish`` does the rest."""
        now_s = self._clock.now_s()
        for loan in loans:
            loan.state = LoanState.MIGRATING if deadline_s > 0 and _can_migrate(loan) else LoanState.EVICTING
            migrating = loan.state is LoanState.MIGRATING
            loan.due_s = now_s + (deadline_s if migrating else self._evict_deadline_s)

    async def finish(self, loans: Sequence[Loan]) -> None:
        """Ask back the loans that ``begin`` marked, and return when all of them have ended."""
        # 1. Tell their borrowers, and wait until each has let go or is late.
        self._tell(loans)
        await self._until_due(loans)
        # 2. Those that had time to move pages get the shorter time. `hasten` may have done so already.
        self._evict([loan for loan in loans if self._stands(loan) and loan.state is LoanState.MIGRATING])
        await self._until_due(loans)
        # 3. Take what is left, whatever its borrower does.
        for loan in filter(self._stands, loans):
            _log.warning("slab taken from a borrower that was late", lease=loan.lease, borrower=loan.session.node)
            self._lender.end(loan, Ending.REVOKED)

    def hasten(self) -> int:
        """Ends the time to move of every slab that has some; returns how many they were."""
        loans = [loan for loan in self._lender.ledger.loans if loan.state is LoanState.MIGRATING]
        self._evict(loans)
        self._lender.loans_changed.set()  # those that wait for them wait shorter
        return len(loans)

    async def recall_all(self, deadline_s: float) -> None:
        """Takes everything back; returns when nothing is lent any more."""
        loans = [loan for loan in self._lender.ledger.loans if loan.state is LoanState.LENT]
        self.begin(loans, deadline_s)
        await self.finish(loans)
        while self._lender.ledger.loans:  # other batches' loans
            self._lender.loans_changed.clear()
            await self._lender.loans_changed.wait()

    def overdue_notices(self, session: Session) -> None:
        """Notices that a borrower missed while it was away."""
        self._tell([loan for loan in session.loans.values() if loan.state is not LoanState.LENT])

    # ---- asking

    async def _activity(self, loans: Sequence[Loan]) -> dict[int, float]:
        """Activity by lease, of the borrowers that answer in time."""
        asked: list[tuple[tuple[int, ...], asyncio.Future[Activity]]] = []
        for session, leases in _by_session(loans):
            for part in _parts(leases):
                asked += ((part, answer) for answer in _ask(session, CheckActivity(leases=part)))
        # One deadline for all answers together: one borrower that is silent must not cost more than that.
        timer = asyncio.ensure_future(self._clock.sleep_until_s(self._clock.now_s() + self._evict_deadline_s))
        everybody = asyncio.gather(*(answer for _, answer in asked), return_exceptions=True)
        try:
            await asyncio.wait((timer, everybody), return_when=asyncio.FIRST_COMPLETED)
            # Only what is said of a borrower's own slabs counts: it must not make another's look idle.
            return {
                lease: rate
                for part, answer in asked
                if answer.done() and not answer.cancelled()
                for lease, rate in answer.result().activity
                if lease in part
            }
        finally:
            timer.cancel()
            everybody.cancel()
            await asyncio.gather(timer, everybody, return_exceptions=True)

    # ---- telling and waiting

    def _evict(self, loans: Sequence[Loan]) -> None:
        for loan in loans:
            loan.state, loan.due_s = LoanState.EVICTING, self._clock.now_s() + self._evict_deadline_s
        self._tell(loans)

    def _tell(self, loans: Iterable[Loan]) -> None:
        now_s = self._clock.now_s()
        for state in (LoanState.MIGRATING, LoanState.EVICTING):
            for session, leases in _by_session([loan for loan in loans if loan.state is state and self._stands(loan)]):
                # One notice has one deadline: the earliest of its slabs.
                due_s = min(session.loans[lease].due_s for lease in leases)
                for part in _parts(leases):
                    _notify(session, state, part, max(0.0, due_s - now_s))

    async def _until_due(self, loans: Sequence[Loan]) -> None:
        """Returns when each of the loans has ended or is past its time."""
        # No await lies between this look and the wait below, so no change in between is missed.
        while waiting := [loan.due_s for loan in loans if self._stands(loan) and loan.due_s > self._clock.now_s()]:
            self._lender.loans_changed.clear()
            await wait_first(self._lender.loans_changed.wait(), self._clock.sleep_until_s(min(waiting)))

    def _stands(self, loan: Loan) -> bool:
        return self._lender.ledger.is_standing(loan)


def _can_migrate(loan: Loan) -> bool:
    channel = loan.session.channel
    # A borrower that is not connected would not hear of it: it gets the shorter time, to come back and let go.
    return channel is not None and Feature.MIGRATE in channel.connection.features


def _by_session(loans: Sequence[Loan]) -> Iterator[tuple[Session, list[int]]]:
    sessions = dict.fromkeys(loan.session for loan in loans)
    for session in sessions:
        yield session, [loan.lease for loan in loans if loan.session is session]


# As many leases as one message may name.
def _parts(leases: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(leases), LEASES_MAX):
        yield tuple(leases[start : start + LEASES_MAX])


def _ask(session: Session, question: CheckActivity) -> Iterator["asyncio.Future[Activity]"]:
    """Ask the borrower; do nothing when it can't be asked now."""
    if session.channel is None:
        return
    try:
        seq = session.channel.ask(question)
    except (PeerError, LocalProtocolError):
        return  # gone, or with too many questions open; its reader deals with that
    future = session.asked[seq] = asyncio.get_running_loop().create_future()
    yield future


def _notify(session: Session, state: LoanState, leases: tuple[int, ...], deadline_s: float) -> None:
    if session.channel is None:
        return
    migrating = state is LoanState.MIGRATING
    notice = Migrate(leases=leases, deadline_s=deadline_s) if migrating else Evict(leases=leases, deadline_s=deadline_s)
    try:
        session.channel.ask(notice)
    except (PeerError, LocalProtocolError):
        pass  # gone: its deadline passes all the same
