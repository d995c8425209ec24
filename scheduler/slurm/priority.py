"""An order of jobs as strictly falling priorities, with as few changes as possible. PURE.

Each change is a call to Slurm, so a job that comes should cost one, wherever it stands. The longest part of the order
that has falling priorities already stays; the others get numbers in the gaps, evenly. Only where a gap is too narrow
are all numbered anew.
"""

from bisect import bisect_left
from collections.abc import Sequence

from farside.scheduler.slurm.snapshot import PRIORITY_HIGH, PRIORITY_LOW


def changes(
    current: Sequence[int], *, low: int = PRIORITY_LOW, high: int = PRIORITY_HIGH
) -> tuple[tuple[int, int], ...]:
    """(place in the order, its new priority) for each that has to change, the first of the order first.

    ``current``: the priorities now, by order. Those given lie between ``low`` and ``high`` without these two, and one
    that does not is never kept.
    """
    kept = _longest_falling(current, low, high)
    found: list[tuple[int, int]] = []
    above, begin = high, 0
    for at in [*kept, len(current)]:
        below = current[at] if at < len(current) else low
        count = at - begin
        if above - below <= count:
            return _all_anew(len(current), low, high)
        found += [(begin + one, above - (above - below) * (one + 1) // (count + 1)) for one in range(count)]
        above, begin = below, at + 1
    return tuple(found)


def _all_anew(count: int, low: int, high: int) -> tuple[tuple[int, int], ...]:
    if high - low <= count:
        raise ValueError(f"{count} jobs have no room between {low} and {high}")
    return tuple((at, high - (high - low) * (at + 1) // (count + 1)) for at in range(count))


def _longest_falling(current: Sequence[int], low: int, high: int) -> list[int]:
    """Places of the longest strictly falling part of what lies in the band. Patience sorting: n log n."""
    tails: list[int] = []  # of each length the place of the end with the greatest value
    keys: list[int] = []  # their values with the sign turned, so ascending
    before: dict[int, int] = {}
    for at, value in enumerate(current):
        if not low < value < high:
            continue
        length = bisect_left(keys, -value)
        if length:
            before[at] = tails[length - 1]
        if length == len(tails):
            tails.append(at)
            keys.append(-value)
        else:
            tails[length], keys[length] = at, -value
    found: list[int] = []
    at = tails[-1] if tails else -1
    while at >= 0:
        found.append(at)
        at = before.get(at, -1)
    return found[::-1]
