"""Targets of the project, and the check whether a run reached them. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import geometric_mean, median, quantiles

from benchmarks.result import Point, Run, Rw, Sample
from benchmarks.summary import Summaries, p99_ratio, ratio, summarise

OURS_SHM, OURS_DISK, OURS_TCP = "farside-shm", "farside-shm-disk", "farside-tcp"
LOCAL_PEERS = ("nbdkit-memory", "nbd-server")
FORWARD_PEER, FLOOR = "nbdkit-forward", "floor"
PAGE_BYTES = 4096
ADDED_MOST_US = 10.0  # over the floor, at depth 1
SECOND_CONNECTION_LEAST = 1.8
CORES_FOR_SECOND = 4  # two client threads and two of the server's
RECALL_LEAST = 0.95
SINGLE_READS = Point(rw=Rw.READ, block_bytes=PAGE_BYTES, depth=1, connections=1)
CLEAR = "-clear"  # behind a name: pages are not encrypted
SEALED_CPU_MOST, SEALED_SLOWER_MOST = 1.25, 1.1  # over clear pages: processor time a request, reads at depth 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One target: what was asked, what was measured, and whether that is enough (None: it could not be told here)."""

    target: str
    reached: bool | None
    measured: str


def verdicts(run: Run) -> tuple[Verdict, ...]:
    """Every target, in the order of the list in docs/benchmarks.md."""
    summaries = summarise(run.samples)
    points = sorted({point for _, point in summaries if point.block_bytes == PAGE_BYTES})
    found = [_ahead(summaries, OURS_SHM, peer, points) for peer in LOCAL_PEERS]
    found += [_added(summaries, rw) for rw in Rw]
    found += [_second_connection(summaries, rw, run.machine.cores) for rw in Rw]
    found += [_ahead(summaries, OURS_TCP, FORWARD_PEER, points), _recall(run), _no_wrong_byte(summaries)]
    found += [_sealed_cpu(summaries), _sealed_reads(run.samples)]
    return tuple(found)


def _ahead(summaries: Summaries, ours: str, peer: str, points: Iterable[Point]) -> Verdict:
    target = f"{ours} at least as fast as {peer} at every 4 KiB point, IOPS and p99"
    rates = {p: r for p in points if (r := ratio(summaries, ours, peer, p)) is not None}
    tails = {p: r for p in rates if (r := p99_ratio(summaries, ours, peer, p)) is not None}
    if not rates:
        return Verdict(target=target, reached=None, measured="not measured")
    short = {p: text for p in rates if (text := _shortfall(rates[p], tails.get(p, 1.0)))}
    span = f"IOPS {_span(rates.values())} times theirs, p99 shorter {_span(tails.values())} times"
    behind = "; ".join(f"{point.name} by {text}" for point, text in short.items())
    return Verdict(target=target, reached=not short, measured=f"{span}. Behind at: {behind}" if short else span)


def _span(ratios: Iterable[float]) -> str:
    ordered = sorted(ratios)
    return f"{ordered[0]:.2f} to {ordered[-1]:.2f}"


def _shortfall(rate: float, tail: float) -> str:
    found = [f"{100 * (1 - r):.0f} % {what}" for r, what in ((rate, "IOPS"), (tail, "p99")) if r < 1]
    return ", ".join(found)


def _added(summaries: Summaries, rw: Rw) -> Verdict:
    target = f"{OURS_SHM} adds at most {ADDED_MOST_US:.0f} us to the floor's median at depth 1, {rw}"
    point = Point(rw=rw, block_bytes=PAGE_BYTES, depth=1, connections=1)
    ours, floor = summaries.get((OURS_SHM, point)), summaries.get((FLOOR, point))
    if not ours or not floor:
        return Verdict(target=target, reached=None, measured="not measured")
    added = ours.p50_us.median - floor.p50_us.median
    text = f"{added:+.1f} us ({ours.p50_us.median:.1f} against {floor.p50_us.median:.1f})"
    return Verdict(target=target, reached=added <= ADDED_MOST_US, measured=text)


