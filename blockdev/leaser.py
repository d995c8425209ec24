"""Leases one slab: draws donors, asks them, takes the least used, and goes on where one refuses.

The rule itself is ``placement.py``; here is only the talking in between. [infiniswap §2.4.2]
"""

import asyncio
import os

from farside.blockdev.context import Context
from farside.blockdev.donor_port import Grant
from farside.blockdev.placement import choose, draw
from farside.blockdev.table import Slab
from farside.errors import EngineError, PeerError
from farside.kmod_shim.engine.binding import SlabInfo
from farside.log import get_log

BACKOFF_MIN_S = 1.0
BACKOFF_MAX_S = 8.0  # after everybody refused; a donor that finds memory is heard at its next KEEPALIVE at the latest

log = get_log("blockdev.leaser")


class Leaser:
    """Leases slabs for one device, and keeps quiet for a while after all donors have refused."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._backoff_s = 0.0
        self._quiet_until_s = 0.0

    async def lease_slab(self, *, home_range: int, banned: frozenset[int] = frozenset()) -> Slab | None:
        """A new slab in the table and the engine, or None when no donor gives one. Never from a ``banned`` donor."""
        if self._context.clock.now_s() < self._quiet_until_s:
            return None
        tried = set(banned)
        while drawn := draw(
            self._context.donors.views(),
            choices=self._context.config.placement_choices,
            banned=frozenset(tried),
            rng=self._context.rng,
        ):
            answers = await asyncio.gather(*(self._context.donors.ask(donor) for donor in drawn))
            verdict = choose((answer for answer in answers if answer is not None), self._context.rng)
            if verdict.donor is None:
                tried.update(drawn)
                continue
            slab = await self._lease_from(verdict.donor, home_range, verdict.reason)
            if slab is not None:
                self._backoff_s = 0.0
                return slab
            tried.add(verdict.donor)
        if not banned:
            self._backoff_s = min(BACKOFF_MAX_S, max(BACKOFF_MIN_S, 2 * self._backoff_s))
            self._quiet_until_s = self._context.clock.now_s() + self._backoff_s
            log.info("no donor has a free slab", again_in_s=self._backoff_s)
        return None

    async def _lease_from(self, donor: int, home_range: int, reason: str) -> Slab | None:
        try:
            grant = await self._context.donors.lease(donor)
        except PeerError as error:
            log.info("no slab from a donor", donor=self._context.table.node(donor), reason=error)
            return None
        return await self._add(donor, grant, home_range, reason)

    async def _add(self, donor: int, grant: Grant, home_range: int, reason: str) -> Slab | None:
        table = self._context.table
        slab = table.add_slab(
            donor=donor, lease=grant.lease, token=grant.token, epoch=grant.epoch, home_range=home_range
        )  # fmt: skip
        table.save()
        try:
            self._context.engine.slab_add(slab_info(slab), grant.memfd)
        except EngineError as error:
            log.error("a slab can't be used", slab=slab.slab, donor=table.node(donor), reason=error)
            if grant.memfd >= 0:
                os.close(grant.memfd)
            slab.draining = slab.returned = True
            await self._return(slab)
            return None
        log.info("slab leased", slab=slab.slab, donor=table.node(donor), lease=slab.lease, choice=reason)
        return slab

    async def _return(self, slab: Slab) -> None:
        try:
            await self._context.donors.release(slab.donor, (slab.lease,))
        except PeerError:
            return  # it is in the table as returned: peers.py says so when the donor is back
        self._context.table.drop_slab(slab.slab)
        self._context.table.save()


def slab_info(slab: Slab) -> SlabInfo:
    """What the engine is told about a slab."""
    return SlabInfo(slab=slab.slab, donor=slab.donor, lease=slab.lease, epoch=slab.epoch, token=slab.token)
