"""A running device: ties activity, donors and client connections to the engine.

How it works. The engine serves pages by itself. Here a tick a second turns its counters into an EWMA, maps what has
become hot and gives back what is empty. The engine's events and the donors' messages start one task each, and what a
task changes is in the table when it ends. No page ever waits for anything in this file.

    tick      activity -> EWMA -> hot regions -> extents -> cluster_map                       mapping/
    engine    WANT, CLUSTER_FREE, *_DRAINED, LINK_DOWN, DONOR_SUSPECT, CONN_CLOSED ...       engine_events.py
    donors    MIGRATE, EVICT, CHECK_ACTIVITY, sessions lost                                  donor/, mapping/recall.py
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Self

from farside.blockdev.context import Context
from farside.blockdev.donor.donors import DonorList
from farside.blockdev.donor.parts import DonorParts
from farside.blockdev.engine_events import EngineEvents
from farside.blockdev.engine_port import Engine
from farside.blockdev.mapping.activity import activity_law, first_activity, next_activity, next_slab_rates
from farside.blockdev.mapping.commit import Committer
from farside.blockdev.mapping.lease import Leaser
from farside.blockdev.mapping.mapper import Mapper
from farside.blockdev.mapping.recall import Recaller
from farside.blockdev.mapping.reconcile import reconcile
from farside.blockdev.mapping.table import Slab, Table
from farside.blockdev.params import extents_per_slab
from farside.blockdev.state import StateFile
from farside.blockdev.task import Tasks, all_but_one
from farside.blockdev.total import add_stats
from farside.clock import Clock, RealClock
from farside.config import BlockdevConfig
from farside.daemon.control import messages as m
from farside.daemon.control.keys import KeyRing
from farside.kmod_shim.engine.binding import Fault
from farside.log import get_log

TICK_S = 1.0  # the paper's period of the EWMA [infiniswap §2.4.1]
EMPTY_SLAB_LINGER_S = 3.0  # a slab emptied by TRIM is often wanted again by the next program
WANT_DELAY_S = 0.01  # WANT events come many at once; one pass maps them together
SWEEP_GRANULES = 64  # a second: see _sweep
# An idle device goes on saving until the rates that are saved are below this: a successor must not find it busy.
SETTLED_PAGES_PER_S = 1.0
RESUMED_DEADLINE_S = 2.0  # the donor's own is not known any more; part of it has passed
GIB = 1 << 30

log = get_log("blockdev")


class BlockDevice:
    """One device over an engine; ``run`` it within its ``Tasks``.

    Attributes:
        context: What its parts share.
        donors: Its donors.
        offered: Set once clients may be let in.
        rates: Page I/O a second over the last tick.
        events: Handlers of the engine's events.
    """

    def __init__(
        self, *, config: BlockdevConfig, engine: Engine, table: Table, keys: KeyRing, clock: Clock, tasks: Tasks
    ) -> None:
        law = activity_law(
            slab_bytes=config.slab_bytes,
            alpha=config.ewma_alpha,
            hot_pages_per_s_per_gib=config.hot_slab_pages_per_s_per_gib,
            cold_pages_per_s_per_gib=config.cold_slab_pages_per_s_per_gib,
        )
        parts = DonorParts(config=config, keys=keys, engine=engine, table=table, clock=clock, hooks=self)
        self.donors = DonorList(parts, tasks)
        self.context = Context(
            config=config,
            engine=engine,
            table=table,
            donors=self.donors,
            clock=clock,
            tasks=tasks,
            rng=random.Random(),
            law=law,
            activity=first_activity(engine.activity(), law, table.region_rates),
            slab_rates=dict(table.slab_rates),
        )
        self.offered = asyncio.Event()
        self.rates = 0.0
        leaser = Leaser(self.context)
        self._mapper = Mapper(self.context, leaser)
        self._committer = Committer(self.context, self._mapper)
        self._recaller = Recaller(self.context, leaser)
        self._empty_since_s: dict[int, float] = {}  # by slab
        self._ticked_s = clock.now_s()  # time of the last tick
        # Set whenever a granule may want a mapping. Many events in one turn of the loop then lead to one pass.
        self._map_soon = asyncio.Event()
        self.events = EngineEvents(self.context, self.donors, self._mapper, self._recaller, map_soon=self._map_soon)
        self._unswept: list[int] = []  # granules that the present round of _sweep has still to look at
        self._totals_before = dict(table.totals)  # the engine counts from zero in each process
        self._is_lifting = False  # the last argument of lift_set
        self._pages_written = 0  # to the disk, by this process

    @classmethod
    def over(cls, engine: Engine, config: BlockdevConfig, control_fd: int, tasks: Tasks) -> Self:
        """The device of these settings whose table is in the memory file ``control_fd``."""
        table = Table(StateFile(control_fd), extents=extents_per_slab(config))
        keys = KeyRing(config.key_file)
        return cls(config=config, engine=engine, table=table, keys=keys, clock=RealClock(), tasks=tasks)

    # ------------------------------------------------------------------ start

    def start(self) -> None:
        """Take over from an earlier process, connect to donors, and start the tick. Raises ConfigError."""
        context = self.context
        # The engine has no fault rules at first, in each process anew.
        for rule in context.config.fault:
            self.set_fault(rule.donor, rule.kind, rule.every, rule.delay_s)
        if context.engine.adopted:
            context.table.counters.takeovers += 1
            # Before any donor is asked: sessions resume the leases that are in the table.
            emptying = reconcile(context, self._recaller)
            context.table.save()
            # In a task: it waits for donors, and clients wait for the rest of this function.
            if emptying:
                context.tasks.spawn(self._resume_emptying(emptying), name="emptying slabs resumed")
        asyncio.get_running_loop().add_reader(context.engine.event_fd, self.pump_events)
        self.donors.start()
        if self._committer.complete:
            self.offered.set()
        self._lift_what_the_disk_alone_has()
        context.tasks.spawn(self._tick_for_ever(), name="tick")
        context.tasks.spawn(self._map_wanted(), name="mapping")
        self.pump_events()

    async def _resume_emptying(self, slabs: Sequence[Slab]) -> None:
        await self.wait_for_links(self.context.config.deadline_s)
        await self._recaller.resume(slabs, RESUMED_DEADLINE_S)

    async def wait_for_links(self, limit_s: float, *, last_s: float | None = None) -> None:
        """Returns when every donor with slabs of ours is reachable again, or after ``limit_s``.

        ``last_s`` is how long to wait when one of them only is missing; None: as long as for more.
        """
        linked = [donor.linked for donor in self.donors.all() if donor.view().slabs]
        if not await all_but_one(linked, limit_s=limit_s, last_s=limit_s if last_s is None else last_s):
            log.warning("some donors are not reachable yet; their pages are read from the other copy")

    def totals(self) -> dict[str, int]:
        """The engine's counters over all processes so far."""
        return add_stats(self._totals_before, self.context.engine.stats())

    def save(self) -> None:
        """Save everything that a successor needs."""
        context, table = self.context, self.context.table
        table.totals, table.region_rates, table.slab_rates = self.totals(), context.activity.rates, context.slab_rates
        table.save()

    async def leave(self, limit_s: float) -> None:
        """Gives all leases back, at the end of the device's life, within ``limit_s``."""
        asyncio.get_running_loop().remove_reader(self.context.engine.event_fd)
        # Stopped first: no write may reach a slab that its donor has zeroed for someone else.
        self.context.engine.stop()
        by_donor: dict[int, list[int]] = {}
        for slab in self.context.table.slabs.values():
            by_donor.setdefault(slab.donor, []).append(slab.lease)
        goodbyes = [self._release_all(donor, leases) for donor, leases in by_donor.items()]
        try:
            async with asyncio.timeout(limit_s):
                # A donor that is gone does not keep the others from their slabs.
                await asyncio.gather(*goodbyes, return_exceptions=True)
        except TimeoutError:
            log.warning("some donors did not confirm the release; their leases end by expiry")

    async def _release_all(self, donor: int, leases: Sequence[int]) -> None:
        for start in range(0, len(leases), m.LEASES_MAX):
            await self.donors.release(donor, leases[start : start + m.LEASES_MAX])

    # ------------------------------------------------------------------- tick

    async def _tick_for_ever(self) -> None:
        clock = self.context.clock
        while True:
            await clock.sleep_until_s(self._ticked_s + TICK_S)
            try:
                self.tick()
            # Whatever went wrong in one second, the next one must come: no other code maps, gives back and saves.
            except Exception as error:
                log.error("unexpected fault", work="tick", cause=error)

    def tick(self) -> None:
        """Do the work of one second."""
        context = self.context
        # 1. observe
        now_s = context.clock.now_s()
        # Before _ticked_s is set anew: a write to the disk is dated back to the last tick.
        self._see_disk_write()
        # A tick that comes late is not caught up: its rates are for the longer time.
        elapsed_s, self._ticked_s = max(0.001, now_s - self._ticked_s), now_s
        last = context.activity
        context.activity = next_activity(last, context.engine.activity(), context.law, elapsed_s=elapsed_s)
        context.slab_rates = next_slab_rates(
            context.slab_rates,
            context.table.slabs,
            self._pages_by_slab(),
            alpha=context.law.alpha,
            elapsed_s=elapsed_s,
        )
        self.rates = sum(context.activity.touched.values()) / elapsed_s
        # 2. act
        self._map_soon.set()
        # A committed granule keeps its mapping, however cold or empty it is.
        if not self.context.is_committed:
            self._mapper.unmap_cold(last)
            self._sweep()
        self._give_empty_back(now_s)
        self._lift_what_the_disk_alone_has()
        # 3. what a lost event would leave behind
        self.pump_events()
        # 4. record; an idle device saves nothing, as a save takes about 5 ms a TiB
        if self.totals() != context.table.totals or max(context.table.region_rates, default=0.0) >= SETTLED_PAGES_PER_S:
            self.save()

    def _see_disk_write(self) -> None:
        # Dated back to the last tick, the earliest time that the write can have had: a write from before the disk's
        # last refusal must not make the disk trusted again.
        written = self.context.engine.stats().pages_out_disk
        if written > self._pages_written:
            self._pages_written, self.context.disk_wrote_s = written, self._ticked_s

    def _lift_what_the_disk_alone_has(self) -> None:
        # Pages that only the disk has are copied to donors in two cases: donors are to hold all pages, or the disk has
        # begun to fail, as long as it can still be read.
        context = self.context
        fails = context.has_disk and not context.is_disk_well
        wanted = context.has_disk and (fails or context.is_committed)
        if wanted == self._is_lifting:
            return
        self._is_lifting = wanted
        context.engine.lift_set(wanted)
        if not context.is_committed:
            news = (
                "the backup disk fails: pages that only the disk has are copied to donors"
                if fails
                else "the backup disk is trusted again"
            )
            log.warning(
                news, disk=context.config.disk_path, pages_it_alone_has=context.engine.figures.pages_disk_alone()
            )

    def _pages_by_slab(self) -> dict[int, int]:
        pages: dict[int, int] = {}
        for granule, count in self.context.activity.touched.items():
            for slab in self.context.table.mappings(granule):
                pages[slab] = pages.get(slab, 0) + count
        return pages

    async def _map_wanted(self) -> None:
        # A task of its own: leasing waits for donors, and the tick with its EWMA must not.
        while True:
            await self._map_soon.wait()
            await asyncio.sleep(WANT_DELAY_S)
            # Cleared before the pass: what is wanted during it leads to another one.
            self._map_soon.clear()
            try:
                await self._map_now()
            except Exception as error:  # the next second tries again
                log.error("unexpected fault", work="mapping", cause=error)

    async def _map_now(self) -> None:
        if not self.context.is_committed:
            await self._mapper.map_hot()
            return
        if self.context.deficient:
            await self._committer.restore()
        if self._committer.complete:
            self.offered.set()

    def _sweep(self) -> None:
        # The engine drops CLUSTER_FREE events when its ring is half full, and does not repeat them. So a few mapped
        # granules are looked at in each second, one after another through the whole device.
        context = self.context
        if not self._unswept:
            self._unswept = list(context.table.mapped())
        for granule in self._unswept[-SWEEP_GRANULES:]:
            if granule not in context.activity.touched and context.engine.cluster_count(granule)[0] == 0:
                self._mapper.unmap(granule)
        del self._unswept[-SWEEP_GRANULES:]

    def _give_empty_back(self, now_s: float) -> None:
        table = self.context.table
        self._empty_since_s = {number: self._empty_since_s.get(number, now_s) for number in table.empty_slabs()}
        for number, since_s in self._empty_since_s.items():
            if now_s - since_s >= EMPTY_SLAB_LINGER_S:
                log.info("empty slab goes back to its donor", slab=number, donor=table.node(table.slabs[number].donor))
                # Without time to move anything: no granule has an extent there.
                self._recaller.drain(table.slabs[number], deadline_s=0.0)

    def pump_events(self) -> None:
        """Handle all events of the engine."""
        self.events.pump()

    # ------------------------------------------------------ what donors lead to

    def recall(self, donor: int, message: m.Migrate | m.Evict) -> None:
        """Act on MIGRATE or EVICT. [infiniswap §2.4.4]"""
        handle = self._recaller.migrate if isinstance(message, m.Migrate) else self._recaller.evict
        self.context.tasks.spawn(handle(donor, message.leases, message.deadline_s), name="recall")

    def lease_activity(self, donor: int, leases: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """Page I/O a second and GiB for those of the leases that we have: CHECK_ACTIVITY. [infiniswap §2.5.2]"""
        slabs = ((lease, self.context.table.slab_by_lease(donor, lease)) for lease in leases)
        share = self.context.config.slab_bytes / GIB
        return tuple(
            (lease, self.context.slab_rates.get(slab.slab, 0.0) / share) for lease, slab in slabs if slab is not None
        )

    def donor_lost(self, donor: int) -> None:
        """Drop all slabs of a donor that failed; their pages are read from the other copy. [infiniswap §2.4.5]"""
        self.slabs_lost(self.context.table.slabs_of(donor))

    def slabs_lost(self, slabs: Sequence[Slab]) -> None:
        """Drop slabs whose memory is gone."""
        for slab in slabs:
            # All are marked, and saved, before the engine drops any: a successor goes on with those that are left.
            slab.draining = slab.failed = True
            if self.context.is_committed:
                self.context.deficient.update(self.context.table.residents(slab.slab))
        self.context.table.save()
        self._map_soon.set()
        for slab in slabs:
            # The engine has forgotten it already; only the donor's confirmation is missing.
            if slab.returned:
                self.still_held(slab)
            else:
                self._recaller.drain(slab, deadline_s=0.0, fail=True)

    def still_held(self, slab: Slab) -> None:
        """Give a slab back again, because its donor has not confirmed it."""
        self.context.tasks.spawn(self._recaller.give_back(slab), name="slab returned again")

    def retire(self, donor: int) -> None:
        """Move the slabs of a donor that left the peers file to other donors."""
        slabs = [slab for slab in self.context.table.slabs_of(donor) if not slab.draining]
        work = self._recaller.move_away(donor, slabs)
        self.context.tasks.spawn(work, name="donor retired")

    # ------------------------------------------------------------------ faults

    def set_fault(self, donor: str, kind: str, every: int, delay_s: float) -> None:
        """Sets a rule of the fault layer for a donor, or for the backup disk when ``donor`` is "disk"."""
        fault, delay_us = Fault[kind.upper()], int(delay_s * 1e6)
        if donor == "disk":
            self.context.engine.disk_fault_set(fault, every, delay_us)
        else:
            self.context.engine.fault_set(self.context.table.donor(donor).donor, fault, every, delay_us)
