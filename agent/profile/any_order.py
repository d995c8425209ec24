"""Iterations whose messages come in another order each time, as several threads send them. PURE. See iteration.py.

1. Messages of about one size are a kind. For each kind, and each number of them that an iteration may have, every
   so manyth is a mark. Of those the first after the longest pauses is taken, so that no batch is cut.
2. The marks are as good as what lies between them is alike: the share of these windows, and of all bytes in them, that
   have as many bytes as the middle one and are not much shorter. The order of messages within does not matter: with
   several threads it is another one each time (PyTorch over gloo).
3. Of all marks that are about as good as the best, those with the shortest iterations are it: what is alike from one
   iteration to the next is so over several, too.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from statistics import median_low

from farside.agent.profile.message import NEAR_SHIFT, PART_SHIFT, Message, size_class

ITERATIONS_MIN = 3
"""Fewer windows say nothing of what repeats."""
KINDS_MAX = 12
OF_A_KIND_MAX = 48
"""So many kinds, of those with most bytes and of the rarest, and so many of a kind in an iteration are tried."""
PAUSES = 24
"""So many of the longest pauses say which of a kind is the first of an iteration."""
ALIKE_WITHIN = 0.005
"""Iterations are exactly alike but for heads that grow, and for small messages that come now and then."""
SHORT = 4
"""A window so many times shorter than the middle one is a part of an iteration."""
ALIKE_MIN = 0.6
"""Least share of the windows and of their bytes that are alike."""
NEAR_BEST = 0.97


def marks(flow: Sequence[Message]) -> tuple[int, ...]:
    """The begin (ns) of one message in each iteration, always of one kind; empty: nothing repeats, or too seldom."""
    sums = [0, *accumulate(message.bytes for message in flow)]
    found = [(_likeness(places, sums, flow), places) for places in _candidates(flow)]
    best = max((likeness for likeness, _ in found), default=0.0)
    if best < ALIKE_MIN:
        return ()
    longest = max((places for likeness, places in found if likeness >= NEAR_BEST * best), key=len)
    return tuple(flow[at].begin_ns for at in longest) if len(longest) > ITERATIONS_MIN else ()


def likeness(found: Sequence[int], flow: Sequence[Message]) -> float:
    """How alike the windows between these marks are; 0 without any."""
    if len(found) <= ITERATIONS_MIN:
        return 0.0
    begins = [message.begin_ns for message in flow]
    sums = [0, *accumulate(message.bytes for message in flow)]
    return _likeness([bisect_left(begins, at_ns) for at_ns in found], sums, flow)


def _candidates(flow: Sequence[Message]) -> Iterator[list[int]]:
    """Places of messages that may each begin an iteration."""
    kinds: dict[tuple[int, int], list[int]] = defaultdict(list)
    for at, message in enumerate(flow):
        kinds[size_class(message.bytes, PART_SHIFT)].append(at)
        kinds[size_class(message.bytes, NEAR_SHIFT)].append(at)
    often = [places for places in kinds.values() if len(places) > ITERATIONS_MIN]
    largest = sorted(often, key=lambda places: -len(places) * flow[places[0]].bytes)[:KINDS_MAX]
    rarest = sorted(often, key=lambda places: (len(places), -flow[places[0]].bytes))[:KINDS_MAX]
    for places in {(places[0], len(places)): places for places in (*largest, *rarest)}.values():
        pauses = [flow[at].begin_ns - flow[at - 1].end_ns if at else 0 for at in places]
        after_longest = sorted(range(len(places)), key=lambda at: -pauses[at])[:PAUSES]
        for step in range(1, min(OF_A_KIND_MAX, len(places) // (ITERATIONS_MIN + 1)) + 1):
            (first, _), *_ = Counter(at % step for at in after_longest).most_common(1)
            yield places[first::step]


def _likeness(places: Sequence[int], sums: Sequence[int], flow: Sequence[Message]) -> float:
    """How alike the windows are that begin at these places: the share of them, or of all bytes, what is less.

    One may be otherwise: something else began there. One in which a checkpoint was written may be long, none short.
    """
    volumes = [sums[after] - sums[before] for before, after in pairwise(places)]
    spans = [flow[after].begin_ns - flow[before].begin_ns for before, after in pairwise(places)]
    middle, shortest_ns = median_low(volumes), median_low(spans) / SHORT
    off = ALIKE_WITHIN * middle
    alike = [
        volume
        for volume, span in zip(volumes, spans, strict=True)
        if abs(volume - middle) <= off and span >= shortest_ns
    ]
    share = min(1.0, (len(alike) + 1) / len(volumes))
    return min(share, sum(alike) / max(1, sums[-1]) * _ends(places, sums))


def _ends(places: Sequence[int], sums: Sequence[int]) -> float:
    """What makes up for the bytes before the first mark and after the last, as far as they may be parts of windows."""
    inside = sums[places[-1]] - sums[places[0]]
    longest = max(sums[after] - sums[before] for before, after in pairwise(places))
    outside = min(longest, sums[places[0]]) + min(longest, sums[-1] - sums[places[-1]])
    return (inside + outside) / max(1, inside)
