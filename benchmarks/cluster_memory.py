"""A cluster's memory, second by second, around the live system's own functions: pure.

How it works. Every machine lends and borrows. A second has two steps: each donor's HeadRoom decision, and the recall
that may follow from it (farside.daemon.headroom, farside.daemon.slab.eviction); then each device's activity and leases
(``cluster_device``; farside.blockdev.mapping.placement chooses the donor). These are the functions that ``farside
daemon`` and ``farside blockdev`` call; only who feeds them and the clock differ.

What is simpler than life: a message takes no time, a recall ends within its second or is cut by its deadline, and a
program that pages keeps its speed. [infiniswap §2.7.5]
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, pstdev

from benchmarks.cluster_device import Device, Layout, Moved
from benchmarks.cluster_load import GIB, Load, MachineLoad
from benchmarks.donor_choice import global_best, two_choices, uniform_random
from farside.blockdev.mapping.placement import DonorView, Verdict
from farside.daemon.headroom import (
    Grow,
    HeadroomParams,
    MemorySnapshot,
    Recall,
    ReleaseUnmapped,
    decide,
    default_headroom_bytes,
    leasable_slabs,
    smoothed_use_bytes,
)
from farside.daemon.slab.eviction import MappedSlab, candidates, choose

BETA = 0.2  # [infiniswap §2.7]
Placement = Callable[[Sequence[DonorView], random.Random, frozenset[int]], Verdict]


def place_by_two(views: Sequence[DonorView], rng: random.Random, banned: frozenset[int]) -> Verdict:
    """Power of two choices, as a device does it. [infiniswap §2.4.2]"""
    return two_choices(views, choices=2, rng=rng, banned=banned)


def place_at_random(views: Sequence[DonorView], rng: random.Random, banned: frozenset[int]) -> Verdict:
    """Any donor with room."""
    return uniform_random(views, rng=rng, banned=banned)


def place_by_all(views: Sequence[DonorView], rng: random.Random, banned: frozenset[int]) -> Verdict:
    """The least used of all, as one who sees every machine at every moment would."""
    return global_best(views, rng=rng, banned=banned)


PLACEMENTS: Mapping[str, Placement] = {
    "power of two": place_by_two,
    "random": place_at_random,
    "global view": place_by_all,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParams:
    """A simulated cluster. The defaults are the paper's machines and slabs. [infiniswap §2.7]"""

    total_bytes: int = 64 * GIB
    slab_bytes: int = GIB
    device_bytes: int = 24 * GIB
    layout: Layout = Layout.PACKED
    placement: str = "power of two"
    run_s: int = 300
    measured_from_s: int = 150  # what grows has grown by then; figures are averages from here on
    extra: int = -1  # E': as many as E


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """How evenly memory is used over the machines; shares of their memory, 0 to 1, averaged over the measured time."""

    mean: float
    most: float
    median: float
    least: float
    deviation: float

    @property
    def most_to_median(self) -> float:
        """Figure 2.18b's first ratio."""
        return self.most / self.median if self.median else float("inf")

    @property
    def most_to_least(self) -> float:
        """Figure 2.18b's second ratio."""
        return self.most / self.least if self.least else float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterResult:
    """What a simulated run came to."""

    without: Balance  # what the machines' own programs hold
    leased: Balance  # with Farside; whole slabs count, as a donor's free memory sees them
    live_mean: float  # with Farside; only pages with content count
    remote_share: float  # of all that was paged out: in donors' memory
    fullest_lender: float  # the largest share of memory in use on a machine that lent some, at any moment
    slabs_at_end: int
    recalls: int
    moved_pages: int
    dropped_pages: int

    @property
    def moved_share(self) -> float:
        """Of the pages on recalled slabs, those that stayed remote."""
        pages = self.moved_pages + self.dropped_pages
        return self.moved_pages / pages if pages else 1.0


def balance(shares: Sequence[float]) -> Balance:
    """The balance of machines that use these shares of their memory."""
    return Balance(
        mean=fmean(shares), most=max(shares), median=median(shares), least=min(shares), deviation=pstdev(shares)
    )


class Donor:
    """A machine's lending side: its smoothed memory use and its slabs. Mutable: it owns both."""

    def __init__(self, params: HeadroomParams, total_bytes: int) -> None:
        self._params = params
        self._total_bytes = total_bytes
        self._use_bytes: float | None = None
        self.local_bytes = 0
        self.unmapped = 0
        self.mapped: dict[int, MappedSlab] = {}

    def measure(self, local_bytes: int) -> None:
        """A second's sample of what everybody else uses."""
        self.local_bytes = local_bytes
        self._use_bytes = smoothed_use_bytes(self._use_bytes, local_bytes, BETA)

    def snapshot(self) -> MemorySnapshot:
        """What the HeadRoom functions look at."""
        return MemorySnapshot(
            total_bytes=self._total_bytes,
            used_bytes=self._use_bytes or 0.0,
            used_now_bytes=self.local_bytes,
            unmapped=self.unmapped,
            mapped=len(self.mapped),
        )

    def decide(self) -> Recall | None:
        """Makes and frees unmapped slabs; what is to be recalled, if anything."""
        recall = None
        for action in decide(self.snapshot(), self._params):
            if isinstance(action, Grow):
                self.unmapped += action.count
            elif isinstance(action, ReleaseUnmapped):
                self.unmapped -= action.count
            elif isinstance(action, Recall):
                recall = action
        return recall

    def lend(self, slab: int, now_s: float) -> None:
        """Leases a slab: one that stands ready, else one made now."""
        self.unmapped = max(0, self.unmapped - 1)
        self.mapped[slab] = MappedSlab(lease=slab, leased_at_s=now_s)

    def view(self, donor: int) -> DonorView:
        """What FREE_MEM tells a device."""
        return DonorView(
            donor=donor,
            free_slabs=leasable_slabs(self.snapshot(), self._params),
            used_bytes=self.local_bytes + len(self.mapped) * self._params.slab_bytes,
            total_bytes=self._total_bytes,
        )


