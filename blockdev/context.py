"""Context of one running device: the state that its parts share; each field names the one part that writes it."""

import math
import random
from dataclasses import dataclass, field

from farside.blockdev.donor_port import Donors
from farside.blockdev.engine_port import Engine
from farside.blockdev.mapping.activity import Activity, ActivityLaw
from farside.blockdev.mapping.table import Table
from farside.blockdev.task import Tasks
from farside.clock import Clock
from farside.config import BlockdevConfig
from farside.kmod_shim.engine.binding import Protection

# Time without a failed request after which the disk is trusted again. The engine tries a refused page again each
# second, so that a disk that still refuses is noticed long before.
DISK_TRUSTED_S = 10.0


def protection_of(config: BlockdevConfig) -> Protection:
    """Where a page's second copy is, by the settings."""
    if config.protection == "disk":
        return Protection.BOTH if config.donors_hold == "twice" else Protection.DISK
    return Protection.REPLICA if config.protection == "replica" else Protection.NONE


@dataclass(slots=True, kw_only=True)
class Context:
    """One running device. All of it belongs to the event loop's thread."""

    config: BlockdevConfig
    engine: Engine
    table: Table
    donors: Donors
    clock: Clock
    tasks: Tasks
    rng: random.Random
    law: ActivityLaw
    activity: Activity  # device.py, once a second
    slab_rates: dict[int, float] = field(default_factory=dict)  # device.py, once a second
    wanted: set[int] = field(default_factory=set)  # granules the engine said WANT for; mapping/mapper.py takes them out
    disk_refused_s: float = -math.inf  # device.py: when the backup disk last failed a request
    disk_wrote_s: float = -math.inf  # device.py: it has written a page since then
    deficient: set[int] = field(default_factory=set)  # mapping/commit.py: granules that may have too few mappings
    slab_drains: dict[int, float] = field(
        default_factory=dict
    )  # mapping/recall.py: slabs the engine empties, and until when
    granule_drains: set[tuple[int, int]] = field(default_factory=set)  # mapping/mapper.py: (granule, slab) likewise
    recalled: set[int] = field(default_factory=set)  # mapping/recall.py: slabs whose move is being planned

    @property
    def protection(self) -> Protection:
        """Where a page's second copy is."""
        return protection_of(self.config)

    @property
    def has_disk(self) -> bool:
        """Whether each page goes to the backup disk too."""
        return self.config.protection == "disk"

    @property
    def is_committed(self) -> bool:
        """True when each granule has to have its mappings, used or not: there is no disk, or the disk may break."""
        return not self.has_disk or self.config.donors_hold != "hot"

    @property
    def is_disk_well(self) -> bool:
        """False without a disk, and after the disk has failed a request: no page may be on the disk alone.

        It is trusted again when nothing has failed for a while and it has written a page since: one that nobody asks
        does not fail either.
        """
        has_written = self.disk_wrote_s >= self.disk_refused_s
        is_quiet = self.clock.now_s() - self.disk_refused_s > DISK_TRUSTED_S
        return self.has_disk and has_written and is_quiet

    def region_of(self, granule: int) -> int:
        """The region that a granule belongs to."""
        return granule // self.law.granules_per_region
