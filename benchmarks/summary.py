"""Medians, spreads and ratios of a run's samples: pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.result import Point, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Middle:
    """Median of repeated measurements, and how far apart they lay."""

    median: float
    least: float
    most: float

    @property
    def spread_pct(self) -> float:
        """Distance from the least to the most, in percent of the median; 0 for a median of 0."""
        return 100 * (self.most - self.least) / self.median if self.median else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A server under one load: the middle of every figure."""

    server: str
    point: Point
    iops: Middle
    bytes_per_s: Middle
    p50_us: Middle
    p99_us: Middle
    cpu_us_per_request: Mapping[str, float]
    wrong: int  # failed and misread replies of all repetitions


Summaries = Mapping[tuple[str, Point], Summary]


def middle(values: Iterable[float]) -> Middle:
    """Median, least and most of at least one value."""
    ordered = sorted(values)
    return Middle(median=median(ordered), least=ordered[0], most=ordered[-1])


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of the sorted values lie, interpolated between neighbours."""
    assert ordered
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summarise(samples: Iterable[Sample]) -> dict[tuple[str, Point], Summary]:
    """One summary for each server and load, over its repetitions."""
    groups: dict[tuple[str, Point], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.server, sample.point), []).append(sample)
    return {key: _summary(*key, group) for key, group in groups.items()}


def _summary(server: str, point: Point, group: Sequence[Sample]) -> Summary:
    def of(value: Callable[[Sample], float]) -> Middle:
        return middle(value(sample) for sample in group)

    roles = sorted({role for sample in group for role in sample.cpu_us_per_request})
    return Summary(
        server=server,
        point=point,
        iops=of(lambda s: s.iops),
        bytes_per_s=of(lambda s: s.bytes_per_s),
        p50_us=of(lambda s: s.p50_us),
        p99_us=of(lambda s: s.p99_us),
        cpu_us_per_request={role: median(s.cpu_us_per_request.get(role, 0.0) for s in group) for role in roles},
        wrong=sum(s.failed + s.misread for s in group),
    )


def ratio(summaries: Summaries, ours: str, peer: str, point: Point) -> float | None:
    """Our requests a second over the peer's; None when one of them was not measured."""
    a, b = summaries.get((ours, point)), summaries.get((peer, point))
    return a.iops.median / b.iops.median if a and b and b.iops.median else None


def p99_ratio(summaries: Summaries, ours: str, peer: str, point: Point) -> float | None:
    """The peer's 99th percentile over ours (above 1: ours is shorter); None when one was not measured."""
    a, b = summaries.get((ours, point)), summaries.get((peer, point))
    return b.p99_us.median / a.p99_us.median if a and b and a.p99_us.median else None
