"""The slab table: which slab is leased from whom, and which cluster has which extent. One owner, one thread.

How it works. Everything a restart needs is here and nowhere else in Python; ``save()`` puts it into the control state
file. The rule that makes a crash harmless: what is taken is saved before the engine is told, what is given back is
saved after the engine has said so. So the table always holds at least what the engine holds, and ``reconcile.py`` can
drop the rest at adoption.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from farside.blockdev.mapping.activity import Assignment, SlabView
from farside.blockdev.peers_file import DonorAddress
from farside.blockdev.state import StateFile
from farside.errors import Unavailable
from farside.geometry import SLABS_MAX

DONORS_MAX = 256  # NE_DONORS_MAX
FREE = -1


@dataclass(slots=True, kw_only=True)
class Slab:
    """One leased slab; ``clusters[extent]`` is the cluster that has the extent, or FREE."""

    slab: int
    donor: int
    lease: int
    token: int
    epoch: int
    home_range: int
    clusters: list[int]
    draining: bool = False  # being emptied; takes no cluster
    failed: bool = False  # emptied without reading, its donor is lost
    told: bool = False  # the donor waits for DONE, not for RELEASE
    evicted: bool = False  # and it had no time to let us move the pages, or none any more
    returned: bool = False  # the engine knows it no more; the donor has not confirmed yet

    @property
    def free(self) -> tuple[int, ...]:
        """Extents that no cluster has."""
        return tuple(i for i, cluster in enumerate(self.clusters) if cluster == FREE)

    @property
    def used(self) -> int:
        """Number of extents that a cluster has."""
        return sum(cluster != FREE for cluster in self.clusters)


@dataclass(slots=True, kw_only=True)
class DonorRecord:
    """What must outlive a process about one donor."""

    donor: int
    node: str
    session: int = 0
    control: str = ""  # the listener through which its slabs were leased
    epoch: int = 0  # of the newest data connections; the donor fences lower ones


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


@dataclass(slots=True, kw_only=True)
class _Saved:
    donors: list[DonorRecord] = field(default_factory=list)
    slabs: list[Slab] = field(default_factory=list)
    counters: Counters = field(default_factory=Counters)
    committed: bool = False
    peers: list[DonorAddress] = field(default_factory=list)
    totals: dict[str, int] = field(default_factory=dict)
    range_rates: tuple[float, ...] = ()
    slab_rates: dict[int, float] = field(default_factory=dict)


class Table:
    """The slab table of one device.

    Attributes:
        slabs: Leased slabs by number. Change them through the methods only.
        counters: Event counters; they are saved with the next change.
        peers: The donors that the peers file named when it was last readable.
        totals: The engine's counters over all processes, as of the last second (total.py).
        range_rates: Page I/O a second of each range, likewise; empty in a new device.
        slab_rates: Page I/O a second by slab, likewise.
        committed: The whole size once had its homes, so the device was exported (replica and none).
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
        self.peers = tuple(saved.peers)
        self.totals = saved.totals
        self.range_rates = saved.range_rates
        self.slab_rates: Mapping[int, float] = saved.slab_rates
        self._donors = {record.node: record for record in saved.donors}
        self._homes: dict[int, dict[int, int]] = {}  # cluster -> slab -> extent
        self._by_lease: dict[int, dict[int, int]] = {}  # donor -> lease -> slab
        for slab in saved.slabs:
            self._by_lease.setdefault(slab.donor, {})[slab.lease] = slab.slab
        self._open = {slab.slab for slab in saved.slabs if FREE in slab.clusters}  # may hold a draining one
        for slab in saved.slabs:
            for extent, cluster in enumerate(slab.clusters):
                if cluster != FREE:
                    self._homes.setdefault(cluster, {})[slab.slab] = extent

    def save(self) -> None:
        """Writes the table into the control state file; 20 us for 1 GiB, about 5 ms a TiB."""
        saved = _Saved(
            donors=list(self._donors.values()),
            slabs=list(self.slabs.values()),
            counters=self.counters,
            committed=self.committed,
            peers=list(self.peers),
            totals=self.totals,
            range_rates=self.range_rates,
            slab_rates=dict(self.slab_rates),
        )
        self._file.write(msgspec.msgpack.encode(saved))

    # ------------------------------------------------------------------ donors

    def donor(self, node: str) -> DonorRecord:
        """The record of a node, made when it is new; its number is kept as long as the device lives."""
        if node not in self._donors:
            used = {record.donor for record in self._donors.values()}
            number = next((n for n in range(DONORS_MAX) if n not in used), None)
            if number is None:
                raise Unavailable(f"more than {DONORS_MAX} donors have been seen by this device")
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

    def add_slab(self, *, donor: int, lease: int, token: int, epoch: int, home_range: int) -> Slab:
        """Records a new lease under the lowest free number. Raises Unavailable when there is none."""
        if self.is_full:
            raise Unavailable(f"this device has {SLABS_MAX} slabs, which is all it can have")
        number = next(n for n in range(SLABS_MAX) if n not in self.slabs)
        slab = Slab(
            slab=number, donor=donor, lease=lease, token=token, epoch=epoch, home_range=home_range,
            clusters=[FREE] * self._extents,
        )  # fmt: skip
        self.slabs[number] = slab
        self._by_lease.setdefault(donor, {})[lease] = number
        self._open.add(number)
        self.counters.slabs_leased += 1
        return slab

    def drop_slab(self, number: int) -> Slab:
        """Forgets a slab; its clusters lose this home."""
        slab = self.slabs.pop(number)
        if self._by_lease[slab.donor].get(slab.lease) == number:
            del self._by_lease[slab.donor][slab.lease]
        self._open.discard(number)
        for cluster in slab.clusters:
            if cluster != FREE:
                self._unlink(cluster, number)
        self.counters.slabs_returned += 1
        return slab

    def strip(self, number: int) -> None:
        """Takes a slab from all its clusters, at once."""
        for cluster in self.residents(number):
            self.give(cluster, number)

    def open_views(self) -> tuple[SlabView, ...]:
        """Slabs with room that take clusters, as the packing sees them."""
        slabs = (self.slabs[number] for number in sorted(self._open))
        return tuple(
            SlabView(slab=s.slab, donor=s.donor, home_range=s.home_range, free=s.free)
            for s in slabs
            if not s.draining
        )  # fmt: skip

    def empty_slabs(self) -> tuple[int, ...]:
        """Slabs that no cluster uses and that are not being emptied."""
        slabs = (self.slabs[number] for number in self._open)
        return tuple(slab.slab for slab in slabs if not slab.draining and not slab.used)

    # ---------------------------------------------------------------- clusters

    def take(self, assignments: Iterable[Assignment]) -> None:
        """Gives extents to clusters."""
        for a in assignments:
            slab = self.slabs[a.slab]
            assert slab.clusters[a.extent] == FREE
            assert a.slab not in self._homes.get(a.cluster, {})
            slab.clusters[a.extent] = a.cluster
            if FREE not in slab.clusters:
                self._open.discard(a.slab)
            self._homes.setdefault(a.cluster, {})[a.slab] = a.extent

    def give(self, cluster: int, slab: int) -> None:
        """Takes the cluster's extent on a slab back; nothing happens when it has none there."""
        extent = self._homes.get(cluster, {}).get(slab)
        if extent is not None:
            self.slabs[slab].clusters[extent] = FREE
            self._open.add(slab)
            self._unlink(cluster, slab)

    def _unlink(self, cluster: int, slab: int) -> None:
        homes = self._homes[cluster]
        del homes[slab]
        if not homes:
            del self._homes[cluster]

    def homes(self, cluster: int) -> dict[int, int]:
        """The cluster's homes, slab number to extent, draining ones included."""
        return dict(self._homes.get(cluster, {}))

    def live_homes(self, cluster: int) -> tuple[Slab, ...]:
        """The slabs that hold the cluster and are not being emptied."""
        slabs = (self.slabs[number] for number in self._homes.get(cluster, {}))
        return tuple(slab for slab in slabs if not slab.draining)

    def residents(self, slab: int) -> tuple[int, ...]:
        """The clusters with an extent on a slab."""
        return tuple(cluster for cluster in self.slabs[slab].clusters if cluster != FREE)

    def mapped(self) -> Iterator[int]:
        """Clusters that have a home of any kind."""
        return iter(self._homes)
