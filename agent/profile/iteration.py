"""Find where iterations of training begin in the messages of one flow. PURE. [tiresias §3.3.3.2]

"Because each iteration is exactly the same from a communication perspective", its messages repeat. The text does not
say how it finds that. Three ways here: where messages come in the same order each time, by the period of their sizes
(in_order.py); where threads send in turn, each time in another order, by messages of one kind (any_order.py), or by the
bytes from one long pause to another (chain.py). Pauses overrule what sizes say where an iteration has alike parts
(pause.py). What was found is judged by how exactly alike the iterations are (window.py).
"""

from bisect import bisect_left
from collections.abc import Sequence

from farside.agent.profile import any_order, chain, in_order
from farside.agent.profile.message import CONTROL_BYTES, Message
from farside.agent.profile.pause import ITERATIONS_MIN, paced
from farside.agent.profile.window import ALIKE_MIN, NEAR_BEST, Windows, best, judged, sums_of

SURE = 0.9
"""Share of iterations, and of bytes in them, that are alike; then marks of one kind need not be looked for."""

__all__ = ("ITERATIONS_MIN", "marks")


def marks(flow: Sequence[Message]) -> tuple[int, ...]:
    """The begin (ns) of one message in each iteration; empty: nothing repeats, or not often enough.

    ``flow``: by begin. Messages that only control others do not count, where there are others.
    """
    tensors = [message for message in flow if message.bytes > CONTROL_BYTES] or list(flow)
    begins = [message.begin_ns for message in tensors]
    in_turn = paced([bisect_left(begins, at_ns) for at_ns in in_order.marks(tensors)], tensors)
    found = _windows(in_turn, tensors)
    # Some windows that are much longer than most: what was found are parts of iterations.
    return tuple(begins[at] for at in found.places) if found.are_even else ()


def _windows(in_turn: Sequence[int], flow: Sequence[Message]) -> Windows:
    """What is left of the places found by order, or better ones."""
    sums = sums_of(flow)
    candidates = [in_turn, *any_order.candidates(flow)]
    found = judged(in_turn, sums, flow)
    if found.likeness < SURE or not found.are_even:
        found = max((found, best(candidates, sums, flow)), key=lambda one: (one.are_even, one.likeness))
    by_bytes = chain.shortest(candidates, NEAR_BEST * max(ALIKE_MIN, found.likeness), sums, flow)
    return by_bytes if len(by_bytes.places) > len(found.places) else found
