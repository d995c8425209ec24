"""Mapper: assigns granules of the device to extents at donors: busy ones with a disk, otherwise all (commit.py).

How it works. ``add_mappings`` packs granules into free extents, leases a slab where there is none, and packs again.
Only one call of it runs at a time, so that they never lease for the same granules. Within it, packing and the calls
into the engine happen without a wait in between, so extents that change hands meanwhile are seen.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable, Sequence

from farside.blockdev.context import Context
from farside.blockdev.mapping.activity import Activity, Assignment, cold_regions, pack, wanting_granules
from farside.blockdev.mapping.lease import Leaser
from farside.errors import EngineError
from farside.log import get_log

GRANULES_AT_ONCE = 2048  # a second, 4 GiB: all that a disk which fails alone has is half a million in a TiB

log = get_log("blockdev.mapper")


def apply_assignments(context: Context, assignments: Sequence[Assignment]) -> tuple[Assignment, ...]:
    """Give granules their extents in table and engine; return the assignments that the engine took.

    A granule that is being drained (EBUSY) or has three mappings already (ENOSPC) is left for a later tick.
    """
    if not assignments:
        return ()
    # Saved before the engine maps (mapping/table.py): a successor must find each extent in use that the engine uses.
    context.table.take(assignments)
    context.table.save()
    mapped = []
    for a in assignments:
        try:
            context.engine.cluster_map(a.granule, a.slab, a.extent)
        except EngineError as error:
            if error.errno not in (errno.EBUSY, errno.ENOSPC):
                log.error("a granule can't be mapped", granule=a.granule, slab=a.slab, reason=error)
            # Not saved: a successor finds that the engine does not use it.
            context.table.give(a.granule, a.slab)
            continue
        mapped.append(a)
    return tuple(mapped)


def start_granule_drain(context: Context, granule: int, slab: int) -> None:
    """Has the engine empty a granule's mapping on a slab; CLUSTER_DRAINED frees the extent.

    Never twice: the second job would empty what may have been mapped there since.
    """
    if (granule, slab) in context.granule_drains:
        return
    try:
        context.engine.cluster_drain(granule, slab)
    except EngineError as error:
        log.warning("a granule can't be unmapped", granule=granule, slab=slab, reason=error)
        return
    context.granule_drains.add((granule, slab))


class Mapper:
    """Mapping of granules for one device."""

    def __init__(self, context: Context, leaser: Leaser) -> None:
        self._context = context
        self._leaser = leaser
        self._one_at_a_time = asyncio.Lock()

    @property
    def has_no_room(self) -> bool:
        """True for a while after all donors have refused; see `Leaser.is_quiet`."""
        return self._leaser.is_quiet

    async def map_hot(self) -> None:
        """Gives hot granules without a mapping an extent. [infiniswap §2.4.1]"""
        context = self._context
        mapped = set(context.table.mapped())  # those being emptied included
        context.wanted -= mapped
        wanting = wanting_granules(
            context.activity, context.law, wanted=context.wanted, mapped=mapped, is_disk_well=context.is_disk_well
        )
        # Not queued behind a pass that waits for donors: this comes again every second, with newer figures.
        if wanting and not self._one_at_a_time.locked():
            now = wanting[:GRANULES_AT_ONCE]
            done = await self.add_mappings(
                now, lacks=lambda c: not context.table.mappings(c), banned=lambda _: frozenset()
            )
            context.wanted.difference_update(a.granule for a in done)

    def unmap_cold(self, last: Activity) -> None:
        """Takes the extents of regions that have just turned cold, where a ColdSlab threshold is set."""
        context, size = self._context, self._context.law.granules_per_region
        for number in cold_regions(last, context.activity) if context.law.cold_pages_per_s > 0 else ():
            for granule in range(number * size, (number + 1) * size):
                self.unmap(granule)

    def unmap(self, granule: int) -> None:
        """Starts taking the granule's extents back; they are free after CLUSTER_DRAINED."""
        for slab in self._context.table.live_mappings(granule):
            start_granule_drain(self._context, granule, slab.slab)

    async def add_mappings(
        self,
        granules: Sequence[int],
        *,
        lacks: Callable[[int], bool],
        banned: Callable[[int], frozenset[int]],
    ) -> tuple[Assignment, ...]:
        """Gives each granule one more mapping, leasing slabs as needed; returns what was done.

        ``lacks``: whether a granule still wants one; ``banned``: donors that it must not go to. Both are asked again
        after each wait, because a recall may have moved the granule. Those that nobody has room for are left out.
        """
        async with self._one_at_a_time:
            done: list[Assignment] = []
            # A region at a time keeps packing linear, and gives a region its own slab.
            for chunk in _by_region(granules, self._context):
                done += await self._place_chunk(chunk, lacks, banned)
            return tuple(done)

    async def _place_chunk(
        self, chunk: Sequence[int], lacks: Callable[[int], bool], banned: Callable[[int], frozenset[int]]
    ) -> list[Assignment]:
        done: list[Assignment] = []
        left = list(chunk)
        while left := [c for c in left if lacks(c)]:
            # Asked anew in each round: the lease below waits, and a recall may move mappings meanwhile.
            bans = {c: banned(c) for c in left}
            packing = pack(
                left,
                self._context.table.open_views(),
                granules_per_region=self._context.law.granules_per_region,
                banned_donors=bans,
            )
            done += apply_assignments(self._context, packing.assigned)
            if not packing.unmapped:
                break
            first = packing.unmapped[0]
            region, slab = self._context.region_of(first), None
            # All donors have refused lately: packing uses the room that there is, and asks nobody.
            if not self._leaser.is_quiet:
                slab = await self._leaser.lease_slab(region=region, banned=bans[first])
            # No donor that this granule may go to has room. The same holds for all that are kept from the same donors.
            left = [c for c in packing.unmapped if slab is not None or bans[c] != bans[first]]
        return done


def _by_region(granules: Iterable[int], context: Context) -> Iterable[list[int]]:
    chunks: dict[int, list[int]] = {}
    for granule in granules:
        chunks.setdefault(context.region_of(granule), []).append(granule)
    return chunks.values()