class Cluster:
    """The machines, their devices, and who holds what. Mutable: it owns them."""

    def __init__(self, load: Load, params: ClusterParams, rng: random.Random) -> None:
        self._load = load
        self._params = params
        self._rng = rng
        self._place = PLACEMENTS[params.placement]
        headroom = HeadroomParams(
            slab_bytes=params.slab_bytes,
            headroom_bytes=default_headroom_bytes(params.total_bytes),
            hysteresis_bytes=params.slab_bytes,
            preallocate_slabs=2,
        )
        self._donors = [Donor(headroom, params.total_bytes) for _ in range(load.machines)]
        self._devices = [
            Device(size_bytes=params.device_bytes, slab_bytes=params.slab_bytes, layout=params.layout, rng=rng)
            for _ in range(load.machines)
        ]
        self._views = [donor.view(number) for number, donor in enumerate(self._donors)]
        self._owners: dict[int, int] = {}  # slab -> the device that has it
        self._next_slab = 0
        self._now_s = 0.0
        self._recalls = 0
        self._moved = Moved(moved_pages=0, dropped_pages=0)

    def run(self) -> ClusterResult:
        """Runs the whole time and sums up."""
        machines, total_bytes = self._load.machines, self._params.total_bytes
        local, leased = [0.0] * machines, [0.0] * machines
        paged_pages = remote_pages = 0
        fullest_bytes = 0
        for second in range(self._params.run_s):
            self._now_s = float(second)
            loads = self._load.at(self._now_s)
            self._step(loads)
            if second < self._params.measured_from_s:
                continue
            for number, (now, donor) in enumerate(zip(loads, self._donors, strict=True)):
                lent_bytes = len(donor.mapped) * self._params.slab_bytes
                local[number] += now.local_bytes
                leased[number] += now.local_bytes + lent_bytes
                if lent_bytes:
                    fullest_bytes = max(fullest_bytes, now.local_bytes + lent_bytes)
            paged_pages += sum(now.paged_bytes for now in loads) // 4096
            remote_pages += sum(device.remote_pages for device in self._devices)
        scale = total_bytes * (self._params.run_s - self._params.measured_from_s)
        return ClusterResult(
            without=balance([value / scale for value in local]),
            leased=balance([value / scale for value in leased]),
            live_mean=(sum(local) + remote_pages * 4096) / scale / machines,
            remote_share=min(1.0, remote_pages / paged_pages) if paged_pages else 1.0,
            fullest_lender=fullest_bytes / total_bytes,
            slabs_at_end=sum(len(donor.mapped) for donor in self._donors),
            recalls=self._recalls,
            moved_pages=self._moved.moved_pages,
            dropped_pages=self._moved.dropped_pages,
        )

    def _step(self, loads: Sequence[MachineLoad]) -> None:
        # 1. Donors look at their memory and take back what they need.
        for number, (donor, now) in enumerate(zip(self._donors, loads, strict=True)):
            donor.measure(now.local_bytes)
            recall = donor.decide()
            if recall is not None:
                self._recall(number, recall)
            self._refresh(number)
        # 2. Devices page, and lease what turned hot. No machine is always the first.
        order = list(range(len(self._devices)))
        self._rng.shuffle(order)
        for number in order:
            self._devices[number].page(loads[number].paged_bytes, self._lender(number), self._take_back)

    def _recall(self, number: int, recall: Recall) -> None:
        donor = self._donors[number]
        asked = candidates(tuple(donor.mapped.values()), count=recall.count, extra=self._params.extra, rng=self._rng)
        activity = {s.lease: self._devices[self._owners[s.lease]].slab_activity(s.lease) for s in asked}
        for victim in choose(asked, activity, count=recall.count):
            owner = self._owners.pop(victim.lease)
            del donor.mapped[victim.lease]
            self._refresh(number)
            moved = self._devices[owner].recall(victim.lease, recall.deadline_s, self._lender(owner))
            self._recalls += 1
            self._moved = Moved(
                moved_pages=self._moved.moved_pages + moved.moved_pages,
                dropped_pages=self._moved.dropped_pages + moved.dropped_pages,
            )

    def _lender(self, borrower: int) -> Callable[[int, frozenset[int]], tuple[int, int] | None]:
        def lend(_: int, banned: frozenset[int]) -> tuple[int, int] | None:
            views = list(self._views)
            for donor, slabs in self._devices[borrower].donors.items():
                views[donor] = replace(views[donor], slabs=slabs)
            verdict = self._place(views, self._rng, banned | {borrower})
            if verdict.donor is None:
                return None
            slab, self._next_slab = self._next_slab, self._next_slab + 1
            self._donors[verdict.donor].lend(slab, self._now_s)
            self._owners[slab] = borrower
            self._refresh(verdict.donor)
            return slab, verdict.donor

        return lend

    def _take_back(self, slab: int) -> None:
        del self._owners[slab]
        for number, donor in enumerate(self._donors):
            if donor.mapped.pop(slab, None):
                donor.unmapped += 1
                self._refresh(number)
                return

    def _refresh(self, number: int) -> None:
        self._views[number] = self._donors[number].view(number)


def simulate(load: Load, params: ClusterParams, *, seed: int) -> ClusterResult:
    """One run of a cluster under a load; the same seed gives the same result."""
    return Cluster(load, params, random.Random(seed)).run()
