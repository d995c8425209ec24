"""Pauses between messages: they show whether marks begin iterations or only parts of them. PURE. See iteration.py.

Where an iteration consists of alike parts (two steps of an all-reduce, tensors of one size), the bytes between two
marks say half of it, or less. Between two iterations something is computed: if every k-th mark, and no other, comes
after a pause of several times the others', these are the iterations.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_low

from farside.agent.profile.message import Message

ITERATIONS_MIN = 3
"""Fewer say nothing of what repeats."""
PAUSE_RATIO = 10.0
"""A pause between iterations is so many times longer than any within, before it overrules sizes: a checkpoint after
every tenth makes pauses too."""
WITHIN_MAX_NS = 20_000_000
"""What pauses longer is an iteration by itself, whatever longer pauses there are."""
REGULAR_MIN = 0.7
"""Least share of the pauses that come after the same number of marks."""
SELDOM = 8
"""Every so manyth window may have a pause in it: something was written. Where more have, they are parts."""


def paced(places: Sequence[int], flow: Sequence[Message]) -> Sequence[int]:
    """Every k-th of these messages where pauses show that k of them are one iteration, otherwise all."""
    apart = [flow[after].begin_ns - flow[before].end_ns for before, after in pairwise(places)]
    ordered = sorted(max(1, pause) for pause in apart)
    for before, long_ns in pairwise(ordered):
        if long_ns >= PAUSE_RATIO * before and before <= WITHIN_MAX_NS:
            after_pause = [at for at, pause in enumerate(apart, start=1) if pause >= long_ns]
            if _are_regular(after_pause):
                return [places[at] for at in after_pause]
    return places


def are_even(spans_ns: Sequence[int]) -> bool:
    """Whether windows take about as long as each other, but for a few that have a pause in them."""
    middle = median_low(spans_ns)
    if middle > WITHIN_MAX_NS:
        return True
    paused = [span for span in spans_ns if span > PAUSE_RATIO * middle]
    return len(paused) * SELDOM <= len(spans_ns) and 2 * sum(paused) <= sum(spans_ns)


def _are_regular(places: Sequence[int]) -> bool:
    """Whether most of these are equally far from the one before, and further than 1."""
    steps = Counter(after - before for before, after in pairwise(places))
    step, count = max(steps.items(), key=lambda item: (item[1], -item[0]), default=(1, 0))
    return step > 1 and count >= max(ITERATIONS_MIN, REGULAR_MIN * sum(steps.values()))
