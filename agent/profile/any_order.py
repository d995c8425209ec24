"""Iteration marks where messages come in a different order each time, as when several threads send. PURE.

Messages of about one size are a kind. For each kind, and each number of them that an iteration may have, every so
manyth is a mark. Of those the first after the longest pauses is taken, so that no batch is cut. See iteration.py.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from farside.agent.profile.message import NEAR_SHIFT, PART_SHIFT, Message, size_class
from farside.agent.profile.pause import ITERATIONS_MIN, paced

KINDS_MAX = 12
OF_A_KIND_MAX = 48
"""So many kinds, of those with most bytes and of the rarest, and so many of a kind in an iteration are tried."""
PAUSES = 24
"""So many of the longest pauses say which of a kind is the first of an iteration."""


def candidates(flow: Sequence[Message]) -> Iterator[Sequence[int]]:
    """Places (indices) of messages, always of one kind, that may each begin an iteration."""
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
            yield paced(places[first::step], flow)
