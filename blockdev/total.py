"""The engine's counters over all processes that have served a device.

The engine counts from zero in each process; what the processes before counted is kept in the control state, saved once
a second, so that a killed process takes at most its last second along.
"""

from collections.abc import Mapping
from dataclasses import fields

from farside.kmod_shim.engine.binding import EngineStats

LONGEST = "longest_request_ns"
_NOT_SUMMED = frozenset({LONGEST, "latency_read", "latency_write"})


def add_stats(before: Mapping[str, int], stats: EngineStats) -> dict[str, int]:
    """Counters of the processes before plus those of this one; for the longest request, the longer."""
    total = {
        field.name: before.get(field.name, 0) + int(getattr(stats, field.name))
        for field in fields(EngineStats)
        if field.name not in _NOT_SUMMED
    }
    total[LONGEST] = max(before.get(LONGEST, 0), stats.longest_request_ns)
    return total
