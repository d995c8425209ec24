"""Totals of the engine's counters over all processes that have served a device.

The engine counts from zero in each process; what the processes before counted is kept in the control state, saved once
a second, so that a killed process takes at most its last second along.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields

from farside.kmod_shim.engine.binding import LATENCY_BUCKETS, EngineStats

LONGEST = "longest_request_ns"


def add_stats(before: Mapping[str, int], stats: EngineStats) -> dict[str, int]:
    """Counters of earlier processes plus those of this one; the longest request is the longer of both.

    A histogram is a counter a bucket: see ``latency_buckets``.
    """
    total = {name: before.get(name, 0) + count for name, count in _flat(stats)}
    # The one figure that is no sum.
    total[LONGEST] = max(before.get(LONGEST, 0), stats.longest_request_ns)
    return total


def latency_buckets(totals: Mapping[str, int], kind: str) -> tuple[int, ...]:
    """The histogram of ``kind`` (read, write): bucket i counts requests that took [2^i, 2^(i+1)) ns."""
    return tuple(totals[f"latency_{kind}_{i}"] for i in range(LATENCY_BUCKETS))


def _flat(stats: EngineStats) -> Iterator[tuple[str, int]]:
    for name, value in ((field.name, getattr(stats, field.name)) for field in fields(stats)):
        if isinstance(value, tuple):
            yield from ((f"{name}_{i}", count) for i, count in enumerate(value))
        else:
            yield name, value
