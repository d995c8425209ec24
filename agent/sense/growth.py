"""Growth of error counters within the last hour; healthy links have some errors too. PURE."""

import math
from collections import Counter, deque
from collections.abc import Mapping

STEP_S = 300.0
STEPS = 12


class HourlyGrowth:
    """Counters by name, each counted from the first time that it was seen; what is older than an hour is forgotten.

    It slides by five minutes. A counter that stands lower than before was set back by somebody, and counts from there.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._steps: deque[tuple[int, Counter[str]]] = deque()

    def of(self, counts: Mapping[str, int], now_s: float) -> Mapping[str, int]:
        """Growth of each counter within the hour; counters that did not grow are left out."""
        # A counter that is seen for the first time has grown by nothing: what was before is not known to be of this
        # hour.
        more = Counter({name: count - self._last.get(name, count) for name, count in counts.items()})
        self._last.update(counts)
        step = math.floor(now_s / STEP_S)
        while self._steps and self._steps[0][0] <= step - STEPS:
            self._steps.popleft()
        if not self._steps or self._steps[-1][0] != step:
            self._steps.append((step, Counter()))
        # The unary plus drops what fell: a counter that was set back.
        self._steps[-1][1].update(+more)
        return sum((grown for _, grown in self._steps), Counter())


def problem_of(grown: Mapping[str, int], limit: int) -> str:
    """``1,204 errors within an hour (1,200 replay, 4 recovery)`` if above ``limit``, otherwise empty."""
    total = sum(grown.values())
    if total <= limit:
        return ""
    most_first = sorted(grown.items(), key=lambda one: (-one[1], one[0]))
    return f"{total:,} errors within an hour ({', '.join(f'{count:,} {name}' for name, count in most_first)})"
