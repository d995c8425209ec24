"""Status of a donor, one frozen value, for `farside status` and Prometheus."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice

from farside.daemon.headroom import free_bytes
from farside.daemon.slab.lender import Lender
from farside.daemon.slab.sessions import LoanState, Transport

ROWS_MAX = 1024
"""Slabs, and sessions, in one answer: with the longest names these are 0.7 MiB of the 1 MiB that it may have."""
_DEVICE_CHARS = 64  # of a device's name, which a borrower makes up


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabStatus:
    """A slab of the donor. ``state`` is ready, lent, migrating or evicting; the rest is empty while it is ready."""

    state: str
    lease: int | None = None
    borrower: str = ""
    device: str = ""
    transport: str = ""
    age_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStatus:
    """Memory in bytes. ``used_bytes`` is that of other programs, smoothed; ``free_bytes`` is unused by them and us."""

    total_bytes: int
    used_bytes: int
    slabs_bytes: int
    free_bytes: int
    headroom_bytes: int
    free_slabs: int  # that could be lent now
    limit_bytes: int | None  # at most so much is lent, by the command ``limit``; None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """One borrower."""

    borrower: str
    connected: bool
    silent_s: float
    slabs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorStatus:
    """A donor at one moment. Counters only grow; ``traffic`` is what its threads served over networks.

    ``slabs`` and ``sessions`` are the first ROWS_MAX; ``slab_counts`` has all slabs, by state.
    """

    node: str
    pid: int
    listen: tuple[str, ...]
    has_rdma: bool
    closing: bool
    draining: bool
    drained_by: tuple[str, ...]
    slab_bytes: int
    memory: MemoryStatus
    slab_counts: Mapping[str, int]
    slabs: tuple[SlabStatus, ...]
    slabs_omitted: int
    sessions: tuple[SessionStatus, ...]
    sessions_omitted: int
    counters: Mapping[str, int]
    refused: Mapping[str, int]
    traffic: Mapping[str, int]


def donor_status(node: str, lender: Lender, *, listen: tuple[str, ...] = (), has_rdma: bool = False) -> DonorStatus:
    """The donor now; ``listen`` and ``has_rdma`` are what it offers."""
    now_s = lender.clock.now_s()
    traffic = asdict(lender.exporter.stats())
    refused = traffic.pop("refused")
    traffic["written_bytes"] = traffic.pop("write_bytes")
    sessions, counts = lender.ledger.sessions, _slab_counts(lender)
    return DonorStatus(
        node=node,
        pid=os.getpid(),
        listen=listen,
        has_rdma=has_rdma,
        closing=lender.is_closing,
        draining=lender.is_draining,
        drained_by=lender.drained_by,
        slab_bytes=lender.pool.slab_bytes,
        memory=_memory(lender),
        slab_counts=counts,
        slabs=tuple(islice(_slabs(lender, now_s), ROWS_MAX)),
        slabs_omitted=max(0, sum(counts.values()) - ROWS_MAX),
        sessions=tuple(
            SessionStatus(
                borrower=session.node,
                connected=session.channel is not None,
                silent_s=round(now_s - session.heard_s, 3),
                slabs=len(session.loans),
            )
            for session in sessions[:ROWS_MAX]
        ),
        sessions_omitted=max(0, len(sessions) - ROWS_MAX),
        counters=lender.counters.totals(),
        refused={**lender.counters.refused, "DATA": refused},
        traffic=traffic,
    )


def _memory(lender: Lender) -> MemoryStatus:
    snapshot, params = lender.snapshot(), lender.memory.params
    return MemoryStatus(
        total_bytes=snapshot.total_bytes,
        used_bytes=int(snapshot.used_bytes),
        slabs_bytes=lender.pool.slabs_bytes,
        free_bytes=int(free_bytes(snapshot, params.slab_bytes, snapshot.used_bytes)),
        headroom_bytes=params.headroom_bytes,
        free_slabs=lender.leasable_slabs(snapshot),
        limit_bytes=lender.limit_bytes,
    )


def _slab_counts(lender: Lender) -> dict[str, int]:
    lent = Counter(loan.state for loan in lender.ledger.loans)
    return {"ready": lender.pool.ready, **{str(state): lent[state] for state in LoanState}}


def _slabs(lender: Lender, now_s: float) -> Iterator[SlabStatus]:
    for loan in lender.ledger.loans:
        yield SlabStatus(
            state=str(loan.state),
            lease=loan.lease,
            borrower=loan.session.node,
            device=loan.device[:_DEVICE_CHARS],
            transport="shm" if loan.transport is Transport.SHM else loan.session.carrier,
            age_s=round(now_s - loan.since_s, 3),
        )
    for _ in range(lender.pool.ready):
        yield SlabStatus(state="ready")
