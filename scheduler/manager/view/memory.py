"""Memory that a node lends and has borrowed, as its agent said last. PURE."""

from typing import Any

from msgspec import Struct

from farside.agent import messages as m


class NodeMemory(Struct, frozen=True, kw_only=True):
    """Memory of a node in the memory plane. None: it has no donor, no borrower, or its agent is not connected here.

    Attributes:
        lent_bytes: That its donor has lent.
        lendable_bytes: That its donor could lend now, besides.
        promised_bytes: Of what jobs were promised in all, its donor's part by what it lends.
        remote_bytes: Pages of its Farside devices that donors have.
        on_disk_bytes: Pages that their backup disks alone have.
        pending_bytes: Pages that a backup disk is to have, and has not yet.
        pages_at_risk: Pages with one copy where two are promised, or that a disk alone has which fails.
        disk_failed: One of their backup disks fails; None: there is none.
        reads_per_s, writes_per_s: Requests to its devices.
        read_p99_s, write_p99_s: What 99 in 100 of those took at most, to a factor of two; None: there were none.
        read_bytes_per_s, written_bytes_per_s: What borrowers read and write at its donor, over networks.
    """

    lent_bytes: int | None = None
    lendable_bytes: int | None = None
    promised_bytes: int | None = None
    remote_bytes: int | None = None
    on_disk_bytes: int | None = None
    pending_bytes: int | None = None
    pages_at_risk: int | None = None
    disk_failed: bool | None = None
    reads_per_s: float | None = None
    writes_per_s: float | None = None
    read_p99_s: float | None = None
    write_p99_s: float | None = None
    read_bytes_per_s: float | None = None
    written_bytes_per_s: float | None = None


NO_MEMORY = NodeMemory()


def memory_of(report: m.Report, donor: m.DonorFacts | None, borrower: m.BorrowerFacts | None) -> NodeMemory:
    """What a report says; ``donor``, ``borrower``: what its services of these names say in full, None: it has none.

    An agent of the version before says of its donor what other nodes need, and nothing of its borrower.
    """
    lent = None if donor is None else donor.lent
    if lent is None and report.donor is not None:
        lent = m.LentMemory(lent_bytes=report.donor.lent_bytes, lendable_bytes=report.donor.free_bytes)
    borrowed = None if borrower is None else borrower.borrowed
    return NodeMemory(**_fields(lent), **_fields(borrowed))


def _fields(record: m.LentMemory | m.BorrowedMemory | None) -> dict[str, Any]:
    return {} if record is None else m.fields_of(type(record), record)
