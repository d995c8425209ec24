"""Slab table: which slab is leased from which donor, and which granule has which extent. One owner, one thread.

How it works. Everything a restart needs is here and nowhere else in Python; ``save()`` puts it into the control state
file. The rule that makes a crash harmless: what is taken is saved before the engine gets it, what is given back is
saved after the engine has let go of it. So the table always holds at least what the engine holds, and ``reconcile.py``
can drop the rest at adoption.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from farside.blockdev.mapping.activity import Assignment, SlabView
from farside.blockdev.peers_file import DonorAddress
from farside.blockdev.state import StateFile
from farside.errors import Unavailable
from farside.geometry import SLABS_MAX

DONORS_MAX = 256  # NE_DONORS_MAX
FREE = -1  # in place of a granule


class Slab(
    msgspec.Struct, kw_only=True, rename={"region": "home_range", "granules": "clusters", "is_recalled": "told"}
):
    """One leased slab; ``granules[extent]`` is the granule that has the extent, or FREE. Saved under its old names."""

    slab: int
    donor: int
    lease: int
    token: int
    epoch: int
    region: int
    granules: list[int]
    draining: bool = False  # being emptied; takes no granule
    failed: bool = False  # emptied without reading, its donor is lost
    is_recalled: bool = False  # the donor waits for DONE, not for RELEASE
    evicted: bool = False  # and it had no time to let us move the pages, or none any more
    returned: bool = False  # the engine has forgotten it; the donor has not confirmed yet

    @property
    def free(self) -> tuple[int, ...]:
        """Extents that no granule has."""
        return tuple(i for i, granule in enumerate(self.granules) if granule == FREE)

    @property
    def used(self) -> int:
        """Number of extents that a granule has."""
        return sum(granule != FREE for granule in self.granules)


@dataclass(slots=True, kw_only=True)
class DonorRecord:
    """Facts about one donor that must outlive a process."""

    donor: int
    node: str
    session: int = 0
    control: str = ""  # the listener through which its slabs were leased
    epoch: int = 0  # of the newest data connections; the donor fences lower ones
    owner: str = ""  # as in the peers file


@dataclass(slots=True, kw_only=True)
class Counters:
    """Events since the device was made, over all its processes."""

    evictions: int = 0  # slabs given back that a donor wanted at once, or that were late for it
    migrations: int = 0  # slabs given back in the time that a donor gave to move their pages
    migrated_pages: int = 0
    dropped_pages: int = 0
    lost_pages: int = 0
    failovers: int = 0  # donors declared failed
    takeovers: int = 0  # processes that adopted the device
    slabs_leased: int = 0
    slabs_returned: int = 0
    rdma_fallbacks: int = 0  # times that a donor was reached by TCP though RDMA was preferred
    sessions_broken: int = 0  # sessions with donors that ended in an error, and greetings that were no donor's


class _Saved(msgspec.Struct, kw_only=True, rename={"listed": "peers", "region_rates": "range_rates"}):
    donors: list[DonorRecord] = msgspec.field(default_factory=list)
    slabs: list[Slab] = msgspec.field(default_factory=list)
    counters: Counters = msgspec.field(default_factory=Counters)
    committed: bool = False
    listed: list[DonorAddress] = msgspec.field(default_factory=list)
    totals: dict[str, int] = msgspec.field(default_factory=dict)
    region_rates: tuple[float, ...] = ()
    slab_rates: dict[int, float] = msgspec.field(default_factory=dict)
    damaged_pages: dict[str, int] = msgspec.field(default_factory=dict)
    distrusted: set[str] = msgspec.field(default_factory=set)


class Table:
    """The slab table of one device.

    Attributes:
        slabs: Leased slabs by number. Change them through the methods only.
        counters: Event counters; they are saved with the next change.
        listed: The donors that the peers file named when it was last readable.
        totals: The engine's counters over all processes, as of the last second (total.py).
        region_rates: Page I/O a second of each region, likewise; empty in a new device.
        slab_rates: Page I/O a second by slab, likewise.
        damaged_pages: Copies that were found damaged, by `DonorAddress.trusted_as`, since the device was made.
        distrusted: Nodes whose donors are left out for that (donor/trust.py), likewise.
        committed: The whole size once had its mappings, so the device was exported (replica and none).
    """

    def __init__(self, file: StateFile, *, extents: int) -> None:
        """Reads what ``file`` holds. ``extents`` is how many a slab has."""
        self._file = file
        self._extents = extents
        raw = file.read()
        saved = _Saved() if raw is None else msgspec.msgpack.decode(raw, type=_Saved)
        self.slabs: dict[int, Slab] = {slab.slab: slab for slab in saved.slabs}
        self.counters = saved.counters
        self.committed = saved.committed
        self.listed = tuple(saved.listed)
        self.totals = saved.totals
        self.region_rates = saved.region_rates
        self.slab_rates: Mapping[int, float] = saved.slab_rates
        self.damaged_pages = saved.damaged_pages
        self.distrusted = saved.distrusted
        self._donors = {record.node: record for record in saved.donors}
        # Indexes of the slabs, made anew in each process: no tick, message or event may go through all slabs of a TiB.
        self._mappings: dict[int, dict[int, int]] = {}  # granule -> slab -> extent
        self._by_lease: dict[int, dict[int, int]] = {}  # donor -> lease -> slab
        for slab in saved.slabs:
            self._by_lease.setdefault(slab.donor, {})[slab.lease] = slab.slab
        # Slabs with a free extent, draining ones too.
        self._open = {slab.slab for slab in saved.slabs if FREE in slab.granules}
        for slab in saved.slabs:
            for extent, granule in enumerate(slab.granules):
                if granule != FREE:
                    self._mappings.setdefault(granule, {})[slab.slab] = extent

    def save(self) -> None:
        """Writes the table into the control state file; 20 us for 1 GiB, about 5 ms a TiB."""
        saved = _Saved(
            donors=list(self._donors.values()),
            slabs=list(self.slabs.values()),
            counters=self.counters,
            committed=self.committed,
            listed=list(self.listed),
            totals=self.totals,
            region_rates=self.region_rates,
            slab_rates=dict(self.slab_rates),
            damaged_pages=self.damaged_pages,
            distrusted=self.distrusted,
        )
        self._file.write(msgspec.msgpack.encode(saved))

    # ------------------------------------------------------------------ donors

    def donor(self, node: str) -> DonorRecord:
        """The record of a node, made when it is new; its number is kept as long as the device lives."""
        if node not in self._donors:
            used = {record.donor for record in self._donors.values()}
            # The engine knows donors by number, and its state names them across processes.
            number = next((n for n in range(DONORS_MAX) if n not in used), None)
            if number is None:
                raise Unavailable(f"this device has known {DONORS_MAX} donors, the most it can")
            self._donors[node] = DonorRecord(donor=number, node=node)
        return self._donors[node]

    def node(self, donor: int) -> str:
        """The node's name of a donor's number; a name made of the number when that donor was forgotten."""
        nodes = (record.node for record in self._donors.values() if record.donor == donor)
        return next(nodes, f"donor-{donor}")

    def donors(self) -> tuple[DonorRecord, ...]:
        """All donors ever seen."""
        return tuple(self._donors.values())

    def forget_donor(self, node: str) -> None:
        """Frees the number of a donor that has no slab of ours."""
        record = self._donors[node]
        assert not self.slab_count(record.donor)
        del self._donors[node]

    def slabs_of(self, donor: int) -> tuple[Slab, ...]:
        """The slabs leased from a donor, draining ones included."""
        return tuple(self.slabs[number] for number in self._by_lease.get(donor, {}).values())

    def slab_count(self, donor: int) -> int:
        """How many slabs are leased from a donor."""
        return len(self._by_lease.get(donor, {}))

    def slab_by_lease(self, donor: int, lease: int) -> Slab | None:
        """The slab that a donor calls ``lease``."""
        number = self._by_lease.get(donor, {}).get(lease)
        return None if number is None else self.slabs[number]

    # ------------------------------------------------------------------- slabs

    @property
    def is_full(self) -> bool:
        """True when no number is left for another slab."""
        return len(self.slabs) >= SLABS_MAX

    def add_slab(self, *, donor: int, lease: int, token: int, epoch: int, region: int) -> Slab:
        """Records a new lease under the lowest free number. Raises Unavailable when there is none."""
        if self.is_full:
            raise Unavailable(f"this device has {SLABS_MAX} slabs, the most it can have")
        number = next(n for n in range(SLABS_MAX) if n not in self.slabs)
        slab = Slab(
            slab=number, donor=donor, lease=lease, token=token, epoch=epoch, region=region,
            granules=[FREE] * self._extents,
        )  # fmt: skip
        self.slabs[number] = slab
        self._by_lease.setdefault(donor, {})[lease] = number
        self._open.add(number)
        self.counters.slabs_leased += 1
        return slab

    def drop_slab(self, number: int) -> Slab:
        """Forgets a slab; its granules lose this mapping."""
        slab = self.slabs.pop(number)
        # The entry may be a newer slab's by now, if the donor has used the lease number again.
        if self._by_lease[slab.donor].get(slab.lease) == number:
            del self._by_lease[slab.donor][slab.lease]
        self._open.discard(number)
        for granule in slab.granules:
            if granule != FREE:
                self._unlink(granule, number)
        self.counters.slabs_returned += 1
        return slab

    def strip(self, number: int) -> None:
        """Remove the mappings of all granules on a slab, at once."""
        for granule in self.residents(number):
            self.give(granule, number)

    def open_views(self) -> tuple[SlabView, ...]:
        """Slabs with room that take granules, as the packing sees them."""
        slabs = (self.slabs[number] for number in sorted(self._open))
        return tuple(
            SlabView(slab=s.slab, donor=s.donor, region=s.region, free=s.free)
            for s in slabs
            if not s.draining
        )  # fmt: skip

    def empty_slabs(self) -> tuple[int, ...]:
        """Slabs that no granule uses and that are not being emptied."""
        slabs = (self.slabs[number] for number in self._open)
        return tuple(slab.slab for slab in slabs if not slab.draining and not slab.used)

    # ---------------------------------------------------------------- granules

    def take(self, assignments: Iterable[Assignment]) -> None:
        """Gives extents to granules."""
        for a in assignments:
            slab = self.slabs[a.slab]
            # Two granules in one extent would overwrite each other's pages. The index has room for one extent of a slab
            # for each granule.
            assert slab.granules[a.extent] == FREE
            assert a.slab not in self._mappings.get(a.granule, {})
            slab.granules[a.extent] = a.granule
            if FREE not in slab.granules:
                self._open.discard(a.slab)
            self._mappings.setdefault(a.granule, {})[a.slab] = a.extent

    def give(self, granule: int, slab: int) -> None:
        """Takes the granule's extent on a slab back; nothing happens when it has none there."""
        extent = self._mappings.get(granule, {}).get(slab)
        if extent is not None:
            self.slabs[slab].granules[extent] = FREE
            self._open.add(slab)
            self._unlink(granule, slab)

    def _unlink(self, granule: int, slab: int) -> None:
        mappings = self._mappings[granule]
        del mappings[slab]
        if not mappings:
            del self._mappings[granule]

    def mappings(self, granule: int) -> dict[int, int]:
        """The granule's mappings, slab number to extent, draining ones included."""
        return dict(self._mappings.get(granule, {}))

    def live_mappings(self, granule: int) -> tuple[Slab, ...]:
        """The slabs that hold the granule and are not being emptied."""
        slabs = (self.slabs[number] for number in self._mappings.get(granule, {}))
        return tuple(slab for slab in slabs if not slab.draining)

    def residents(self, slab: int) -> tuple[int, ...]:
        """The granules with an extent on a slab."""
        return tuple(granule for granule in self.slabs[slab].granules if granule != FREE)

    def mapped(self) -> Iterator[int]:
        """Granules that have a mapping of any kind."""
        return iter(self._mappings)
