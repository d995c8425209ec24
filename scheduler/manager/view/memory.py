"""Memory that a node lends and has borrowed, as its agent said last. PURE."""

from typing import Any

from msgspec import Struct, structs

from farside.agent import messages as m
from farside.geometry import GRANULE_BYTES, granules_of


class NodeMemory(Struct, frozen=True, kw_only=True):
    """Memory of a node in the memory plane. None: it has no donor, no borrower, or its agent is not connected here.

    Attributes:
        lent_bytes: That its donor has lent.
        lendable_bytes: That its donor could lend now, besides.
        promised_bytes: Of what jobs were promised in all, its donor's part by what it lends.
        lend_ordered_bytes: The most that an operator lets its donor lend; None: nobody has said.
        lend_limit_bytes: The most that its donor lends, as that was told; None: what its settings allow.
        lend_problem: Why the second is not the first; None: it is, or nobody has ordered anything.
        swap_ordered_bytes: Size that an operator wants its swap to have; 0: none, None: nobody has said.
        swap_device_bytes: Size of the device that it swaps to when it is told to; None: no `swap_device` is set, or
            no borrower answers.
        swap_attached_bytes: Size of the swap that is on that device; 0: none is; None: none, and it has no such size.
        swap_problem: Why that is not what is wanted; None: it is, or nobody has said.
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
    lend_ordered_bytes: int | None = None
    lend_limit_bytes: int | None = None
    lend_problem: str | None = None
    swap_ordered_bytes: int | None = None
    swap_device_bytes: int | None = None
    swap_attached_bytes: int | None = None
    swap_problem: str | None = None
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
_AWAY = "its agent is not connected"


def memory_of(
    report: m.Report,
    donor: m.DonorFacts | None,
    borrower: m.BorrowerFacts | None,
    swap: m.SwapFacts | None = None,
) -> NodeMemory:
    """What a report says; ``donor``, ``borrower``, ``swap``: what its services say in full, None: it has none.

    An agent of the version before says of its donor what other nodes need, and nothing of its borrower.
    """
    lent = None if donor is None else donor.lent
    if lent is None and report.donor is not None:
        lent = m.LentMemory(lent_bytes=report.donor.lent_bytes, lendable_bytes=report.donor.free_bytes)
    borrowed = None if borrower is None else borrower.borrowed
    limits: dict[str, Any] = {}
    if donor is not None:
        limits = {"lend_limit_bytes": donor.limit_bytes, "lend_problem": donor.limit_problem or None}
    if swap is not None:
        has_device = swap.device_bytes is not None
        limits |= {
            "swap_device_bytes": swap.device_bytes,
            "swap_attached_bytes": swap.attached_bytes if has_device or swap.attached_bytes else None,
            "swap_problem": swap.problem or None,
        }
    return NodeMemory(**_fields(lent), **_fields(borrowed), **limits)


def _fields(record: m.LentMemory | m.BorrowedMemory | None) -> dict[str, Any]:
    return {} if record is None else m.fields_of(type(record), record)


def with_orders(
    memory: NodeMemory | None,
    *,
    lend_bytes: int | None,
    swap_bytes: int | None,
    bound_bytes: int | None = None,
    lend_refusal: str = "",
    swap_refusal: str = "",
) -> NodeMemory:
    """A node's memory with what operators have ordered of it, and why that is not so.

    Args:
        memory: As its agent said last; None: it has not reported to this manager.
        lend_bytes: The most that it may lend; None: nobody has said.
        swap_bytes: Size that its swap is to have; None: nobody has said.
        bound_bytes: The most that its donor is told to lend, by jobs there as well; None: by the operator alone.
        lend_refusal: Why no order about what it lends counts there; empty: it does.
        swap_refusal: The same of its swap.
    """
    shown = NO_MEMORY if memory is None else memory
    if lend_bytes is not None:
        problem = _AWAY if memory is None else lend_refusal or _lend_problem(memory, lend_bytes, bound_bytes)
        shown = structs.replace(shown, lend_ordered_bytes=lend_bytes, lend_problem=problem or None)
    if swap_bytes is not None:
        problem = _AWAY if memory is None else swap_refusal or _swap_problem(memory, swap_bytes)
        shown = structs.replace(shown, swap_ordered_bytes=swap_bytes, swap_problem=problem or None)
    return shown


def _lend_problem(memory: NodeMemory, ordered_bytes: int, bound_bytes: int | None) -> str:
    lend_bytes = ordered_bytes if bound_bytes is None else bound_bytes
    if memory.lend_problem:
        return memory.lend_problem
    if memory.lend_limit_bytes != lend_bytes:
        # A node without a donor lends nothing, as it may be wanted.
        return "" if memory.lent_bytes is None and not lend_bytes else "its agent has yet to tell the donor"
    return "what is lent beyond it is on its way back" if (memory.lent_bytes or 0) > lend_bytes else ""


def _swap_problem(memory: NodeMemory, swap_bytes: int) -> str:
    if memory.swap_problem:
        return memory.swap_problem
    granules = swap_bytes // GRANULE_BYTES  # as nodes have it
    return "" if granules_of(memory.swap_attached_bytes or 0) == granules else "its agent has yet to see to it"
