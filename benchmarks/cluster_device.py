"""One machine's swap device in the simulated cluster: what is used of it, how active that is, and where it is held.

All decisions are farside.blockdev's own functions: the activity EWMA and HotSlab, packing, and what moves at a recall.
A device is looked at in granules of 256 MiB where the live one has granules of 2 MiB; otherwise a thousand devices
would take an hour.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from farside.blockdev.mapping.activity import (
    Assignment,
    SlabView,
    activity_law,
    first_activity,
    next_activity,
    pack,
    wanting_granules,
)
from farside.blockdev.mapping.migration import Recall, Resident, plan_recall

GRANULE_BYTES = 256 << 20
GRANULE_PAGES = GRANULE_BYTES // 4096
GRANULES_PER_GIB = (1 << 30) // GRANULE_BYTES
COUNTER_MASK = 0xFFFFFFFF

# Page I/O of paged-out memory, ours: most of it well above HotSlab's 20, some hardly touched once it is written.
BUSY_PAGES_PER_S_PER_GIB = 200.0
QUIET_PAGES_PER_S_PER_GIB = 2.0
QUIET_SHARE = 0.3
# Linux 6.1 spreads the first pages that it swaps: every 64 MiB is touched once 3 % of the device is used (measured).
SPREAD_SHARE = 0.03


class Layout(Enum):
    """How regions of the device come to slabs."""

    PACKED = "packed"  # ours: used granules are packed, so slabs follow what is paged out
    DIRECT = "direct"  # the paper's: a slab for each region, and Linux touches all regions


Lend = Callable[[int, frozenset[int]], tuple[int, int] | None]
"""Asks for a slab, given a region and banned donors: (slab, donor), or None when nobody has room."""
Return = Callable[[int], None]
"""Gives a slab back."""


@dataclass(slots=True, kw_only=True)
class Held:
    """A slab that the device has leased. Mutable: its free extents come and go."""

    donor: int
    region: int
    free: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What became of a recalled slab's pages."""

    moved_pages: int
    dropped_pages: int