def _second_connection(summaries: Summaries, rw: Rw, cores: int) -> Verdict:
    target = f"{OURS_SHM}: two connections at least {SECOND_CONNECTION_LEAST} times one where cores allow, {rw} d32"
    one, two = (Point(rw=rw, block_bytes=PAGE_BYTES, depth=32, connections=c) for c in (1, 2))
    a, b = summaries.get((OURS_SHM, one)), summaries.get((OURS_SHM, two))
    if not a or not b:
        return Verdict(target=target, reached=None, measured="not measured")
    gain = b.iops.median / a.iops.median
    if cores < CORES_FOR_SECOND:
        why = f"{gain:.2f} times on {cores} cores, which one connection and its client fill already"
        return Verdict(target=target, reached=True if gain >= SECOND_CONNECTION_LEAST else None, measured=why)
    return Verdict(target=target, reached=gain >= SECOND_CONNECTION_LEAST, measured=f"{gain:.2f} times")


def _sealed_cpu(summaries: Summaries) -> Verdict:
    target = f"encryption: at most {SEALED_CPU_MOST} times the processor time a request by TCP"
    points = [point for name, point in summaries if name == OURS_TCP and (OURS_TCP + CLEAR, point) in summaries]

    def cpu_us(name: str, point: Point) -> float:
        return sum(summaries[name, point].cpu_us_per_request.values())

    times = [cpu_us(OURS_TCP, point) / cpu_us(OURS_TCP + CLEAR, point) for point in points]
    if not times:
        return Verdict(target=target, reached=None, measured="not measured")
    middle = geometric_mean(times)
    return Verdict(target=target, reached=middle <= SEALED_CPU_MOST, measured=f"{middle:.2f}, {_span(times)}")


def quarters(values: list[float]) -> str:
    """Between which values the middle half of them lies; one value stands for itself."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else [*values] * 3
    return f"{low:.2f} to {high:.2f}"


def _sealed_reads(samples: Iterable[Sample]) -> Verdict:
    target = f"encryption: reads at depth 1 by TCP at most {SEALED_SLOWER_MOST} times slower"
    by_server: dict[str, dict[int, float]] = {OURS_TCP: {}, OURS_TCP + CLEAR: {}}
    for sample in samples:
        if sample.point == SINGLE_READS and sample.server in by_server:
            by_server[sample.server][sample.repetition] = sample.p50_us
    ours, clear = by_server.values()
    times = [ours[repetition] / clear[repetition] for repetition in sorted(ours.keys() & clear.keys())]
    if not times:
        return Verdict(target=target, reached=None, measured="not measured")
    middle = median(times)
    text = (
        f"{middle:.2f} times, half of {len(times)} repetitions {quarters(times)} "
        f"({median(ours.values()):.1f} us against {median(clear.values()):.1f})"
    )
    return Verdict(target=target, reached=middle <= SEALED_SLOWER_MOST, measured=text)


def _recall(run: Run) -> Verdict:
    target = f"at least {RECALL_LEAST:.0%} of a recalled donor's live pages remote after 5 s, with room elsewhere"
    recall = run.recall
    if recall is None:
        return Verdict(target=target, reached=None, measured="not measured")
    text = f"{recall.share:.1%} of {recall.live_pages} pages, in {recall.took_s:.2f} s"
    return Verdict(target=target, reached=recall.share >= RECALL_LEAST, measured=text)


def _no_wrong_byte(summaries: Summaries) -> Verdict:
    wrong = {summary.server: summary.wrong for summary in summaries.values() if summary.wrong}
    return Verdict(
        target="no failed request and no wrong stamp from any server",
        reached=not wrong,
        measured=", ".join(f"{name}: {count}" for name, count in wrong.items()) or "none",
    )
