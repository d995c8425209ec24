"""By how much error counters have grown within an hour: links that are well have some errors too. PURE."""

import math
from collections.abc import Mapping

PERIOD_S = 3600.0


class HourlyGrowth:
    """Counters by name, each counted from the first time that it was seen, and anew every hour.

    One that stands lower than before was set back by somebody, and counts from there.
    """

    def __init__(self) -> None:
        self._begun_s = math.inf
        self._base: dict[str, int] = {}

    def of(self, counts: Mapping[str, int], now_s: float) -> Mapping[str, int]:
        """By how much each of these is more than it was; those that are not are left out."""
        for name, count in counts.items():
            self._base[name] = min(count, self._base.get(name, count))
        grown = {name: count - self._base[name] for name, count in counts.items() if count > self._base[name]}
        self._begun_s = min(now_s, self._begun_s)
        if now_s - self._begun_s >= PERIOD_S:
            self._begun_s, self._base = now_s, dict(counts)
        return grown


def problem_of(grown: Mapping[str, int], limit: int) -> str:
    """``1,204 errors within an hour (1,200 replay, 4 recovery)`` where they are more than ``limit``; else empty."""
    total = sum(grown.values())
    if total <= limit:
        return ""
    most_first = sorted(grown.items(), key=lambda one: (-one[1], one[0]))
    return f"{total:,} errors within an hour ({', '.join(f'{count:,} {name}' for name, count in most_first)})"
