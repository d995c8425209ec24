"""Commitment of the whole device: every granule gets its mappings, used or not, and new ones after a loss.

Without a disk (replica, none) that is so before the device is offered: it must never promise more than donors have
committed. With a disk it is so where donors_hold asks for it, as far as donors have room, busy granules first:
the device is offered at once, and what the disk alone has until then is copied to donors by the engine's mover.

Mappings of one granule are on different donors. [infiniswap has a disk always, and maps hot slabs; see docs/papers.md]
"""

from farside.blockdev.context import Context
from farside.blockdev.mapping.mapper import Mapper
from farside.log import get_log

log = get_log("blockdev.commit")


class Committer:
    """Keeps ``context.deficient`` empty by giving those granules mappings."""

    def __init__(self, context: Context, mapper: Mapper) -> None:
        self._context = context
        self._mapper = mapper
        self._told = 0  # granules without a mapping when the log last said so
        if context.is_committed:
            context.deficient.update(range(len(context.activity.counters)))  # all, until each was looked at

    @property
    def complete(self) -> bool:
        """True when the device may be offered to clients: it has a disk, or all of it has had its mappings."""
        return self._context.has_disk or self._context.table.committed

    async def restore(self) -> None:
        """Gives granules with too few mappings new ones, as far as donors have room; the engine fills them."""
        context = self._context
        if self.complete and self._mapper.has_no_room:
            return  # nothing to gain, and half a million granules to look at would fill each second
        # One mapping more for each granule in a round: the second one must not share a donor with the first.
        for _ in range(context.config.copies):
            lacking = sorted(filter(self._lacks, context.deficient), key=lambda c: (-self._rate(c), c))
            if not lacking:
                break
            await self._mapper.add_mappings(lacking, lacks=self._lacks, banned=self._donors)
        context.deficient = {c for c in context.deficient if self._lacks(c) or self._is_moving(c)}
        if not context.deficient and not context.table.committed:
            context.table.committed = True
            context.table.save()
            log.info(
                "the whole device is committed", granules=len(context.activity.counters), mappings=context.config.copies
            )
        elif not context.table.committed and len(context.deficient) != self._told:
            log.warning("waiting for donors: not all of the device has a mapping", granules=len(context.deficient))
        self._told = len(context.deficient)

    def _rate(self, granule: int) -> float:
        return self._context.activity.rates[self._context.region_of(granule)]

    def _lacks(self, granule: int) -> bool:
        context = self._context
        return not self._is_moving(granule) and len(context.table.live_mappings(granule)) < context.config.copies

    def _is_moving(self, granule: int) -> bool:
        # recall.py is looking for a new mapping of it; two searches might lease for the same granule.
        return not self._context.recalled.isdisjoint(self._context.table.mappings(granule))

    def _donors(self, granule: int) -> frozenset[int]:
        slabs = self._context.table.slabs
        return frozenset(slabs[number].donor for number in self._context.table.mappings(granule))
