"""Iteration marks found by bytes and pauses alone, whatever the order of messages. PURE. See iteration.py.

Where threads send in turn, the message that marks an iteration comes early in one and late in another; an iteration's
bytes are the same. So, for each number of bytes that lies between the marks that were found otherwise, the sequence is
gone through: from a message after one of the longest pauses to the one that begins so many bytes later, and on.
Where none begins there, it goes on after the next of these pauses.

Such a chain is believed where most of its windows begin after a pause that is about as long as any within: parts of one
iteration (two steps of an all-reduce, tensors of one size) follow each other at once, while between iterations
something is computed. Then the shortest is it, as what is alike from one iteration to the next is so over several, too.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low

from farside.agent.profile.message import PART_SHIFT, Message, size_class
from farside.agent.profile.pause import ITERATIONS_MIN
from farside.agent.profile.window import ALIKE_WITHIN, NONE, Windows, judged, middle_volume

AS_LONG = 0.5
"""A pause is about as long as another if it is at least so much of it."""
MOST = 0.7
"""Least share of the windows before which there is such a pause."""
FEW = 6
"""So many such pauses there may be for each window: where all pauses are about as long, they say nothing."""


def shortest(
    candidates: Sequence[Sequence[int]], least: float, sums: Sequence[int], flow: Sequence[Message]
) -> Windows:
    """The chain of most windows that is alike at ``least`` so much, if any is. ``candidates``: places found otherwise.

    Where these cut iterations, the middle of their bytes may not be that of an iteration. As many of the longest pauses
    cut none, if nothing else pauses as long.
    """
    pauses = [0, *(after.begin_ns - before.end_ns for before, after in pairwise(flow))]
    longest = sorted(range(len(flow)), key=lambda at: -pauses[at])
    enough = [places for places in candidates if len(places) > ITERATIONS_MIN]
    enough += [sorted(longest[:count]) for count in {len(places) for places in enough}]
    volumes = {size_class(volume, PART_SHIFT): volume for volume in (middle_volume(places, sums) for places in enough)}
    found = [
        judged(_chain(volume, sorted(longest[: 1 + sums[-1] // volume]), sums, pauses), sums, flow)
        for volume in volumes.values()
        if volume
    ]
    good = [one for one in found if one.likeness >= least and one.are_even and _follow_longest(one.places, pauses)]
    return max(good, key=lambda one: len(one.places), default=NONE)


def _chain(volume: int, starts: Sequence[int], sums: Sequence[int], pauses: Sequence[int]) -> list[int]:
    """Places that are ``volume`` bytes apart; where a chain ends, on from the next start with a follower."""
    found: list[int] = []
    for start in starts:
        if found and start < found[-1]:
            continue
        at = _next(start, volume, sums, pauses)
        if at and (not found or start > found[-1]):
            found.append(start)
        while at:
            found.append(at)
            at = _next(at, volume, sums, pauses)
    return found


def _next(at: int, volume: int, sums: Sequence[int], pauses: Sequence[int]) -> int:
    """The place ``volume`` bytes later, after the longest pause if there are several; 0: there is none."""
    off = ALIKE_WITHIN * volume
    first = bisect_left(sums, sums[at] + volume - off, at + 1)
    near = range(first, min(bisect_right(sums, sums[at] + volume + off, first), len(pauses)))
    return max(near, key=pauses.__getitem__, default=0)


def _follow_longest(places: Sequence[int], pauses: Sequence[int]) -> bool:
    """Whether the pauses before these windows are about as long as any within most of them, and few others are."""
    longest = [max(pauses[before + 1 : after], default=0) for before, after in pairwise(places)]
    good = sum(pauses[at] >= AS_LONG * within for at, within in zip(places, longest, strict=False))
    as_long = AS_LONG * median_low([pauses[at] for at in places])
    others = sum(pause >= as_long for pause in pauses)
    return good >= MOST * len(longest) and others <= FEW * len(places)
