"""What a profiler measures, and in which order: the most useful first, and each round in a new random order. PURE."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

PARTS = (20, 40, 50, 60, 80, 100)
WHOLE_PCT = 100


class Side(NamedTuple):
    """A model that runs in batches of a size on a part of the device."""

    model: str
    part_pct: int
    batch: int


# One side alone, or two beside each other on the whole device.
Cell = tuple[Side, ...]


def batches_of(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the largest."""
    return tuple(sorted({min(1 << power, largest) for power in range(largest.bit_length() + 1)}))


def few(batches: Sequence[int]) -> tuple[int, ...]:
    """The smallest, the middle and the largest: 1, 8 and 32 of 1, 2, 4, 8, 16, 32."""
    return tuple(sorted({batches[0], batches[len(batches) // 2], batches[-1]}))


def needed(models: Mapping[str, int], parts: Sequence[int]) -> tuple[Cell, ...]:
    """What a profile can't do without: each model alone on each part in few sizes.

    Args:
        models: Largest batch by name.
        parts: In percent; 100 is among them.
    """
    return tuple(
        (Side(name, part, batch),)
        for name, largest in models.items()
        for part in parts
        for batch in few(batches_of(largest))
    )


def beside(models: Mapping[str, int], parts: Sequence[int]) -> tuple[Cell, ...]:
    """Co-runs of all pairs of models, also of one with itself, on all pairs of parts that add up, in few sizes."""
    sizes = {name: few(batches_of(largest)) for name, largest in models.items()}
    names = sorted(models)
    found = []
    for part in sorted(one for one in parts if one <= WHOLE_PCT // 2 and WHOLE_PCT - one in parts):
        for at, name in enumerate(names):
            for other in names[at:] if 2 * part == WHOLE_PCT else names:
                for batch in sizes[name]:
                    for other_batch in sizes[other]:
                        pair = Side(name, part, batch), Side(other, WHOLE_PCT - part, other_batch)
                        if 2 * part != WHOLE_PCT or name != other or batch <= other_batch:
                            found.append(pair)
    return tuple(found)


def rest(models: Mapping[str, int], parts: Sequence[int]) -> tuple[Cell, ...]:
    """All other sizes of each model alone."""
    return tuple(
        (Side(name, part, batch),)
        for name, largest in models.items()
        for part in parts
        for batch in batches_of(largest)
        if batch not in few(batches_of(largest))
    )


def round_of(models: Mapping[str, int], parts: Sequence[int], rng: random.Random) -> Iterator[Cell]:
    """All cells once: those that are needed, then co-runs, then the rest, each of the three in random order."""
    for cells in (needed(models, parts), beside(models, parts), rest(models, parts)):
        mixed = list(cells)
        rng.shuffle(mixed)
        yield from mixed


def monotone(points: Mapping[int, float], wanted: Sequence[int]) -> dict[int, float]:
    """Values for wanted batches that are not among the points: linear between the two next to each, and no less than
    the one below. ``points`` has the least and the largest of them.
    """
    known = sorted(points)
    found = {}
    for batch in sorted(set(wanted) - points.keys()):
        low = max(one for one in known if one < batch)
        high = min(one for one in known if one > batch)
        found[batch] = points[low] + max(0.0, points[high] - points[low]) * (batch - low) / (high - low)
    return found
