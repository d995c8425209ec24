"""Replica and no protection: every cluster has its homes before the device is offered, and gets them back after a loss.

There is no disk to fall back to, so the device must never promise more than donors have committed. Homes of one cluster
are on different donors. [infiniswap has a disk always; see docs/papers.md]
"""

from farside.blockdev.context import Context
from farside.blockdev.mapper import Mapper
from farside.kmod_shim.engine.binding import Protection
from farside.log import get_log

log = get_log("blockdev.commit")


class Committer:
    """Keeps ``context.deficient`` empty by giving those clusters homes."""

    def __init__(self, context: Context, mapper: Mapper) -> None:
        self._context = context
        self._mapper = mapper
        if self.needed:
            context.deficient.update(range(len(context.activity.counters)))

    @property
    def needed(self) -> bool:
        """True when this device has no disk behind it."""
        return self._context.protection is not Protection.DISK

    @property
    def complete(self) -> bool:
        """True once the whole device has had its homes: it may be offered to clients."""
        return not self.needed or self._context.table.committed

    async def restore(self) -> None:
        """Gives clusters with too few homes new ones, as far as donors have room; the engine fills them."""
        context = self._context
        for _ in range(context.copies):
            lacking = [cluster for cluster in sorted(context.deficient) if self._lacks(cluster)]
            if not lacking:
                break
            await self._mapper.place(lacking, lacks=self._lacks, banned=self._donors)
        context.deficient = {c for c in context.deficient if self._lacks(c) or self._is_moving(c)}
        if not context.deficient and not context.table.committed:
            context.table.committed = True
            context.table.save()
            log.info("the whole device is committed", clusters=len(context.activity.counters), homes=context.copies)
        elif context.deficient and not context.table.committed:
            log.warning("waiting for donors: not all of the device has a home", clusters=len(context.deficient))

    def _lacks(self, cluster: int) -> bool:
        return not self._is_moving(cluster) and len(self._context.table.live_homes(cluster)) < self._context.copies

    def _is_moving(self, cluster: int) -> bool:
        # recall.py is looking for a place for it.
        return not self._context.recalled.isdisjoint(self._context.table.homes(cluster))

    def _donors(self, cluster: int) -> frozenset[int]:
        slabs = self._context.table.slabs
        return frozenset(slabs[number].donor for number in self._context.table.homes(cluster))
