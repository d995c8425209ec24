"""Headroom: how many slabs a donor may keep, by the paper's memory management. PURE.

Everybody else's memory use, U, is measured each period and smoothed [infiniswap §2.5.1]. What neither they nor our
slabs use is free; HeadRoom of it must stay free, always. Above, slabs are made ahead of time; below, slabs are given
back: unmapped ones at once, then mapped ones by recall (``slab/eviction.py``).

Where we differ from the paper, and why (docs/papers.md):

* U starts as the first sample, not as 0: from 0 the average needs ten seconds to reach the truth, and a donor that
  starts on a full machine would lend memory in that time that is not there.
* U comes from MemAvailable, which knows that page cache can be dropped; the paper's code uses MemFree.
* Growing needs HeadRoom and a hysteresis, giving back only HeadRoom; otherwise a slab could come and go every second.
* Growing looks at the larger of the average and the newest sample, so that a sudden use of memory stops it at once.
  Giving back does so too once half of HeadRoom is really gone: then it is no peak that the average should hide.
* Not all that is free is made into slabs ahead of time, only ``preallocate_slabs``: a slab made is memory that the page
  cache loses.
* How long a borrower gets to move a recalled slab shrinks with what is left; when programs already stall (PSI) it gets
  no time to move anything. That holds for slabs already on their way, too: the time that they got ends.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadroomParams:
    """Parameters by the operator; all resolved (only `max_slabs` and the PSI limit may be zero)."""

    slab_bytes: int
    headroom_bytes: int  # HeadRoom: stays free
    hysteresis_bytes: int  # above HeadRoom before more slabs are made
    preallocate_slabs: int  # kept ready, unmapped
    max_slabs: int = 0  # 0: as many as memory allows
    psi_full_pct_limit: float = 0.0  # 0: pressure is not looked at
    migrate_deadline_s: float = 5.0
    evict_deadline_s: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabCounts:
    """Numbers of slabs that the policies need. ``mapped`` does not count those already ``recalled``.

    Slabs on huge pages that the operator set aside are counted apart: no program gains by their going.
    """

    unmapped: int
    mapped: int
    recalled: int = 0  # on loan, asked back, not free yet
    migrating: int = 0  # those of them that have time to move their pages
    huge_unmapped: int = 0
    huge_mapped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot(SlabCounts):
    """The donor's memory and slabs at one moment."""

    total_bytes: int
    used_bytes: float  # U: smoothed use by everybody else
    used_now_bytes: int  # the same, newest sample
    huge_free: int = 0  # slabs that could still be made there
    psi_full_pct: float | None = None  # share of time in which all programs waited for memory; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Grow:
    """Make this many slabs, unmapped."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseUnmapped:
    """Free this many slabs that nobody has."""

    count: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Get this many slabs back from borrowers. ``deadline_s`` to move the pages; 0: none, evict at once."""

    count: int
    deadline_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hasten:
    """End the time that recalled slabs have to move their pages: evict them at once."""

    reason: str


Action: TypeAlias = Grow | ReleaseUnmapped | Recall | Hasten


def default_headroom_bytes(total_bytes: int) -> int:
    """HeadRoom where none is configured: one eighth, as the paper's 8 GB of 64 GB. [infiniswap §2.5.1]"""
    return total_bytes // 8


def smoothed_use_bytes(old_bytes: float | None, measured_bytes: float, beta: float) -> float:
    """U after a sample: beta of it and the rest of the old average. [infiniswap §2.5.1; but the first sample starts it]

    Args:
        old_bytes: The average before; None before the first sample.
        measured_bytes: Memory that everybody else uses now.
        beta: Weight of the sample, 0 to 1; the paper's is 0.2 a second.
    """
    if old_bytes is None:
        return float(measured_bytes)
    return beta * measured_bytes + (1 - beta) * old_bytes


def used_by_others_bytes(*, total_bytes: int, available_bytes: int, slabs_bytes: int) -> int:
    """Memory that is neither available nor in our slabs; not below 0."""
    return max(0, total_bytes - available_bytes - slabs_bytes)


def free_bytes(snapshot: MemorySnapshot, slab_bytes: int, used_bytes: float) -> float:
    """Memory that neither others (``used_bytes``) nor standing slabs use; negative when both want the same."""
    standing = snapshot.unmapped + snapshot.mapped + snapshot.recalled
    return snapshot.total_bytes - used_bytes - standing * slab_bytes


