"""Where an iteration of training begins, in the messages of one flow. PURE. [tiresias §3.3.3.2]

"Because each iteration is exactly the same from a communication perspective", its messages repeat. The text does not
say how it finds that. Two ways here: where messages come in the same order each time, by the period of their sizes
(in_order.py); where threads send in turn, each time in another order, by what lies between two messages of a kind
(any_order.py). What was found is judged by how exactly alike the iterations are.
"""

from collections.abc import Sequence

from farside.agent.profile import any_order, in_order
from farside.agent.profile.any_order import ITERATIONS_MIN, likeness
from farside.agent.profile.message import CONTROL_BYTES, Message

SURE = 0.9
"""Share of iterations, and of bytes in them, that are alike; then no other way is tried."""

__all__ = ("ITERATIONS_MIN", "marks")


def marks(flow: Sequence[Message]) -> tuple[int, ...]:
    """The begin (ns) of one message in each iteration; empty: nothing repeats, or not often enough.

    ``flow``: by begin. Messages that only control others do not count, where there are others.
    """
    tensors = [message for message in flow if message.bytes > CONTROL_BYTES] or list(flow)
    first = in_order.marks(tensors)
    if likeness(first, tensors) >= SURE:
        return first
    return max((first, any_order.marks(tensors)), key=lambda found: likeness(found, tensors))
