"""Recall of slabs by a donor: granules move to other donors in the time there is; the rest falls to disk or replica.

This module is the borrower's answer to `daemon/slab/recall.py`; `migration.py` makes the plan that it carries out.

How it works. MIGRATE: mark the slabs as draining, plan with the extents there are, lease more where that is not enough,
several at a time, as each takes two answers of a donor, tell the engine the new mappings, then let it drain the slab
until the deadline. EVICT: the deadline is too short to ask
anybody; with a disk that is well the slab is drained at once, unless donors are to hold all. SLAB_DRAINED comes back to
``drained`` in any case, and the donor gets DONE. [infiniswap §2.4.4; ours moves first, see docs/papers.md]

A slab's number is used again as soon as its donor has it back. So code that waits for anything holds the ``Slab``
itself, not its number, and asks ``is_ours`` after each wait: the slab may have gone meanwhile, and another one may have
its number.
"""

import asyncio
import math
from collections.abc import Sequence

from farside.blockdev.context import Context
from farside.blockdev.mapping.lease import Leaser
from farside.blockdev.mapping.mapper import apply_assignments
from farside.blockdev.mapping.migration import Plan, Recall, Resident, plan_recall
from farside.blockdev.mapping.table import Slab
from farside.errors import EngineError, FarsideError, PeerError
from farside.kmod_shim.engine.binding import SlabState
from farside.log import get_log

# Share of the donor's deadline that moving may take. The rest is for the last copies to land, on donors or disk, and
# for DONE to travel.
DEADLINE_SHARE = 0.8
LEAVE_LIMIT_S = 30.0  # to move off a donor of our own accord; then the rest falls to the disk
LEAVE_BARE_LIMIT_S = 3600.0  # without a disk that is well what has not moved by then is lost; nobody is in a hurry
LEAVE_PERIOD_S = 1.0  # between two looks for room
LEASES_AT_ONCE = 8  # of one recall: donors grant one after the other, and others' requests wait behind these
LEASING_S = 1.0  # until it is planned anew what goes into the slabs: those that stay empty for seconds go back

log = get_log("blockdev.recall")


