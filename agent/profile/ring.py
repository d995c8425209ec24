"""Reader of the ring file, whose layout preload/ring.h defines. PURE.

A job may have written anything into it, at any moment: whatever is there is read without a fault, or refused by
ValueError.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAGIC = 0x464F525045444953
VERSION = 1
LANES = 32
EVENTS = 8192
LANES_AT = 2048
EVENTS_AT = 4096
EVENT_BYTES = 16
LANE_BYTES = EVENTS * EVENT_BYTES
FILE_BYTES = EVENTS_AT + LANES * LANE_BYTES

LITTLE = 10
"""A lane with so many times fewer bytes than another has little to say."""

_HEAD = struct.Struct("<QIIIIIIII")
_LANE = struct.Struct("<IIQQQ32x")
_EVENT = struct.Struct("<QQ")
_INCOMPLETE, _READ, _BYTES_AT = 1 << 16, 1 << 17, 20
PROBLEMS = {
    1: "this kernel can't tell it of a fork",
    2: "more RDMA devices or queue pairs than it has places for",
    4: "descriptors above 65535",
}


class Event(NamedTuple):
    """One message, as it was handed to the kernel or to an adapter. A tuple: there are a quarter of a million.

    ``flow`` is a socket or a queue pair of its process; of an incomplete one the rest comes with the flow's next.
    """

    at_ns: int
    flow: int
    bytes: int
    is_incomplete: bool
    is_read: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What one process sent: its newest events, by time. ``sent_bytes`` counts the older ones too."""

    pid: int
    sent_bytes: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a task's processes sent.

    Attributes:
        attached: Processes that have loaded the library.
        refused: Threads that found no lane free.
        problems: Why not all is here, in words.
        processes: Those that sent something, the one that sent most first.
    """

    attached: int
    refused: int
    problems: tuple[str, ...]
    processes: tuple[Process, ...]


class _Lane(NamedTuple):
    process: tuple[int, int]
    head: int
    bytes: int


def blank_head() -> bytes:
    """First bytes of a new file; zeros follow."""
    return _HEAD.pack(MAGIC, VERSION, LANES, EVENTS, 0, 0, 0, 0, 0)


def parse(head: bytes, lane: Callable[[int], bytes], *, processes_max: int = 8) -> Recorded:
    """Parse what processes have recorded.

    Args:
        head: The first `EVENTS_AT` bytes of the file.
        lane: The events of a lane, asked of those that are in use. The file may be written to meanwhile.
        processes_max: So many processes are looked at, those that sent most.

    Raises:
        ValueError: It is not such a file.
    """
    if len(head) < EVENTS_AT:
        raise ValueError("it was cut")
    magic, version, lanes, events, _, attached, claimed, problems, _ = _HEAD.unpack_from(head)
    if (magic, version, lanes, events) != (MAGIC, VERSION, LANES, EVENTS):
        raise ValueError("it was overwritten")
    # More lanes were asked for than there are, or the job wrote any number there.
    found = [_lane_at(head, number) for number in range(min(claimed, LANES))]
    totals: dict[tuple[int, int], int] = {}
    for one in found:
        if one.head:
            totals[one.process] = totals.get(one.process, 0) + one.bytes
    most = sorted(totals, key=lambda process: (-totals[process], process))[:processes_max]
    sent = []
    for process in most:
        own = [(number, one) for number, one in enumerate(found) if one.process == process and one.head]
        events = _together([(one, _events(lane(number), one.head)) for number, one in own])
        sent.append(Process(pid=process[0], sent_bytes=totals[process], events=events))
    return Recorded(
        attached=attached,
        refused=max(0, claimed - LANES),
        problems=tuple(text for bit, text in PROBLEMS.items() if problems & bit),
        processes=tuple(sent),
    )


def _together(lanes: Sequence[tuple[_Lane, list[Event]]]) -> tuple[Event, ...]:
    """Events of all lanes by time, from the time after which none is missing.

    A full lane has lost what is older than its first event. What other threads sent before that would be no iteration
    but a part of one; a lane of few bytes loses nothing that matters.
    """
    most = max(one.bytes for one, _ in lanes)
    full = [events for one, events in lanes if one.head >= EVENTS and one.bytes * LITTLE >= most and events]
    since_ns = max((min(events).at_ns for events in full), default=0)
    return tuple(sorted(event for _, events in lanes for event in events if event.at_ns >= since_ns))


def _lane_at(head: bytes, number: int) -> _Lane:
    pid, _, born_ns, count, total = _LANE.unpack_from(head, LANES_AT + number * _LANE.size)
    return _Lane((pid, born_ns), count, total)


def _events(data: bytes, head: int) -> list[Event]:
    """Events before ``head``, without the oldest of a full lane, which the next event overwrites."""
    if len(data) < LANE_BYTES:
        raise ValueError("it was cut")
    # One less than there are: the oldest may be overwritten while it is copied.
    count = min(head, EVENTS - 1)
    start = (head - count) % EVENTS
    rows = [*_EVENT.iter_unpack(data)]
    newest = (rows[start:] + rows[:start])[:count] if head >= EVENTS else rows[:count]
    return [
        Event(at_ns, word & 0xFFFF, word >> _BYTES_AT, bool(word & _INCOMPLETE), bool(word & _READ))
        for at_ns, word in newest
        if word
    ]
