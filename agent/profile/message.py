"""Whole messages, put together from the events that recorded their parts. PURE.

A socket takes as much as it has room for: what was asked for and not taken comes with the next call on the same socket,
so an incomplete event and those after it, up to the first complete one of its flow, are one message.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from farside.agent.profile.ring import Event

PART_SHIFT = 10
"""Parts differ by no more than 1/1024, a head that grows; buckets of many small tensors differ by more."""
NEAR_SHIFT = 6
CONTROL_BYTES = 128
"""What is smaller is no tensor, but what libraries say to each other between its parts (gloo: 48 bytes)."""


class Message(NamedTuple):
    """One message of a flow. ``begin_ns`` to ``end_ns``: its first part to its last."""

    begin_ns: int
    end_ns: int
    flow: int
    bytes: int


def messages_of(events: Iterable[Event]) -> tuple[Message, ...]:
    """Whole messages by their begin; events come by time.

    Of what goes out and what is fetched by RDMA reads the kind with more bytes: where servers' portions are fetched,
    what is sent beside them is only the question.
    """
    listed = list(events)
    fetched = sum(event.bytes for event in listed if event.is_read)
    is_fetching = 2 * fetched > sum(event.bytes for event in listed)
    return tuple(sorted(_joined([event for event in listed if event.is_read == is_fetching])))


def _joined(events: Sequence[Event]) -> Iterable[Message]:
    unfinished: dict[int, tuple[int, int]] = {}  # by flow: begin and bytes so far
    for event in events:
        begin_ns, so_far = unfinished.pop(event.flow, (event.at_ns, 0))
        total = so_far + event.bytes
        if event.is_incomplete:
            unfinished[event.flow] = begin_ns, total
        else:
            yield Message(begin_ns, event.at_ns, event.flow, total)


def are_equal(size: int, other: int) -> bool:
    """Whether two messages may be equal parts of one tensor."""
    return abs(size - other) << PART_SHIFT <= other


def are_near(size: int, other: int) -> bool:
    """True when one may be the last part of a tensor, and the other one of its earlier parts."""
    return abs(size - other) << NEAR_SHIFT <= max(size, other)


def size_class(count: int, precision: int) -> tuple[int, int]:
    """Class of a size, equal for sizes that agree in the first bit and ``precision`` bits after it."""
    shift = max(0, count.bit_length() - precision - 1)
    return precision, (count >> shift) << shift
