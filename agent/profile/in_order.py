"""Iteration marks where messages come in the same order each time. PURE. See iteration.py.

1. The period is the shortest lag at which the sizes are like themselves, about as much as at the best lag. They are
   compared by their bytes, so that what is small and comes now and then (a heartbeat, a loss) does not matter.
2. One size marks the iterations: one that comes seldom in a period, the largest of these; each so manyth of its
   messages is a mark. So a message too many or too few shifts nothing but the iteration that it is in. Of a size that
   comes several times in a period, the one after the longest pause is taken: a run of equal parts is not cut.

Sizes only count as alike up to 1/64 (message.py).
"""

from collections import Counter
from collections.abc import Sequence
from itertools import compress
from operator import eq
from statistics import median

from farside.agent.profile.message import CONTROL_BYTES, NEAR_SHIFT, Message, are_near, size_class
from farside.agent.profile.pause import ITERATIONS_MIN, WITHIN_MAX_NS

MESSAGES_MAX = 2048
"""The newest of a flow that are looked at; each lag costs a look at all."""
SMALL = 32
"""How many times smaller than the largest a message is that is left out at first."""
LIKENESS_MIN = 0.6
LIKENESS_SURE = 0.9
"""Share of the bytes that are as they were a period ago: the least, and what is believed without looking further."""
NEAR_BEST = 0.97
"""A shorter lag is the period if it is as good as the best but for this: noise makes longer ones seem better."""


def marks(flow: Sequence[Message]) -> tuple[int, ...]:
    """The begin (ns) of one message in each iteration, always the same; empty: nothing repeats, or not often enough.

    Looked for among batches of equal messages first, which are few however many pieces a tensor goes in; and without
    small ones, as noise is small in most cases.
    """
    largest = max(message.bytes for message in flow)
    larger = [one for one in flow if one.bytes > CONTROL_BYTES and one.bytes * SMALL >= largest] or flow
    best: tuple[float, tuple[int, ...]] = (0.0, ())
    for listed in (_batched(larger), larger, flow):
        likeness, found = _marks_in(listed)
        if found and likeness >= LIKENESS_SURE:
            return found
        best = max(best, (likeness, found)) if found else best
    return best[1]


def _batched(flow: Sequence[Message]) -> list[Message]:
    """Messages that are about equal, shortly after each other, as one."""
    found = [flow[0]]
    size = flow[0].bytes
    for message in flow[1:]:
        last = found[-1]
        if are_near(message.bytes, size) and message.begin_ns - last.end_ns <= WITHIN_MAX_NS:
            found[-1] = Message(last.begin_ns, message.end_ns, last.flow, last.bytes + message.bytes)
        else:
            found.append(message)
            size = message.bytes
    return found


def _marks_in(flow: Sequence[Message]) -> tuple[float, tuple[int, ...]]:
    """How much of it repeats, and the marks."""
    newest = flow[-MESSAGES_MAX:]
    period, likeness = period_of([message.bytes for message in newest])
    if not period:
        return 0.0, ()
    found = [newest[at].begin_ns for at in _marking(newest, period)]
    return likeness, tuple(found) if len(found) > ITERATIONS_MIN else ()


def period_of(sizes: Sequence[int]) -> tuple[int, float]:
    """After how many messages sizes repeat, and how well; 0: they do not."""
    classes = [size_class(size, NEAR_SHIFT) for size in sizes]
    longest = len(sizes) // (ITERATIONS_MIN + 1) + 1
    near = NEAR_BEST - 2 / len(sizes)  # one message too many is unlike both its neighbours
    likeness: dict[int, float] = {}
    for lag in range(1, min(longest, len(sizes) - 1) + 1):
        likeness[lag] = _likeness(sizes, classes, lag)
        if likeness[lag] >= near:
            break  # no other can be so much better
    best = max(likeness.values(), default=0.0)
    if best < LIKENESS_MIN:
        return 0, best
    return next((lag, share) for lag, share in likeness.items() if share >= near * best)


def _likeness(sizes: Sequence[int], classes: Sequence[tuple[int, int]], lag: int) -> float:
    """Share of the bytes, or of the messages, that equal those ``lag`` messages before; the smaller share.

    By bytes alone, a tensor that is large hides that all the others do not fit.
    """
    same: list[bool] = list(map(eq, classes, classes[lag:]))
    alike: int = sum(compress(sizes, same))
    return min(alike / max(1, sum(sizes[: len(same)])), 0.5 + 0.5 * sum(same) / len(same))


def _marking(flow: Sequence[Message], period: int) -> list[int]:
    """The messages of which each is in another period, at the same place."""
    classes = [size_class(message.bytes, NEAR_SHIFT) for message in flow]
    periods = len(flow) / period
    often = {kind: max(1, round(count / periods)) for kind, count in Counter(classes).items() if count >= periods / 2}
    if not often:
        return []
    fewest = min(often.values())
    kind = max(kind for kind, count in often.items() if count == fewest)
    places = [at for at, one in enumerate(classes) if one == kind]
    phases = [places[phase::fewest] for phase in range(fewest)]
    return max(phases, key=lambda phase: median(_pauses_ns(flow, phase)) if phase else 0)


def _pauses_ns(flow: Sequence[Message], places: Sequence[int]) -> list[int]:
    """How long nothing was sent before each of these messages."""
    return [flow[at].begin_ns - flow[at - 1].end_ns if at else 0 for at in places]
