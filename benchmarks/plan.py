"""Plan of a run: its loads and their order. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.result import Point, Rw

PAGE_BYTES = 4096
SWEEP_BYTES = (16 << 10, 64 << 10, 256 << 10, 1 << 20)  # beside 4 KiB: the axis of [infiniswap Figure 2.12]
SWEEP_DEPTH = 8  # at 1 MiB this is 8 MiB in flight; deeper only measures the cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Loads, how long each is measured, and how often."""

    points: tuple[Point, ...]
    opinions: tuple[Point, ...]  # the loads that fio runs as well
    seconds: float
    warmup_s: float
    repetitions: int
    more: int = 20
    """Further repetitions of single reads with encrypted pages and with clear ones, which differ by less than runs."""


def page_points() -> tuple[Point, ...]:
    """4 KiB at depth 1 and 32 on 1 and 4 connections, both ways, and depth 32 on 2 to see what a second one brings."""
    shapes = ((1, 1), (1, 4), (32, 1), (32, 2), (32, 4))
    return tuple(Point(rw=rw, block_bytes=PAGE_BYTES, depth=d, connections=c) for d, c in shapes for rw in Rw)


def sweep_points(sizes: Sequence[int] = SWEEP_BYTES) -> tuple[Point, ...]:
    """Larger blocks at one depth on one connection."""
    return tuple(Point(rw=rw, block_bytes=size, depth=SWEEP_DEPTH, connections=1) for size in sizes for rw in Rw)


def full_plan() -> Plan:
    """What docs/benchmarks.md is made from: under ten minutes for eight servers."""
    opinions = tuple(p for p in page_points() if p.connections == 1 and (p.depth == 32 or p.rw is Rw.READ))
    return Plan(points=page_points() + sweep_points(), opinions=opinions, seconds=0.4, warmup_s=0.05, repetitions=5)


def quick_plan() -> Plan:
    """A look in about two minutes: fewer block sizes, shorter and fewer repetitions, no second opinion."""
    points = page_points() + sweep_points((64 << 10, 1 << 20))
    return Plan(points=points, opinions=(), seconds=0.3, warmup_s=0.03, repetitions=3)


def alternate(servers: Sequence[str], points: Sequence[Point], repetitions: range) -> Iterator[tuple[int, Point, str]]:
    """Every (repetition, point, server), servers next to each other in time and in another order each repetition.

    What drifts on a machine during a run (heat, neighbours) then falls on all servers alike: repetition r starts with
    another server, and every second one goes backwards.
    """
    for repetition in repetitions:
        start = repetition % len(servers) if servers else 0
        order = [*servers[start:], *servers[:start]]
        if repetition % 2:
            order.reverse()
        for point in points:
            for server in order:
                yield repetition, point, server
