"""Which of a GPU's granules of SMs each part has. PURE.

Each part has a range of them. Parts that fit beside each other have none in common; while there are more, as when a
plan replaces another one, the newer ones are put where they are shared least.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

WHOLE_PCT = 100


def granules_of(part_pct: int, total: int) -> int:
    """How many granules a part of ``part_pct`` percent has: rounded down, so that parts of 100 % together fit; one at
    least.
    """
    return max(1, part_pct * total // WHOLE_PCT)


def assign(parts: Sequence[tuple[int, int]], total: int, before: Mapping[int, range]) -> dict[int, range]:
    """The range of each part.

    Args:
        parts: Numbers of parts and their sizes in percent, the oldest first.
        total: Granules of the GPU.
        before: Ranges that parts have now; they stay where that costs nobody anything.

    Returns:
        Ranges by number. No two of them overlap where all parts fit beside each other.
    """
    counts = [(part, granules_of(part_pct, total)) for part, part_pct in parts]
    found: dict[int, range] = {}
    for part, count in counts:
        found[part] = _least_shared(count, total, found.values(), before.get(part))
    if sum(count for _, count in counts) <= total and _overlaps(found.values()):
        start = 0
        for part, count in counts:
            found[part] = range(start, start + count)
            start += count
    return found


def _least_shared(count: int, total: int, placed: Iterable[range], own: range | None) -> range:
    others = list(placed)

    def cost(candidate: range) -> tuple[int, bool, int]:
        return sum(_common(candidate, other) for other in others), candidate != own, candidate.start

    return min((range(start, start + count) for start in range(total - count + 1)), key=cost)


def _overlaps(ranges: Iterable[range]) -> bool:
    ordered = sorted(ranges, key=lambda one: one.start)
    return any(_common(one, other) for one, other in itertools.pairwise(ordered))


def _common(one: range, other: range) -> int:
    return max(0, min(one.stop, other.stop) - max(one.start, other.start))