class Recaller:
    """Empties slabs and gives them back."""

    def __init__(self, context: Context, leaser: Leaser) -> None:
        self._context = context
        self._leaser = leaser
        self._telling: set[int] = set()  # slabs that are being given back now, so that none is twice at once

    async def migrate(self, donor: int, leases: Sequence[int], deadline_s: float) -> None:
        """MIGRATE from a donor: answers each lease with DONE by the deadline, as far as it can."""
        await self._move_and_drain(donor, self._start(donor, leases, at_once=False), deadline_s)

    async def evict(self, donor: int, leases: Sequence[int], deadline_s: float) -> None:
        """EVICT from a donor: drops the slabs to disk at once.

        Where no disk is well, or donors are to hold all, other donors come first, as in ``migrate``.
        """
        slabs = self._start(donor, leases, at_once=True)
        # With a disk that is well every page is, or soon will be, there too: nothing is copied, and the donor has its
        # memory back at once. [infiniswap §2.4.4]
        if self._context.is_disk_well and not self._context.is_committed:
            for slab in slabs:
                self.drain(slab, deadline_s=0.0)
        else:
            await self._move_and_drain(donor, slabs, deadline_s)

    async def move_away(self, donor: int, slabs: Sequence[Slab]) -> None:
        """Leave a donor by our own decision; it gets RELEASE for each slab.

        Nobody waits for it, so without a disk that is well a slab is emptied only when all of it has another mapping.
        """
        context = self._context
        # From now on no granule gets an extent there; saved, so that a successor goes on with it.
        for slab in slabs:
            slab.draining = True
        context.table.save()
        # Again each second, until every slab is being emptied: room may come with another donor, or as others give
        # theirs back.
        while left := [s for s in slabs if self.is_ours(s) and s.slab not in context.slab_drains]:
            limit_s = LEAVE_LIMIT_S if context.is_disk_well else LEAVE_BARE_LIMIT_S
            await self._plan(donor, left, context.clock.now_s() + limit_s)
            for slab in left:
                if self.is_ours(slab) and self._is_placed(slab):
                    self.drain(slab, deadline_s=limit_s)
            await context.clock.sleep_until_s(context.clock.now_s() + LEAVE_PERIOD_S)

    async def resume(self, slabs: Sequence[Slab], deadline_s: float) -> None:
        """Go on emptying the slabs that the previous process had begun to empty."""
        donors = {slab.donor for slab in slabs}
        for donor in donors:
            unasked = [slab for slab in slabs if slab.donor == donor and not slab.is_recalled]
            # Slabs that we leave of our own accord: nobody waits for them, and without a disk this may take long.
            self._context.tasks.spawn(self.move_away(donor, unasked), name="slabs move on")
        for donor in donors:
            # Slabs that a donor has recalled: it waits for them.
            await self._move_and_drain(donor, [s for s in slabs if s.donor == donor and s.is_recalled], deadline_s)

    def _start(self, donor: int, leases: Sequence[int], *, at_once: bool) -> list[Slab]:
        context, slabs = self._context, []
        for lease in leases:
            slab = context.table.slab_by_lease(donor, lease)
            if slab is None:
                context.tasks.spawn(self._say_done(donor, lease), name="recall of a lease that is not ours")
                continue
            slab.draining = slab.is_recalled = True
            # Empty already, and its RELEASE not confirmed: it is said again, as DONE.
            if slab.returned:
                context.tasks.spawn(self.give_back(slab), name="recall of a slab that is empty")
                continue
            slab.evicted = slab.evicted or at_once
            slabs.append(slab)
        context.table.save()
        return slabs

    def is_ours(self, slab: Slab) -> bool:
        """False once the slab is empty: from then on its number may be another's."""
        return self._context.table.slabs.get(slab.slab) is slab and not slab.returned

    async def _move_and_drain(self, donor: int, slabs: Sequence[Slab], deadline_s: float) -> None:
        clock = self._context.clock
        # One end for planning and draining: time that planning takes is taken from the copying.
        end_s = clock.now_s() + deadline_s * DEADLINE_SHARE
        await self._plan(donor, slabs, end_s)
        # All of them, whatever the plan: granules without a new mapping go to the disk or the replica.
        for slab in filter(self.is_ours, slabs):
            self.drain(slab, deadline_s=max(0.0, end_s - clock.now_s()))

    async def _plan(self, donor: int, slabs: Sequence[Slab], end_s: float) -> None:
        context = self._context
        numbers = {slab.slab for slab in slabs if self.is_ours(slab)}
        # The committer leaves these granules alone meanwhile: both would lease for the same ones.
        context.recalled |= numbers
        try:
            await self._map_elsewhere(donor, slabs, end_s)
        except (FarsideError, OSError) as error:  # whatever planning met, the donor gets its memory back
            log.error("a recall could not be planned", donor=context.table.node(donor), reason=error)
        finally:
            context.recalled -= numbers

    async def _map_elsewhere(self, donor: int, slabs: Sequence[Slab], end_s: float) -> None:
        context = self._context
        # Plan, lease slabs for what found no room, and plan anew: all figures may have changed while donors answered.
        while (left_s := end_s - context.clock.now_s()) > 0:
            numbers = frozenset(slab.slab for slab in filter(self.is_ours, slabs))
            recall = Recall(donor=donor, slabs=numbers, deadline_s=left_s, residents=self._residents(numbers))
            plan = plan_recall(recall, context.table.open_views(), granules_per_region=context.law.granules_per_region)
            apply_assignments(context, plan.moves)
            log.info("recall planned", donor=context.table.node(donor), plan=_summary(plan))
            if not plan.wanting or not await self._lease_for(plan.wanting, recall, end_s):
                return

    async def _lease_for(self, wanting: Sequence[int], recall: Recall, end_s: float) -> bool:
        """Leases slabs for granules that found no room, as many as hold them; False: no donor gave one.

        One after the other, a recall of many slabs would take as long as all these answers together.
        """
        context, is_any = self._context, False
        # The busiest granule of those that will fill a slab, which is as large as a region. What that one may not share
        # a donor with decides which donors are asked.
        firsts, until_s = wanting[:: context.law.granules_per_region], min(end_s, context.clock.now_s() + LEASING_S)
        while firsts and context.clock.now_s() < until_s:
            now, firsts = firsts[:LEASES_AT_ONCE], firsts[LEASES_AT_ONCE:]
            leases = (
                self._leaser.lease_slab(
                    region=context.region_of(first), banned=self._other_donors(first, recall.slabs) | {recall.donor}
                )
                for first in now
            )
            found = await asyncio.gather(*leases, return_exceptions=True)  # none goes on behind another's error
            for one in found:
                if isinstance(one, BaseException):
                    raise one
            if not any(found):
                break
            is_any = True
        return is_any

    def _residents(self, numbers: frozenset[int]) -> tuple[Resident, ...]:
        context = self._context
        return tuple(
            Resident(
                granule=granule,
                slab=number,
                live_pages=self._pages_to_keep(granule),
                activity=context.activity.rates[context.region_of(granule)],
                other_donors=self._other_donors(granule, numbers),
            )
            for number in sorted(numbers)
            for granule in context.table.residents(number)
            # Those that have their mappings elsewhere, as after an earlier plan, need no other.
            if len(context.table.live_mappings(granule)) < context.config.copies
        )

    def _is_placed(self, slab: Slab) -> bool:
        context = self._context
        return context.is_disk_well or all(
            len(context.table.live_mappings(granule)) >= context.config.copies
            for granule in context.table.residents(slab.slab)
        )

    def _pages_to_keep(self, granule: int) -> int:
        live = self._context.engine.cluster_count(granule)[1]
        # Where nothing may be left to the disk alone an empty granule needs its mapping too: what is written to it next
        # must have a place.
        return max(1, live) if self._context.is_committed else live

    def _other_donors(self, granule: int, numbers: frozenset[int]) -> frozenset[int]:
        table = self._context.table
        return frozenset(table.slabs[n].donor for n in table.mappings(granule) if n not in numbers)

    def drain(self, slab: Slab, *, deadline_s: float, fail: bool = False) -> None:
        """Starts emptying a slab, or shortens the time while it is being emptied; ends with ``drained``."""
        assert self.is_ours(slab)
        slab.draining, slab.failed = True, slab.failed or fail
        drains, now_s = self._context.slab_drains, self._context.clock.now_s()
        # The time only ever gets shorter: an EVICT may have come while a MIGRATE was being planned.
        end_s = min(now_s + deadline_s, drains.get(slab.slab, math.inf))
        try:
            # The engine may have just emptied it, with the event on its way: a second drain might meet the number's
            # next slab.
            is_over = self._context.engine.slab_get(slab.slab).state is not SlabState.DRAINING
            if slab.slab in drains and is_over:
                return
            self._context.engine.slab_drain(slab.slab, int(max(0.0, end_s - now_s) * 1000), slab.failed)
        except EngineError as error:
            log.error("a slab can't be drained", slab=slab.slab, reason=error)
            return
        drains[slab.slab] = end_s

    async def drained(self, number: int, *, moved_pages: int, dropped_pages: int, lost_pages: int) -> None:
        """After SLAB_DRAINED: forgets the slab and gives it back to its donor."""
        context, table = self._context, self._context.table
        context.slab_drains.pop(number, None)
        slab = table.slabs.get(number)
        if slab is None or slab.returned:
            context.engine.slab_remove(number)  # emptied a second time: its number must be free for the next
            return
        table.counters.migrated_pages += moved_pages
        table.counters.dropped_pages += dropped_pages
        table.counters.lost_pages += lost_pages
        if slab.is_recalled and not slab.failed:  # counted by how it ended, as its donor does
            table.counters.evictions += slab.evicted
            table.counters.migrations += not slab.evicted
        if lost_pages:
            log.error("pages are lost, no other copy was left", slab=number, pages=lost_pages)
        context.deficient.update(table.residents(number) if context.is_committed else ())
        # Engine, table, file, donor, in this order. A successor that finds the slab gone from the engine tells the
        # donor (mapping/reconcile.py); in any other order it could find an extent in use that the donor has already.
        context.engine.slab_remove(number)
        table.strip(number)
        slab.returned = True
        table.save()
        await self.give_back(slab, moved_pages=moved_pages, dropped_pages=dropped_pages)

    async def give_back(self, slab: Slab, *, moved_pages: int = 0, dropped_pages: int = 0) -> None:
        """Report the return of a slab to its donor, then forget the slab.

        Without an answer the slab stays; donor/donor.py has it said again with each KEEPALIVE that the donor answers.
        """
        table = self._context.table
        # Asked again after each KEEPALIVE: one answer at a time, and only for this very slab.
        if slab.slab in self._telling or table.slabs.get(slab.slab) is not slab:
            return
        self._telling.add(slab.slab)
        try:
            is_free = await self._tell(slab, moved_pages, dropped_pages)
        finally:
            self._telling.discard(slab.slab)
        # It may have been dropped, and its number used again, while the donor answered.
        if is_free and table.slabs.get(slab.slab) is slab:
            table.drop_slab(slab.slab)
            table.save()

    async def _tell(self, slab: Slab, moved_pages: int, dropped_pages: int) -> bool:
        donors = self._context.donors
        try:
            if slab.is_recalled:
                await donors.done(slab.donor, slab.lease, moved_pages=moved_pages, dropped_pages=dropped_pages)
            else:
                await donors.release(slab.donor, (slab.lease,))
        except PeerError as error:
            if not slab.failed:  # a lost donor takes its slab back by expiry
                donor = self._context.table.node(slab.donor)
                log.info("a donor did not confirm the return of its slab", slab=slab.slab, donor=donor, reason=error)
                return False
        return True

    async def _say_done(self, donor: int, lease: int) -> None:
        # For a lease that is not ours any more: the donor waits for a word all the same.
        try:
            await self._context.donors.done(donor, lease, moved_pages=0, dropped_pages=0)
        except PeerError as error:
            log.info("a donor did not confirm DONE", lease=lease, donor=self._context.table.node(donor), reason=error)


def _summary(plan: Plan) -> str:
    reasons = sorted({fall.why.value for fall in plan.falls})
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return f"{len(plan.moves)} granules move, {len(plan.falls)} do not{why}"
