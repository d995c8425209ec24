"""Similarity of the windows between marks, by which each way of finding iterations is judged. PURE. See iteration.py.

Windows are as good as they are alike: the share of them, and of the bytes in them, that have as many bytes as the
middle one and are not much shorter. The order of messages within does not matter. What a job sends before it trains
(the model, to start with) is no window, as long as what is alike from then on is most of what was seen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from statistics import median_low

from farside.agent.profile.message import Message
from farside.agent.profile.pause import ITERATIONS_MIN, are_even

ALIKE_WITHIN = 0.005
"""Iterations are exactly alike but for heads that grow, and for small messages that come now and then."""
SHORT = 4
"""A window so many times shorter than the middle one is a part of an iteration."""
ALIKE_MIN = 0.6
"""Least share of the windows and of their bytes that are alike."""
NEAR_BEST = 0.97
"""What is alike so much, compared with the best, is as good as it."""
COVERED_MIN = 0.5
"""Least share of the bytes, or of the time, that what is alike has to be of all that was seen."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Places (indices of messages) at which windows begin, but for what came before the first that is like the rest.

    ``likeness``: share of what lies between them, from 0 to 1, that is alike. ``are_even``: they take about as long.
    """

    likeness: float
    places: Sequence[int]
    are_even: bool


NONE = Windows(0.0, (), True)


def sums_of(flow: Sequence[Message]) -> list[int]:
    """Bytes before each message, and of all."""
    return [0, *accumulate(message.bytes for message in flow)]


def middle_volume(places: Sequence[int], sums: Sequence[int]) -> int:
    """The middle of the bytes between these places. ``sums``: see `sums_of`."""
    return median_low([sums[after] - sums[before] for before, after in pairwise(places)])


def best(candidates: Iterable[Sequence[int]], sums: Sequence[int], flow: Sequence[Message]) -> Windows:
    """The shortest of the windows that are about as good as the best; none: nothing repeats, or too seldom.

    What is alike from one iteration to the next is so over several, too.
    """
    found = [judged(places, sums, flow) for places in candidates]
    least = NEAR_BEST * max((one.likeness for one in found), default=0.0)
    if least < NEAR_BEST * ALIKE_MIN:
        return NONE
    return max((one for one in found if one.likeness >= least), key=lambda one: (one.are_even, len(one.places)))


def judged(places: Sequence[int], sums: Sequence[int], flow: Sequence[Message]) -> Windows:
    """The windows that begin at these places.

    One may be otherwise: something else began there. One in which a checkpoint was written may be long, none short.
    """
    if len(places) <= ITERATIONS_MIN:
        return NONE
    volumes = [sums[after] - sums[before] for before, after in pairwise(places)]
    spans_ns = [flow[after].begin_ns - flow[before].begin_ns for before, after in pairwise(places)]
    middle, shortest_ns = median_low(volumes), median_low(spans_ns) / SHORT
    alike = [
        abs(volume - middle) <= ALIKE_WITHIN * middle and span_ns >= shortest_ns
        for volume, span_ns in zip(volumes, spans_ns, strict=True)
    ]
    first = alike.index(True) if True in alike else len(alike)
    kept = places[first:]
    if len(kept) <= ITERATIONS_MIN or not _is_most(kept, sums, flow):
        return NONE
    share = min(1.0, (sum(alike) + 1) / len(alike[first:]))
    inside = sums[kept[-1]] - sums[kept[0]]
    behind = max(0, sums[-1] - sums[kept[-1]] - max(volumes[first:]))  # more than a window that has only begun
    likeness = min(share, sum(compress(volumes, alike)) / max(1, inside + behind))
    return Windows(likeness, kept, are_even(spans_ns[first:]))


def _is_most(kept: Sequence[int], sums: Sequence[int], flow: Sequence[Message]) -> bool:
    """Whether what lies between the first and the last is most of what was sent, or took most of the time."""
    span_ns = flow[kept[-1]].begin_ns - flow[kept[0]].begin_ns
    all_ns = flow[-1].begin_ns - flow[0].begin_ns
    return sums[kept[-1]] - sums[kept[0]] >= COVERED_MIN * sums[-1] or span_ns >= COVERED_MIN * all_ns