def slabs_to_give_back(snapshot: MemorySnapshot, params: HeadroomParams) -> int:
    """How many standing slabs must go for HeadRoom to be free, beyond those that are already recalled."""
    free = _free_that_counts_bytes(snapshot, params) + snapshot.recalled * params.slab_bytes
    # Rounded up: no part of a slab can be given back.
    shortage = params.headroom_bytes - free
    by_memory = max(0, -int(-shortage // params.slab_bytes))
    # One at a time: the next only when that one is back.
    by_pressure = 1 if _is_stalling(snapshot, params) and not snapshot.recalled else 0
    return min(max(by_memory, by_pressure), snapshot.unmapped + snapshot.mapped)


def slabs_to_grow(snapshot: MemorySnapshot, params: HeadroomParams) -> int:
    """How many more slabs memory (and `max_slabs`) would bear now, ready or not asked for."""
    if _is_stalling(snapshot, params):
        return 0
    used = max(snapshot.used_bytes, snapshot.used_now_bytes)
    spare = free_bytes(snapshot, params.slab_bytes, used) - params.headroom_bytes - params.hysteresis_bytes
    # Rounded down. Huge pages are set aside already, so that slabs on them cost programs nothing.
    bearable = max(0, int(spare // params.slab_bytes)) + snapshot.huge_free
    return min(bearable, max(0, params.max_slabs - _standing(snapshot))) if params.max_slabs else bearable


def leasable_slabs(snapshot: MemorySnapshot, params: HeadroomParams) -> int:
    """Slabs that could be leased now, ready or made on demand, for FREE_MEM. [infiniswap §2.6.1, 2]

    A slab that memory wants back in the next decision is not offered.
    """
    staying = max(0, snapshot.unmapped - slabs_to_give_back(snapshot, params)) + snapshot.huge_unmapped
    return staying + slabs_to_grow(snapshot, params)


def move_deadline_s(snapshot: MemorySnapshot, params: HeadroomParams) -> float:
    """Time that borrowers get to move recalled slabs elsewhere.

    All of ``migrate_deadline_s`` while HeadRoom is whole, less in proportion to what is left of it, at least
    ``evict_deadline_s``; 0 when programs stall.
    """
    if _is_stalling(snapshot, params):
        return 0.0
    free = free_bytes(snapshot, params.slab_bytes, snapshot.used_now_bytes)
    # Without a HeadRoom there is no share of it: all of the time while anything is free.
    share = min(1.0, max(0.0, free / params.headroom_bytes)) if params.headroom_bytes else float(free > 0)
    return min(params.migrate_deadline_s, max(params.evict_deadline_s, share * params.migrate_deadline_s))


def decide(snapshot: MemorySnapshot, params: HeadroomParams) -> tuple[Action, ...]:
    """Decide on memory now: give back unmapped slabs first, then mapped ones, or make some ready.

    [infiniswap §2.5.1, §2.5.2]
    """
    back = slabs_to_give_back(snapshot, params)
    # What is on its way back counts as free, but where a new recall would get no time to move, it has none either.
    is_urgent = snapshot.migrating and move_deadline_s(snapshot, params) <= params.evict_deadline_s
    hasten = (Hasten(reason=_shortage_reason(snapshot, params)),) if is_urgent else ()
    if back or hasten:
        return (*hasten, *_give_back(snapshot, params, back))
    ready = snapshot.unmapped + snapshot.huge_unmapped
    count = min(params.preallocate_slabs - ready, slabs_to_grow(snapshot, params))
    if count <= 0:
        return ()
    return (Grow(count=count, reason=f"{ready} of {params.preallocate_slabs} slabs ready"),)


def _give_back(snapshot: MemorySnapshot, params: HeadroomParams, back: int) -> tuple[Action, ...]:
    reason = _shortage_reason(snapshot, params)
    actions: list[Action] = []
    # Nobody waits for these, and no pages have to move.
    if unmapped := min(back, snapshot.unmapped):
        actions.append(ReleaseUnmapped(count=unmapped, reason=reason))
    if mapped := back - unmapped:
        actions.append(Recall(count=mapped, deadline_s=move_deadline_s(snapshot, params), reason=reason))
    return tuple(actions)


def _shortage_reason(snapshot: MemorySnapshot, params: HeadroomParams) -> str:
    if _is_stalling(snapshot, params):
        return f"memory pressure {snapshot.psi_full_pct:.1f} % above {params.psi_full_pct_limit:.1f} %"
    free = _free_that_counts_bytes(snapshot, params)
    return f"free memory {free / 2**20:.0f} MiB below HeadRoom {params.headroom_bytes / 2**20:.0f} MiB"


def _free_that_counts_bytes(snapshot: MemorySnapshot, params: HeadroomParams) -> float:
    # The average hides peaks. Once half of HeadRoom is really gone it is none, and the newest sample counts.
    smoothed = free_bytes(snapshot, params.slab_bytes, snapshot.used_bytes)
    now = free_bytes(snapshot, params.slab_bytes, snapshot.used_now_bytes)
    return min(smoothed, now) if now < params.headroom_bytes / 2 else smoothed


def _is_stalling(snapshot: MemorySnapshot, params: HeadroomParams) -> bool:
    limit = params.psi_full_pct_limit
    return limit > 0 and snapshot.psi_full_pct is not None and snapshot.psi_full_pct > limit


def _standing(snapshot: MemorySnapshot) -> int:
    # ``max_slabs`` bounds all slabs, so those on huge pages count here.
    ordinary = snapshot.unmapped + snapshot.mapped + snapshot.recalled
    return ordinary + snapshot.huge_unmapped + snapshot.huge_mapped
