"""Sessions and leases: which borrower has which slab, under which lease, until when.

How it works
============
Rules of this file: no I/O, no waiting, no clock and no random numbers (times, tokens and session numbers are passed
in); what must not be is refused by an exception that carries the ErrorCode.

A **session** is one borrower's stay. It is older than its connection: a borrower that is restarted, or whose network
hiccups, comes back to it by number within ``lease_expiry_s``; only the node that began it may. Each frame heard from it
puts the expiry off. A **loan** is one slab in a session. It ends by RELEASE, by DONE, with its session's expiry, or on
its own when its borrower came back and did not name it in a RESUME (the MR_INFO that told of it was lost).

A lease number is used again only after all others (the borrower's late DONE for an old loan must not hit a new one),
and (lease, epoch) never comes twice in a donor's life.

Data connections carry the session and an epoch. One with a higher epoch than any before is a successor process: all
older ones must be fenced before it is let in, so that no late write of theirs can land after it. A lower epoch is
refused.
"""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

from farside.daemon.control.channel import Channel
from farside.daemon.control.messages import Activity, ErrorCode
from farside.daemon.slab.pool import Slab
from farside.errors import FarsideError

LEASE_NUMBERS = 65536
"""Lease numbers on a data connection are below this (NE_SLABS_MAX in engine.h)."""
SESSIONS_MAX = 4096
"""More borrowers than nodes of the largest cluster; each costs a few KiB here."""
SESSIONS_AN_ADDRESS = 1024
"""All borrowers of a network may come from one address; one that opens sessions without end leaves room for others."""


