"""Groupings of few jobs made better step by step, by the score itself. PURE."""

import math
from collections.abc import Callable, Iterator, Sequence

from farside.group_time import WorkProfile

Group = tuple[tuple[WorkProfile, ...], int]
_LEAST_GAIN = 1e-6


def climb(groups: Sequence[Group], busy: Callable[[Group], float]) -> list[Group]:
    """Groups after the best changes of two of them, one at a time, while any keeps more machines busy.

    A change moves a machine, moves a job, or exchanges two jobs. The sum rises with each, so this ends.

    Args:
        groups: Jobs of each group, and its machines.
        busy: How many of its machines a group keeps busy; minus infinity where it has no room.
    """
    found, values = list(groups), [busy(group) for group in groups]
    while True:
        gain, change = _LEAST_GAIN, None
        for one in range(len(found)):
            for other in range(len(found)):
                for pair in _changes(found[one], found[other], is_first=one < other) if one != other else ():
                    rise = busy(pair[0]) + busy(pair[1]) - values[one] - values[other]
                    if rise > gain and not math.isinf(rise):
                        gain, change = rise, (one, other, pair)
        if change is None:
            return found
        one, other, pair = change
        found[one], found[other] = pair
        values[one], values[other] = map(busy, pair)


def _changes(one: Group, other: Group, *, is_first: bool) -> Iterator[tuple[Group, Group]]:
    """What becomes of two groups where the first gives a machine or a job; exchanges of jobs if `is_first`."""
    (ours, held), (theirs, kept) = one, other
    if held > 1:
        yield (ours, held - 1), (theirs, kept + 1)
    for at, job in enumerate(ours):
        rest = (*ours[:at], *ours[at + 1 :])
        if rest:
            yield (rest, held), ((*theirs, job), kept)
        for place, taken in enumerate(theirs if is_first else ()):
            yield ((*rest, taken), held), ((*theirs[:place], *theirs[place + 1 :], job), kept)
