"""Lease of one slab: draws donors, asks them, takes the least used, and tries the next where one refuses.

The rule itself is ``mapping/placement.py``; here is only the talking in between. [infiniswap §2.4.2]
"""

import asyncio
import os
from collections.abc import Mapping

from farside.blockdev.context import Context
from farside.blockdev.donor_port import Grant
from farside.blockdev.mapping.placement import choose, draw
from farside.blockdev.mapping.table import Slab
from farside.errors import EngineError, PeerError, Unavailable
from farside.kmod_shim.engine.binding import SlabInfo
from farside.log import get_log

# Pause after all donors have refused, doubled each time. It ends early when a donor reports more free slabs.
BACKOFF_MIN_S = 1.0
BACKOFF_MAX_S = 8.0

log = get_log("blockdev.leaser")


class Leaser:
    """Leases slabs for one device, and reports when donors should not be asked again yet."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._backoff_s = 0.0
        self._quiet_until_s = 0.0
        self._refused_with: Mapping[int, int] = {}  # what donors said they had when all of them refused

    @property
    def is_quiet(self) -> bool:
        """True for a while after all donors have refused, until one reports more free slabs (KEEPALIVE) than before.

        It counts for callers that come again every second. A recall has one attempt only, and asks in any case.
        """
        if self._context.clock.now_s() >= self._quiet_until_s:
            return False
        return all(free <= self._refused_with.get(donor, 0) for donor, free in self._free_slabs().items())

    async def lease_slab(self, *, region: int, banned: frozenset[int] = frozenset()) -> Slab | None:
        """Lease a new slab into table and engine, or return None when none is free. Never from a ``banned`` donor."""
        if self._context.table.is_full:
            self._be_quiet("no number is left for another slab")
            return None
        tried = set(banned)
        while drawn := draw(
            self._context.donors.views(),
            choices=self._context.config.placement_choices,
            banned=frozenset(tried),
            rng=self._context.rng,
        ):
            # Figures of this moment, not those of the last KEEPALIVE: other borrowers lease from the same donors.
            # [infiniswap §2.4.2]
            answers = await asyncio.gather(*(self._context.donors.ask(donor) for donor in drawn))
            verdict = choose((answer for answer in answers if answer is not None), self._context.rng)
            if verdict.donor is None:
                # Those that were asked have no room; the next draw is from the others.
                tried.update(drawn)
                continue
            slab = await self._lease_from(verdict.donor, region, verdict.reason)
            if slab is not None:
                self._backoff_s = 0.0
                return slab
            tried.add(verdict.donor)
        # A refusal under a ban says nothing of the donors that were not asked.
        if not banned:
            self._be_quiet("no donor has a free slab")
        return None

    def _be_quiet(self, reason: str) -> None:
        self._backoff_s = min(BACKOFF_MAX_S, max(BACKOFF_MIN_S, 2 * self._backoff_s))
        self._quiet_until_s = self._context.clock.now_s() + self._backoff_s
        self._refused_with = self._free_slabs()
        log.info("no donor leases a slab", reason=reason, again_in_s=self._backoff_s)

    def _free_slabs(self) -> Mapping[int, int]:
        return {view.donor: view.free_slabs for view in self._context.donors.views() if view.usable}

    async def _lease_from(self, donor: int, region: int, reason: str) -> Slab | None:
        try:
            grant = await self._context.donors.lease(donor)
        except PeerError as error:
            log.info("a donor leased no slab", donor=self._context.table.node(donor), reason=error)
            return None
        return await self._add(donor, grant, region, reason)

    async def _add(self, donor: int, grant: Grant, region: int, reason: str) -> Slab | None:
        table = self._context.table
        slab = None
        try:
            slab = table.add_slab(
                donor=donor, lease=grant.lease, token=grant.token, epoch=grant.epoch, region=region
            )  # fmt: skip
            table.save()
            # The descriptor is the engine's from here on, and ours to close when the call fails.
            self._context.engine.slab_add(slab_info(slab), grant.memfd)
        except (EngineError, OSError, Unavailable) as error:
            log.error("a leased slab can't be used", donor=table.node(donor), lease=grant.lease, reason=error)
            if grant.memfd >= 0:
                os.close(grant.memfd)
            await self._return(donor, grant.lease, slab)
            return None
        log.info("slab leased", slab=slab.slab, donor=table.node(donor), lease=slab.lease, choice=reason)
        return slab

    async def _return(self, donor: int, lease: int, slab: Slab | None) -> None:
        if slab is not None:
            # Nothing may be packed into it while the donor is asked, and after that if it does not answer.
            slab.draining = slab.returned = True
        try:
            await self._context.donors.release(donor, (lease,))
        except PeerError:
            return  # it stays in the table as returned: donor.py repeats the RELEASE once the donor answers again
        table = self._context.table
        if slab is not None and table.slabs.get(slab.slab) is slab:
            table.drop_slab(slab.slab)
            table.save()


def slab_info(slab: Slab) -> SlabInfo:
    """Description of a slab for the engine."""
    return SlabInfo(slab=slab.slab, donor=slab.donor, lease=slab.lease, epoch=slab.epoch, token=slab.token)
