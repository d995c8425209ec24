"""Record of a running simulation: GPUs in use, queue, fragmentation, and each job's GPUs. PURE.

Memory is bounded: quantities are resampled (series.py), and of the stretches of time that a job held GPUs of a node the
`SEGMENTS` longest are kept; the others would be thinner than a line in any picture.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from farside.scheduler.domain import Domain
from farside.scheduler.ledger import Ledger
from farside.scheduler.sim.result.fragmentation import stranded_share
from farside.scheduler.sim.result.series import Series, SeriesRecorder
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.state import Action, Allocation, Preempt, Start

SEGMENTS = 5000
# Places of the quantities in the series.
USED, CAPACITY, WAITING, STRANDED = range(4)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Segment:
    """A job (its row) held ``gpus`` of a node, those from ``first_gpu`` on: by ours, for no system numbers them so."""

    start_s: float
    end_s: float
    vc: str
    node: int
    first_gpu: int
    gpus: int
    row: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Recording of a simulation.

    Attributes:
        series: GPUs in use, GPUs there are, jobs that wait, and stranded GPUs (`stranded_gpus`).
        segments: By start; the longest ones.
        all_segments: How many there were.
        nodes: Names of nodes by virtual cluster, each with its GPUs; those of one pool where nodes do not count.
    """

    series: Series
    segments: tuple[Segment, ...]
    all_segments: int
    nodes: Mapping[str, tuple[tuple[str, int], ...]]

    @property
    def utilisation(self) -> float:
        """GPU time in use over GPU time there, from the first submission to the last end; 0 where there was none."""
        capacity = float(self.series.mean[CAPACITY])
        return float(self.series.mean[USED]) / capacity if capacity else 0.0

    @property
    def fragmentation(self) -> float:
        """Share of all GPUs that were stranded: free, but of no use to a job of a whole node."""
        capacity = float(self.series.mean[CAPACITY])
        return float(self.series.mean[STRANDED]) / capacity if capacity else 0.0


def stranded_gpus(ledger: Ledger) -> int:
    """Free GPUs that no job as large as the largest node could use. Where nodes do not count, none is stranded."""
    if ledger.is_pooled or not ledger.free_gpus:
        return 0
    return round(ledger.free_gpus * stranded_share(ledger, max(ledger.capacity)))


class Recorder:
    """Recorder of one simulation, as an observer; add it before the run.

    Args:
        simulation: Whose.
        is_keeping_segments: Also who held which GPUs, which takes longer.
    """

    def __init__(self, simulation: Simulation, *, is_keeping_segments: bool = True) -> None:
        self._domains = simulation.domains
        self._series = SeriesRecorder(4)
        self._sums = [0, sum(domain.ledger.total_gpus for domain in simulation.domains.values()), 0, 0]
        self._last = {name: (0, domain.ledger.total_gpus, 0, 0) for name, domain in simulation.domains.items()}
        self._lanes = _Lanes(simulation) if is_keeping_segments else None
        if simulation.jobs:
            self._series.add(simulation.jobs[0].job.submit_s, self._sums)
        simulation.observers.append(self)

    def __call__(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        """One cycle was run."""
        self._look(now_s, domain)
        for action in actions:
            if isinstance(action, Start) and action.host != domain.name:
                self._look(now_s, self._domains[action.host])  # it lends GPUs, and its own cycle may be over
        if self._lanes is not None and actions:
            self._lanes.carry_out(actions, now_s)

    def _look(self, now_s: float, domain: Domain) -> None:
        ledger, last = domain.ledger, self._last[domain.name]
        used = ledger.total_gpus - ledger.free_gpus
        values = (used, ledger.total_gpus, len(domain.waiting), stranded_gpus(ledger))
        if values != last:
            self._last[domain.name] = values
            self._sums = [total + new - old for total, new, old in zip(self._sums, values, last, strict=True)]
            self._series.add(now_s, self._sums)

    def finish(self, end_s: float) -> Recording:
        """Everything up to the last end."""
        kept, count = self._lanes.finish() if self._lanes else ((), 0)
        return Recording(
            series=self._series.finish(end_s),
            segments=kept,
            all_segments=count,
            nodes={
                name: tuple((node.name, node.gpus) for node in domain.ledger.nodes)
                for name, domain in self._domains.items()
            },
        )


class _Lanes:
    """Job on each GPU of each node. The end of a job is noticed when another job needs its GPUs."""

    def __init__(self, simulation: Simulation) -> None:
        self._domains = simulation.domains
        self._runs = simulation.runs
        self._holders: dict[tuple[str, int], list[int]] = {}
        self._since: dict[int, tuple[float, str, Allocation]] = {}
        self._kept: list[tuple[float, int, Segment]] = []  # a heap, the shortest first
        self._count = 0

    def carry_out(self, actions: tuple[Action, ...], now_s: float) -> None:
        for action in actions:
            if isinstance(action, Preempt):
                self._close(action.row, now_s)
            elif isinstance(action, Start):
                self._open(action.row, action.host, action.allocation, now_s)

    def finish(self) -> tuple[tuple[Segment, ...], int]:
        for row in list(self._since):
            self._close(row, self._runs[row].end_s)
        return tuple(sorted(segment for _, _, segment in self._kept)), self._count

    def _open(self, row: int, host: str, allocation: Allocation, now_s: float) -> None:
        if self._domains[host].ledger.is_pooled:
            return  # there are no nodes to tell apart
        self._since[row] = (now_s, host, allocation)
        for at, gpus in allocation:
            holders = self._holders.setdefault((host, at), [-1] * self._domains[host].ledger.nodes[at].gpus)
            for other in set(holders) - {-1}:
                if self._runs[other].end_s <= now_s:
                    self._close(other, self._runs[other].end_s)
            for lane in _first_lanes(holders, gpus):
                holders[lane] = row

    def _close(self, row: int, end_s: float) -> None:
        if row not in self._since:
            return
        start_s, host, allocation = self._since.pop(row)
        for at, _ in allocation:
            holders = self._holders[host, at]
            for first, gpus in _stretches([lane for lane, holder in enumerate(holders) if holder == row]):
                holders[first : first + gpus] = [-1] * gpus
                self._keep(Segment(start_s=start_s, end_s=end_s, vc=host, node=at, first_gpu=first, gpus=gpus, row=row))

    def _keep(self, segment: Segment) -> None:
        self._count += 1
        # Of equally long segments the later ones are dropped first.
        entry = (segment.end_s - segment.start_s, -self._count, segment)
        if len(self._kept) < SEGMENTS:
            heapq.heappush(self._kept, entry)
        else:
            heapq.heappushpop(self._kept, entry)


def _first_lanes(holders: list[int], gpus: int) -> list[int]:
    # In one piece where there is one, so that a job is one bar in the picture.
    free = [lane for lane, holder in enumerate(holders) if holder < 0]
    for first, length in _stretches(free):
        if length >= gpus:
            return list(range(first, first + gpus))
    return free[:gpus]


def _stretches(lanes: list[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for lane in lanes:
        if found and found[-1][0] + found[-1][1] == lane:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((lane, 1))
    return found
