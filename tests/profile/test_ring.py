"""The file as the library writes it, and as a job might."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.profile import ring

EMPTY = bytes(ring.LANE_BYTES)


def head_with(lanes: list[tuple[int, int, int, int]], *, attached: int = 1, claimed: int | None = None) -> bytes:
    """The head of a file with these lanes: pid, born, head, bytes."""
    head = bytearray(ring.EVENTS_AT)
    blank = ring.blank_head()
    head[: len(blank)] = blank
    struct.pack_into("<III", head, 24, attached, len(lanes) if claimed is None else claimed, 0)
    for number, (pid, born, count, total) in enumerate(lanes):
        struct.pack_into("<IIQQQ", head, ring.LANES_AT + 64 * number, pid, 1, born, count, total)
    return bytes(head)


def lane_of(words: list[tuple[int, int]], head: int) -> bytes:
    """The events of a lane after ``head`` were written, the last of them these."""
    data = bytearray(ring.LANE_BYTES)
    for back, (at_ns, size) in enumerate(reversed(words)):
        place = (head - 1 - back) % ring.EVENTS
        struct.pack_into("<QQ", data, place * 16, at_ns, size << 20 | 5)
    return bytes(data)


def test_a_file_that_was_just_made_has_nothing() -> None:
    found = ring.parse(head_with([], attached=0), lambda _: EMPTY)

    assert found == ring.Recorded(attached=0, refused=0, problems=(), processes=())


@given(count=st.integers(1, 4 * ring.EVENTS))
def test_the_newest_events_are_read_and_never_the_one_that_may_be_half_written(count: int) -> None:
    written = [(at + 1, at % 1000 + 1) for at in range(count)]
    there = written[-ring.EVENTS :]

    found = ring.parse(head_with([(7, 1, count, 10)]), lambda _: lane_of(there, count))

    assert [(event.at_ns, event.bytes) for event in found.processes[0].events] == there[-(ring.EVENTS - 1) :]


def test_lanes_of_a_process_come_together_by_time_and_those_of_another_do_not() -> None:
    lanes = {0: lane_of([(1, 100), (5, 200)], 2), 1: lane_of([(2, 999)], 1), 2: lane_of([(3, 300)], 1)}

    found = ring.parse(head_with([(7, 1, 2, 300), (7, 2, 1, 999), (7, 1, 1, 300)]), lanes.__getitem__)

    assert [[event.bytes for event in process.events] for process in found.processes] == [[999], [100, 300, 200]]


def full_lane(first_ns: int, size: int) -> bytes:
    """One that has been written over, with an event each nanosecond from then on."""
    return lane_of([(first_ns + at, size) for at in range(ring.EVENTS)], 2 * ring.EVENTS)


def test_what_came_before_the_oldest_event_of_a_full_lane_is_left_out_as_half_of_it_is_gone() -> None:
    lanes = {0: lane_of([(5, 100), (20_000, 200)], 2), 1: full_lane(10_000, 300)}
    heads = [(7, 1, 2, 3000), (7, 1, 2 * ring.EVENTS, 9000)]

    found = ring.parse(head_with(heads), lanes.__getitem__)

    assert [event.at_ns for event in found.processes[0].events] == [*range(10_001, 10_000 + ring.EVENTS), 20_000]


def test_a_full_lane_of_few_bytes_takes_nothing_from_the_others() -> None:
    lanes = {0: lane_of([(5, 100)], 1), 1: full_lane(10_000, 300)}

    found = ring.parse(head_with([(7, 1, 1, 100_000), (7, 1, 2 * ring.EVENTS, 9000)]), lanes.__getitem__)

    assert found.processes[0].events[0].at_ns == 5


def test_threads_without_a_lane_are_counted() -> None:
    found = ring.parse(head_with([], claimed=ring.LANES + 3), lambda _: EMPTY)

    assert found.refused == 3


@given(st.binary(max_size=200), st.integers(0, ring.EVENTS_AT))
def test_whatever_a_job_writes_there_is_read_or_refused(noise: bytes, at: int) -> None:
    head = bytearray(head_with([(7, 1, 3, 10)]))
    head[at : at + len(noise)] = noise[: ring.EVENTS_AT - at]
    lane = (noise * (ring.LANE_BYTES // max(1, len(noise)) + 1))[: ring.LANE_BYTES] if noise else EMPTY

    try:
        found = ring.parse(bytes(head), lambda _: lane)
    except ValueError:
        return

    assert all(event.bytes >= 0 for process in found.processes for event in process.events)


@pytest.mark.parametrize("length", [0, 40, ring.EVENTS_AT - 1])
def test_a_file_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="cut"):
        ring.parse(head_with([])[:length], lambda _: EMPTY)