class Refused(FarsideError):
    """Refusal of a borrower's request; the ERROR answer is made of it."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Transport(StrEnum):
    """How a borrower reaches a slab. By which network protocol is up to its data connections."""

    SHM = "shm"
    NETWORK = "network"


class LoanState(StrEnum):
    """What a loan is waiting for."""

    LENT = "lent"
    MIGRATING = "migrating"  # MIGRATE was sent; DONE is due
    EVICTING = "evicting"  # EVICT was sent; DONE is due


@dataclass(slots=True, eq=False, kw_only=True)
class Session:
    """Session of one borrower. ``channel`` is None while it is not connected."""

    number: int
    node: str
    heard_s: float
    address: str = ""  # where it was opened from
    channel: Channel | None = None
    data_epoch: int = -1  # highest of its data connections
    carrier: str = "tcp"  # tcp or rdma: what the newest of them is
    loans: "dict[int, Loan]" = field(default_factory=dict)
    asked: "dict[int, asyncio.Future[Activity]]" = field(default_factory=dict)  # CHECK_ACTIVITY not answered


@dataclass(slots=True, eq=False, kw_only=True)
class Loan:
    """One slab in one session."""

    lease: int
    token: int
    epoch: int
    device: str
    transport: Transport
    slab: Slab
    session: Session
    since_s: float
    state: LoanState = LoanState.LENT
    due_s: float = 0.0  # when DONE is due, if it is
    unconfirmed_s: float | None = None  # since when its borrower is back without having named it


class Ledger:
    """All sessions and loans of a donor."""

    def __init__(self, *, lease_expiry_s: float, quota_slabs: int = 0) -> None:
        """``quota_slabs`` bounds what one node may hold; 0 does not."""
        self.lease_expiry_s = lease_expiry_s
        self._quota = quota_slabs
        # Dictionaries keep the order of insertion: the oldest is first.
        self._sessions: dict[int, Session] = {}
        self._loans: dict[int, Loan] = {}
        self._next_lease = 0
        self._epoch = 0

    # ---- sessions

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All sessions, oldest first."""
        return tuple(self._sessions.values())

    @property
    def loans(self) -> tuple[Loan, ...]:
        """All loans, oldest first."""
        return tuple(self._loans.values())

    def open(self, *, number: int, node: str, now_s: float, address: str = "") -> Session:
        """A new session under a number that was never used.

        Raises:
            Refused: There are too many, of this address or of all.
        """
        if sum(session.address == address for session in self._sessions.values()) >= SESSIONS_AN_ADDRESS:
            raise Refused(ErrorCode.NOT_NOW, f"{SESSIONS_AN_ADDRESS} sessions are open from this address")
        if len(self._sessions) >= SESSIONS_MAX:
            raise Refused(ErrorCode.NOT_NOW, f"{SESSIONS_MAX} sessions are open")
        assert number not in self._sessions
        session = self._sessions[number] = Session(number=number, node=node, heard_s=now_s, address=address)
        return session

    def rejoin(self, *, number: int, node: str, now_s: float) -> Session:
        """The session that a borrower returns to. Its loans wait to be named in RESUME."""
        session = self._of_node(number, node)
        session.heard_s = now_s
        for loan in session.loans.values():
            loan.unconfirmed_s = now_s
        return session

    def admit_data(self, *, number: int, node: str, epoch: int) -> tuple[Session, bool]:
        """The session of a data connection, and whether older connections must be fenced first."""
        session = self._of_node(number, node)
        if epoch < session.data_epoch:
            raise Refused(ErrorCode.SESSION, f"data epoch {epoch} is fenced; {session.data_epoch} is in force")
        # The first connection of a session (-1) finds no older one, and one of the same epoch is a further worker's.
        must_fence = session.data_epoch >= 0 and epoch > session.data_epoch
        session.data_epoch = epoch
        return session, must_fence

    def is_open(self, session: Session) -> bool:
        """False once it has expired."""
        return self._sessions.get(session.number) is session

    def close(self, session: Session) -> None:
        """Forgets a session that has no loans."""
        assert not session.loans
        del self._sessions[session.number]

    def _of_node(self, number: int, node: str) -> Session:
        session = self._sessions.get(number)
        # The same words for both, so that nobody learns whether a number is in use.
        if session is None or session.node != node:
            raise Refused(ErrorCode.SESSION, "you have no such session; it may have expired")
        return session

    # ---- loans

    def has_quota(self, node: str) -> bool:
        """Whether this node may have one more slab."""
        return not self._quota or sum(loan.session.node == node for loan in self._loans.values()) < self._quota

    def check_quota(self, node: str) -> None:
        """Raise Refused when this node has used up its quota."""
        if not self.has_quota(node):
            raise Refused(ErrorCode.QUOTA, f"{node} holds {self._quota} slabs, its quota")

    def grant(
        self, session: Session, *, slab: Slab, device: str, transport: Transport, token: int, now_s: float
    ) -> Loan:
        """Notes that the slab is lent to the session."""
        self._epoch += 1
        loan = Loan(
            lease=self._free_lease(),
            token=token,
            epoch=self._epoch,
            device=device,
            transport=transport,
            slab=slab,
            session=session,
            since_s=now_s,
        )
        self._loans[loan.lease] = session.loans[loan.lease] = loan
        return loan

    def find(self, session: Session, lease: int) -> Loan:
        """The session's loan of this number.

        Raises:
            Refused: it has none.
        """
        loan = session.loans.get(lease)
        if loan is None:
            raise Refused(ErrorCode.NO_LEASE, f"you hold no lease {lease}; it may have been revoked")
        return loan

    def confirm(self, session: Session, named: tuple[tuple[int, int], ...], transport: Transport) -> tuple[Loan, ...]:
        """Those of the (lease, token) that the session still holds and can reach.

        A borrower whose way to this donor has changed cannot use what was lent over the other one.
        """
        held = []
        for lease, token in named:
            loan = session.loans.get(lease)
            # The token, too: the number may be another slab's by now.
            if loan is not None and loan.token == token and loan.transport is transport:
                loan.unconfirmed_s = None
                held.append(loan)
        return tuple(held)

    def end(self, loan: Loan) -> None:
        """Forgets a loan."""
        del self._loans[loan.lease]
        del loan.session.loans[loan.lease]

    def is_standing(self, loan: Loan) -> bool:
        """False once it has ended."""
        return self._loans.get(loan.lease) is loan

    # ---- expiry

    def expired_sessions(self, now_s: float) -> tuple[Session, ...]:
        """Sessions that were silent for longer than they may."""
        return tuple(s for s in self._sessions.values() if now_s - s.heard_s > self.lease_expiry_s)

    def expired_loans(self, now_s: float) -> tuple[Loan, ...]:
        """Loans whose borrower came back and has not named them for longer than it may."""
        return tuple(
            loan
            for loan in self._loans.values()
            if loan.unconfirmed_s is not None and now_s - loan.unconfirmed_s > self.lease_expiry_s
        )

    def _free_lease(self) -> int:
        # From where the last search ended, round to the start: a number comes again after all others.
        for lease in chain(range(self._next_lease, LEASE_NUMBERS), range(self._next_lease)):
            if lease not in self._loans:
                self._next_lease = (lease + 1) % LEASE_NUMBERS
                return lease
        raise Refused(ErrorCode.NO_MEMORY, f"{LEASE_NUMBERS} slabs are lent")
