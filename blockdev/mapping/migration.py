"""Plan of a recall: what happens to the granules of slabs that a donor wants back. PURE.

`recall.py` carries the plan out.

Each granule moves to an extent on another donor while there is time and room, so that its pages stay remote; the rest
falls to the disk (or to the replica that it has). Which ones move is decided by activity: what is used most stays
remote. [infiniswap §2.4.4 drops all to disk; ours moves first, see docs/papers.md]
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from farside.blockdev.mapping.activity import Assignment, SlabView, pack

# What a mover is expected to copy; it bounds what is worth starting. Measured: 1.2 million over shm, see benchmarks.
COPY_PAGES_PER_S = 250_000.0


class Why(Enum):
    """Reason why a granule does not move."""

    EMPTY = "no page of it is in remote memory"
    NO_ROOM = "no other donor has an extent for it"
    NO_TIME = "the deadline is too near"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A granule with a mapping on a recalled slab."""

    granule: int
    slab: int
    live_pages: int  # pages with content, 0..512
    activity: float  # page I/O a second of its region
    other_donors: frozenset[int] = frozenset()  # donors of its other mappings; a copy must not join one of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """A donor wants these slabs back within ``deadline_s``."""

    donor: int
    slabs: frozenset[int]
    deadline_s: float
    residents: tuple[Resident, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A granule that loses this mapping without a new one, and the reason."""

    granule: int
    why: Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where granules go; ``wanting`` lists those a newly leased slab could still save, most active first."""

    moves: tuple[Assignment, ...]
    falls: tuple[Fall, ...]

    @property
    def wanting(self) -> tuple[int, ...]:
        """Granules that fall for want of room only."""
        return tuple(f.granule for f in self.falls if f.why is Why.NO_ROOM)


def plan_recall(
    recall: Recall, slabs: Iterable[SlabView], *, granules_per_region: int, pages_per_s: float = COPY_PAGES_PER_S
) -> Plan:
    """Moves for one recall: busiest granules first, as many as fit in free extents elsewhere and in the time there is.

    ``slabs`` are all slabs with room; those of the recalling donor are left out here. No extent is given twice, no
    granule goes to the recalling donor or to a donor that has its other copy. A deadline of 0 moves nothing.
    """
    # By activity, then by pages. The number last, so that a plan does not depend on the order of what is given.
    order = sorted(recall.residents, key=lambda r: (-r.activity, -r.live_pages, r.granule))
    live = [r for r in order if r.live_pages > 0]
    budget_pages = recall.deadline_s * pages_per_s
    in_time: list[Resident] = []
    late: list[Resident] = []
    for resident in live:
        # Strictly in this order: a small granule does not overtake a busier one that has no time left.
        budget_pages -= resident.live_pages
        (in_time if budget_pages >= 0 else late).append(resident)

    targets = [v for v in slabs if v.donor != recall.donor and v.slab not in recall.slabs]
    banned = {r.granule: r.other_donors for r in in_time}
    packing = pack((r.granule for r in in_time), targets, granules_per_region=granules_per_region, banned_donors=banned)
    falls = [Fall(granule=r.granule, why=Why.EMPTY) for r in order if r.live_pages == 0]
    falls += [Fall(granule=c, why=Why.NO_ROOM) for c in packing.unmapped]
    falls += [Fall(granule=r.granule, why=Why.NO_TIME) for r in late]
    return Plan(moves=packing.assigned, falls=tuple(falls))