class Device:
    """A swap device: owner of its activity, of its slabs and of which granule is where."""

    def __init__(self, *, size_bytes: int, slab_bytes: int, layout: Layout, rng: random.Random) -> None:
        self._layout = layout
        self._per_slab = slab_bytes // GRANULE_BYTES
        law = activity_law(slab_bytes=slab_bytes, alpha=0.2, hot_pages_per_s_per_gib=20.0, cold_pages_per_s_per_gib=0.0)
        self._law = replace(law, granules_per_region=self._per_slab)
        granules = size_bytes // GRANULE_BYTES
        self._busy = [rng.random() >= QUIET_SHARE for _ in range(granules // self._per_slab)]
        self._counters = [0] * granules
        self._activity = first_activity(self._counters, self._law)
        self._used = 0
        self._pages_per_granule = 0
        self.slabs: dict[int, Held] = {}
        self._mappings: dict[int, tuple[int, int]] = {}  # granule -> (slab, extent)

    @property
    def remote_pages(self) -> int:
        """Pages that donors hold."""
        return len(self._mappings) * self._pages_per_granule

    @property
    def donors(self) -> Mapping[int, int]:
        """How many slabs each donor has of this device."""
        count: dict[int, int] = {}
        for held in self.slabs.values():
            count[held.donor] = count.get(held.donor, 0) + 1
        return count

    def slab_activity(self, slab: int) -> float:
        """Page I/O a second per GiB of the slab: what ACTIVITY would answer."""
        granules = (g for g, (mapping, _) in self._mappings.items() if mapping == slab)
        rates = sum(self._activity.rates[g // self._per_slab] / self._per_slab for g in granules)
        return rates * GRANULES_PER_GIB / self._per_slab

    def page(self, paged_bytes: int, lend: Lend, give_back: Return) -> None:
        """One second in which the machine has so much paged out: activity, what is freed, and what is leased."""
        self._use(paged_bytes)
        if not self._used and not self.slabs:
            return
        counters = self._count(paged_bytes)
        self._activity = next_activity(self._activity, counters, self._law)
        self._counters = counters
        self._free_unused(give_back)
        wanting = wanting_granules(self._activity, self._law, wanted=frozenset(), mapped=self._mappings.keys())
        for group in self._groups(wanting):
            self._map(group, lend)

    def recall(self, slab: int, deadline_s: float, lend: Lend) -> Moved:
        """The donor wants the slab back: moves what it can in that time, drops the rest, and forgets the slab."""
        donor = self.slabs[slab].donor
        residents = tuple(
            Resident(granule=g, slab=slab, live_pages=self._pages_per_granule, activity=self._rate(g))
            for g, (mapping, _) in self._mappings.items()
            if mapping == slab
        )
        order = Recall(donor=donor, slabs=frozenset({slab}), deadline_s=deadline_s, residents=residents)
        targets = self._views(residents[0].granule // self._per_slab) if residents else []
        plan = plan_recall(order, targets, granules_per_region=self._per_slab)
        if plan.wanting and self._lease(plan.wanting, frozenset({donor}), lend):
            plan = plan_recall(
                order, self._views(plan.wanting[0] // self._per_slab), granules_per_region=self._per_slab
            )
        for resident in residents:
            del self._mappings[resident.granule]
        del self.slabs[slab]
        self._assign(plan.moves)
        pages = self._pages_per_granule
        return Moved(moved_pages=len(plan.moves) * pages, dropped_pages=(len(residents) - len(plan.moves)) * pages)

    def _use(self, paged_bytes: int) -> None:
        granules = len(self._counters)
        if self._layout is Layout.PACKED:
            self._used = min(granules, -(-paged_bytes // GRANULE_BYTES))
        else:
            touched = paged_bytes / (SPREAD_SHARE * granules * GRANULE_BYTES)
            self._used = min(granules, -int(-touched * granules // 1))
        self._pages_per_granule = min(GRANULE_PAGES, paged_bytes // 4096 // self._used) if self._used else 0

    def _count(self, paged_bytes: int) -> list[int]:
        per_granule = paged_bytes / (1 << 30) / max(1, self._used)
        counters = list(self._counters)
        for granule in range(self._used):
            busy = self._busy[granule // self._per_slab]
            pages = per_granule * (BUSY_PAGES_PER_S_PER_GIB if busy else QUIET_PAGES_PER_S_PER_GIB)
            if not counters[granule]:
                pages += self._pages_per_granule  # it is written for the first time
            counters[granule] = (counters[granule] + int(pages)) & COUNTER_MASK
        return counters

    def _free_unused(self, give_back: Return) -> None:
        for granule in [g for g in self._mappings if g >= self._used]:
            slab, extent = self._mappings.pop(granule)
            self._counters[granule] = 0
            self.slabs[slab].free.append(extent)
        for slab in [s for s, held in self.slabs.items() if len(held.free) == self._per_slab]:
            del self.slabs[slab]
            give_back(slab)

    def _groups(self, granules: tuple[int, ...]) -> list[list[int]]:
        if self._layout is Layout.PACKED:
            return [list(granules)] if granules else []
        groups: dict[int, list[int]] = {}
        for granule in granules:
            groups.setdefault(granule // self._per_slab, []).append(granule)
        return list(groups.values())

    def _map(self, granules: Iterable[int], lend: Lend) -> None:
        wanted = list(granules)
        region = wanted[0] // self._per_slab
        packing = pack(wanted, self._views(region), granules_per_region=self._per_slab)
        self._assign(packing.assigned)
        if packing.unmapped and self._lease(packing.unmapped, frozenset(), lend):
            again = pack(packing.unmapped, self._views(region), granules_per_region=self._per_slab)
            self._assign(again.assigned)

    def _views(self, region: int) -> list[SlabView]:
        held = self.slabs.items()
        if self._layout is Layout.DIRECT:
            held = {s: h for s, h in held if h.region == region}.items()
        return [SlabView(slab=s, donor=h.donor, region=h.region, free=tuple(h.free)) for s, h in held if h.free]

    def _lease(self, unmapped: tuple[int, ...], banned: frozenset[int], lend: Lend) -> bool:
        region = unmapped[0] // self._per_slab
        for _ in range(math.ceil(len(unmapped) / self._per_slab)):
            lent = lend(region, banned)
            if lent is None:
                return False
            slab, donor = lent
            self.slabs[slab] = Held(donor=donor, region=region, free=list(range(self._per_slab)))
        return True

    def _assign(self, assignments: Iterable[Assignment]) -> None:
        for assignment in assignments:
            self._mappings[assignment.granule] = (assignment.slab, assignment.extent)
            self.slabs[assignment.slab].free.remove(assignment.extent)

    def _rate(self, granule: int) -> float:
        return self._activity.rates[granule // self._per_slab]
