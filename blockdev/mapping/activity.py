"""Activity of regions, and packing: which regions are hot, and which extent each granule gets. PURE.

How it works. A region is a fixed part of the device as large as a slab, the unit that the paper's EWMA is kept for. A
granule (2 MiB) is what gets memory; an extent (2 MiB of a leased slab) is the memory that it gets. Once a second the
engine's cumulative counters become a rate per region; a region that crosses HotSlab gets extents for those of its
granules that are used, not for all of them. [infiniswap §2.4.1; ours maps granules, because Linux spreads the first
pages it swaps over the whole device, so that whole slabs would all go hot at 3 % fill. See docs/papers.md]
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum

from farside.geometry import GRANULE_BYTES

GIB = 1 << 30
BLOCK_REGIONS = 128  # about the square root of the number of regions that 1 TiB has
HOT_FLOOR_PAGES_PER_S = 1.0  # below it a single burst of five pages would lease a small slab


class RegionState(Enum):
    """Heat of a region; it keeps its state between the two thresholds."""

    COLD = "cold"
    HOT = "hot"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivityLaw:
    """Parameters of the EWMA and its thresholds, in page I/O a second for one region."""

    granules_per_region: int
    alpha: float = 0.2
    hot_pages_per_s: float
    cold_pages_per_s: float = 0.0  # 0: a region never turns cold by itself, as in the paper's own implementation


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """State kept from second to second: the last counters, a rate and a state for each region."""

    counters: Sequence[int]
    rates: tuple[float, ...]
    states: tuple[RegionState, ...]
    touched: Mapping[int, int] = field(default_factory=dict)  # page I/O of the last period, granules with some


def activity_law(
    *, slab_bytes: int, alpha: float, hot_pages_per_s_per_gib: float, cold_pages_per_s_per_gib: float
) -> ActivityLaw:
    """The law for one slab size: the paper's 20 page I/O a second is for 1 GiB and scales with the slab.

    The hot threshold has a floor of ``HOT_FLOOR_PAGES_PER_S``. The cold one is at most half the hot one (hysteresis).
    [infiniswap §2.4.1]
    """
    share = slab_bytes / GIB
    hot = max(HOT_FLOOR_PAGES_PER_S, hot_pages_per_s_per_gib * share)
    return ActivityLaw(
        granules_per_region=slab_bytes // GRANULE_BYTES,
        alpha=alpha,
        hot_pages_per_s=hot,
        cold_pages_per_s=min(cold_pages_per_s_per_gib * share, hot / 2),
    )


def first_activity(counters: Sequence[int], law: ActivityLaw, rates: Sequence[float] = ()) -> Activity:
    """The state at the start: every region cold, its rate zero. [infiniswap §2.4.1, "initialized to zero"]

    A successor starts with the ``rates`` that the process before had. States follow from them; a region between the
    thresholds counts as hot, because what it has mapped must turn cold once to be given back.
    """
    regions = -(-len(counters) // law.granules_per_region)
    known = tuple(rates) if len(rates) == regions else (0.0,) * regions
    states = tuple(_next_state(RegionState.HOT, rate, law) for rate in known)
    return Activity(counters=counters, rates=known, states=states)


def next_activity(last: Activity, counters: Sequence[int], law: ActivityLaw, *, elapsed_s: float = 1.0) -> Activity:
    """The state one period later: A_current = alpha * A_measured + (1 - alpha) * A_old for each region.

    ``counters`` are cumulative page I/O per granule and wrap at 2^32. ``elapsed_s`` turns the difference into a rate
    when a tick came late; the weight stays alpha. [infiniswap §2.4.1]
    """
    assert len(counters) == len(last.counters)
    size = law.granules_per_region
    kept = 1 - law.alpha
    rates = [kept * rate for rate in last.rates]
    touched: dict[int, int] = {}
    for start in _unequal_regions(last.counters, counters, size):
        old, new = last.counters[start : start + size], counters[start : start + size]
        deltas = [(b - a) & 0xFFFFFFFF for a, b in zip(old, new, strict=True)]
        rates[start // size] += law.alpha * sum(deltas) / elapsed_s
        touched.update((start + i, delta) for i, delta in enumerate(deltas) if delta)
    # Nearly all regions of a large device are below every threshold: those need no call of a function.
    quiet = law.cold_pages_per_s or law.hot_pages_per_s  # below it a region is cold whatever it was
    cold = RegionState.COLD
    pairs = zip(last.states, rates, strict=True)
    states = [cold if rate < quiet else _next_state(state, rate, law) for state, rate in pairs]
    return Activity(counters=counters, rates=tuple(rates), states=tuple(states), touched=touched)


def _unequal_regions(old: Sequence[int], new: Sequence[int], size: int) -> Iterator[int]:
    # Where the regions begin whose counters differ. Compared as memory, and in large blocks first: a second of an idle
    # device of 1 TiB, which has half a million counters, must cost next to nothing.
    if old == new:
        return
    for block in range(0, len(new), BLOCK_REGIONS * size):
        end = block + BLOCK_REGIONS * size
        if old[block:end] != new[block:end]:
            for start in range(block, min(end, len(new)), size):
                if old[start : start + size] != new[start : start + size]:
                    yield start


def _next_state(state: RegionState, rate: float, law: ActivityLaw) -> RegionState:
    if rate >= law.hot_pages_per_s:
        return RegionState.HOT
    if law.cold_pages_per_s > 0:
        return RegionState.COLD if rate < law.cold_pages_per_s else state
    # Without a ColdSlab threshold "hot" only says: above HotSlab now. What is mapped stays mapped either way.
    return RegionState.COLD


def cold_regions(last: Activity, now: Activity) -> tuple[int, ...]:
    """Regions that have just turned from hot to cold: with a ColdSlab threshold their extents go back to the donors."""
    pairs = enumerate(zip(last.states, now.states, strict=True))
    return tuple(i for i, (old, new) in pairs if old is RegionState.HOT and new is RegionState.COLD)


def next_slab_rates(
    last: Mapping[int, float], slabs: Iterable[int], pages: Mapping[int, int], *, alpha: float, elapsed_s: float
) -> dict[int, float]:
    """Page I/O a second for each slab, smoothed as for a region: the answer to CHECK_ACTIVITY.

    ``pages`` is the page I/O of the granules on a slab in the last period. It is the slab's own figure, because
    granules of several regions may share one. [infiniswap §2.4.1, §2.5.2]
    """
    return {
        slab: alpha * pages.get(slab, 0) / elapsed_s + (1 - alpha) * last.get(slab, 0.0) for slab in slabs
    }  # fmt: skip


def wanting_granules(
    activity: Activity, law: ActivityLaw, *, wanted: Set[int], mapped: Set[int], is_disk_well: bool = True
) -> tuple[int, ...]:
    """Granules that should get an extent now, in order of their region's rate, highest first.

    A granule wants one when its region is hot, it has none, and it was used in the last second or the engine said that
    it has pages that no donor has (``wanted``). While the disk fails, those of the latter kind want one however seldom
    they are used: without it their writes fail, and so may their reads.
    """
    candidates = (activity.touched.keys() | wanted) - mapped
    unmapped = frozenset[int]() if is_disk_well else wanted
    found = (c for c in candidates if c in unmapped or activity.states[c // law.granules_per_region] is RegionState.HOT)
    return tuple(sorted(found, key=lambda c: (-activity.rates[c // law.granules_per_region], c)))


# ------------------------------------------------------------------ packing


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabView:
    """A leased slab as the packing sees it."""

    slab: int
    donor: int
    region: int  # the region that it was leased for; granules of that region prefer it
    free: tuple[int, ...]  # extents with no granule


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A granule and the extent it gets."""

    granule: int
    slab: int
    extent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Where granules go, and those for which a slab has to be leased first (all that had no room)."""

    assigned: tuple[Assignment, ...]
    unmapped: tuple[int, ...]


def pack(
    granules: Iterable[int],
    slabs: Iterable[SlabView],
    *,
    granules_per_region: int,
    banned_donors: Mapping[int, frozenset[int]] | None = None,
) -> Packing:
    """Give each granule a free extent: of its region's own slab first, then of any slab, fullest first.

    ``banned_donors`` names the donors a granule must not go to, such as the one that has its other copy. No extent is
    given twice. [infiniswap §2.4.1; the paper maps each slab by itself, see docs/papers.md]
    """
    views = {view.slab: view for view in slabs}
    banned = banned_donors or {}
    assigned: list[Assignment] = []
    unmapped: list[int] = []
    for granule in granules:
        view = _best_slab(views.values(), granule // granules_per_region, banned.get(granule, frozenset()))
        if view is None:
            unmapped.append(granule)
            continue
        assigned.append(Assignment(granule=granule, slab=view.slab, extent=view.free[0]))
        views[view.slab] = replace(view, free=view.free[1:])
    return Packing(assigned=tuple(assigned), unmapped=tuple(unmapped))


def _best_slab(views: Iterable[SlabView], region: int, banned: frozenset[int]) -> SlabView | None:
    usable = [v for v in views if v.free and v.donor not in banned]
    # Fullest first keeps other slabs empty, and an empty slab can be given back whole.
    return min(usable, key=lambda v: (v.region != region, len(v.free), v.slab), default=None)
