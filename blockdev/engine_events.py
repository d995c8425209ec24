"""Handlers of engine events: granules that need a mapping, empty slabs, broken links."""

import asyncio
from collections.abc import Callable
from typing import ClassVar

from farside.blockdev.context import Context
from farside.blockdev.donor.donors import DonorList
from farside.blockdev.mapping.mapper import Mapper
from farside.blockdev.mapping.recall import Recaller
from farside.geometry import GRANULE_BYTES, PAGE_BYTES
from farside.kmod_shim.engine.binding import EngineEvent, EventKind
from farside.log import get_log

TELL_PERIOD_S = 1.0  # a bad disk or donor makes thousands of events a second: counters have all of them, the log one

log = get_log("blockdev")


class EngineEvents:
    """Handlers of the events of one device.

    Attributes:
        on_conn_closed: Called with the worker and errno when the engine has ended a client's connection.
    """

    def __init__(
        self, context: Context, donors: DonorList, mapper: Mapper, recaller: Recaller, *, map_soon: asyncio.Event
    ) -> None:
        """``map_soon`` is set when regions want to be mapped."""
        self.on_conn_closed: Callable[[int, int], None] = lambda worker, error: None
        self._context = context
        self._donors = donors
        self._mapper = mapper
        self._recaller = recaller
        self._map_soon = map_soon
        self._told_s: dict[str, float] = {}  # time of the last log line, by source
        self._is_unsaved = False  # the table has changed since it was saved last

    def pump(self) -> None:
        """Handle all events of the engine."""
        # Until the ring is empty: only the call that finds it so clears event_fd, which would wake the loop again.
        while (event := self._context.engine.event_next()) is not None:
            handler = self._HANDLERS.get(EventKind(event.kind))
            if handler is not None:
                handler(self, event)
        # Once for all of them. Extents that have come free may be saved late: at worst a successor finds them taken,
        # and frees them (mapping/reconcile.py).
        if self._is_unsaved:
            self._is_unsaved = False
            self._context.table.save()

    def _on_want(self, event: EngineEvent) -> None:
        # Where every granule is to have mappings the committer looks for them, wanted or not.
        if not self._context.is_committed:
            self._context.wanted.add(event.a)
            self._map_soon.set()

    def _on_granule_free(self, event: EngineEvent) -> None:
        self._context.wanted.discard(event.a)
        if not self._context.is_committed:
            self._mapper.unmap(event.a)

    def _on_link_down(self, event: EngineEvent) -> None:
        self._donors.links_broke(event.a, event.c)  # c is the errno, 0 in DONOR_SUSPECT

    def _on_slab_drained(self, event: EngineEvent) -> None:
        work = self._recaller.drained(event.a, moved_pages=event.b, dropped_pages=event.c, lost_pages=event.d)
        # In a task, because the donor is asked to confirm. Its granules may want an extent elsewhere at once.
        self._context.tasks.spawn(work, name="slab drained")
        self._map_soon.set()

    def _on_granule_drained(self, event: EngineEvent) -> None:
        table = self._context.table
        self._context.granule_drains.discard((event.a, event.b))
        # A slab that is being emptied gives no extent out again: SLAB_DRAINED takes all of them back at once.
        if event.b in table.slabs and not table.slabs[event.b].draining:
            table.give(event.a, event.b)
            self._is_unsaved = True
        # It was written again while its mapping was being emptied.
        if event.a in self._context.wanted:
            self._map_soon.set()

    def _on_conn_closed(self, event: EngineEvent) -> None:
        self.on_conn_closed(event.a, event.b)

    def _on_disk_error(self, event: EngineEvent) -> None:
        self._context.disk_refused_s = self._context.clock.now_s()
        # What the disk refuses is to have an extent at a donor at once, however cold it is.
        self._map_soon.set()
        if self._may_tell("disk"):
            alone = self._context.engine.figures.pages_disk_alone()
            log.error("the backup disk failed a request", errno=event.a, page=event.b, pages_it_alone_has=alone)

    def _on_checksum(self, event: EngineEvent) -> None:
        # UINT32_MAX in place of a donor's number means the disk (engine.h).
        source = "disk" if event.a == 0xFFFFFFFF else self._context.table.node(event.a)
        if source != "disk" and not self._has_taken_it_back(event):
            self._donors.gave_damaged(source)
        if self._may_tell(source):
            log.error("a copy of a page was damaged and is dropped", source=source, page=event.b)

    def _has_taken_it_back(self, event: EngineEvent) -> bool:
        """Whether the donor had a right to what was found: zeros, in memory that it has said EVICT for.

        A donor of this host that waited for its slab in vain punches its pages out, which we still map: they read as
        zeros (daemon/slab/lender.py). Over a network such a slab is refused. Anything else in a slab that is being
        emptied counts as in any other: a donor decides when that is.
        """
        table = self._context.table
        slabs = (table.slabs[number] for number in table.mappings(event.b * PAGE_BYTES // GRANULE_BYTES))
        return event.c == 1 and self._donors.is_shared(event.a) and any(
            slab.donor == event.a and slab.evicted for slab in slabs
        )  # fmt: skip

    def _may_tell(self, what: str) -> bool:
        now_s = self._context.clock.now_s()
        may = now_s - self._told_s.get(what, -TELL_PERIOD_S) >= TELL_PERIOD_S
        if may:
            self._told_s[what] = now_s
        return may

    _HANDLERS: ClassVar = {
        EventKind.WANT: _on_want,
        EventKind.CLUSTER_FREE: _on_granule_free,
        EventKind.LINK_DOWN: _on_link_down,
        EventKind.DONOR_SUSPECT: _on_link_down,
        EventKind.SLAB_DRAINED: _on_slab_drained,
        EventKind.CLUSTER_DRAINED: _on_granule_drained,
        EventKind.CONN_CLOSED: _on_conn_closed,
        EventKind.DISK_ERROR: _on_disk_error,
        EventKind.CHECKSUM: _on_checksum,
    }
