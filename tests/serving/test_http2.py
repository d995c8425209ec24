"""A connection of HTTP/2: what RFC 9113 asks of a server, and what a hostile client gets."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("hpack", reason="needs hpack (requirements/serving.txt)")

from hpack import Decoder, Encoder

from farside.serve.http2 import connection as subject
from farside.serve.http2 import frame as h2
from farside.serve.http2.budget import Share
from farside.serve.http2.call import ANSWER_END, ANSWER_HEAD, CallError, failed, read_call, read_message, written
from farside.serve.http2.connection import Bounds, Early, Gone, Http2Connection, Whole
from farside.serve.http2.head import Head, HeadReader

BOUNDS = Bounds(head_bytes=4096, body_bytes=40_000, held_bytes=100_000, unsent_bytes=200_000, streams=4, idle_s=75.0)
POST = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), ("content-type", "application/grpc")]
TO_SMALL = [(name, "/b" if name == ":path" else value) for name, value in POST]
ALL = h2.END_STREAM | h2.END_HEADERS
HELLO = h2.PREFACE + h2.settings_frame(())


def read(head: Head) -> Any:
    """The call to one of the two paths that there are; messages to /b are small."""
    return read_call(head, {b"/a": 40_000, b"/b": 1000})


def fresh(share: Share | None = None, unsent: Share | None = None) -> Http2Connection:
    """One on which nothing came."""
    return Http2Connection(BOUNDS, read, 0.0, share or Share(1 << 30), unsent or Share(1 << 30))


def connection(hello: bytes = HELLO, share: Share | None = None, unsent: Share | None = None) -> Http2Connection:
    """One on which the client has begun."""
    made = fresh(share, unsent)
    made.receive(hello, 0.0)
    made.sender.take(0.0)
    return made


def block(fields: Any = POST) -> bytes:
    """A header block that changes no table."""
    return b"".join(h2.field(name.encode(), value.encode()) for name, value in fields)


def headers(stream: int, flags: int = ALL, data: bytes | None = None) -> bytes:
    """HEADERS."""
    return h2.frame(h2.HEADERS, flags, stream, block() if data is None else data)


def sent(one: Http2Connection, now_s: float = 0.0) -> list[tuple[int, int, int, bytes]]:
    """Type, flags, stream and payload of each frame that is to be sent."""
    data, at, found = b"", 0, []
    while more := one.sender.take(now_s):
        data += more
    while at < len(data):
        size, kind, flags, stream = h2.read_head(data, at)
        found.append((kind, flags, stream, data[at + 9 : at + 9 + size]))
        at += 9 + size
    assert at == len(data)
    return found


def ended_with(one: Http2Connection) -> int | None:
    """The code of the GOAWAY that was sent."""
    codes = [payload[4:8] for kind, _, _, payload in sent(one) if kind == h2.GOAWAY]
    assert one.is_closed == bool(codes)
    return int.from_bytes(codes[0], "big") if codes else None


OPEN = headers(1, h2.END_HEADERS)
WRONG: dict[str, tuple[int, bytes]] = {
    "frame too large": (h2.FRAME_SIZE_ERROR, h2.frame(h2.DATA, 0, 1, bytes(16_385))),
    "DATA without a stream": (h2.PROTOCOL_ERROR, h2.frame(h2.DATA, 0, 0, b"x")),
    "DATA on an idle stream": (h2.PROTOCOL_ERROR, h2.frame(h2.DATA, 0, 5, b"x")),
    "DATA after the end": (h2.STREAM_CLOSED, headers(1) + h2.frame(h2.DATA, 0, 1, b"x")),
    "more padding than bytes": (h2.PROTOCOL_ERROR, OPEN + h2.frame(h2.DATA, h2.PADDED, 1, b"\x05abcd")),
    "padding alone": (h2.PROTOCOL_ERROR, OPEN + h2.frame(h2.DATA, h2.PADDED, 1)),
    "HEADERS without a stream": (h2.PROTOCOL_ERROR, headers(0)),
    "HEADERS without a stream, to go on": (h2.PROTOCOL_ERROR, headers(0, 0)),
    "HEADERS on an even stream": (h2.PROTOCOL_ERROR, headers(2)),
    "HEADERS on an older stream": (h2.STREAM_CLOSED, headers(5) + headers(3)),
    "HEADERS after the end": (h2.STREAM_CLOSED, headers(1) + headers(1)),
    "HEADERS shorter than its priority": (h2.FRAME_SIZE_ERROR, headers(1, ALL | h2.HAS_PRIORITY, b"abcd")),
    "another frame within a block": (h2.PROTOCOL_ERROR, headers(1, 0) + h2.frame(h2.PING, 0, 0, bytes(8))),
    "another stream's CONTINUATION": (h2.PROTOCOL_ERROR, headers(1, 0) + h2.frame(h2.CONTINUATION, 4, 3)),
    "CONTINUATION alone": (h2.PROTOCOL_ERROR, h2.frame(h2.CONTINUATION, 4, 1)),
    "CONTINUATION without end": (h2.ENHANCE_YOUR_CALM, headers(1, 0) + 200 * h2.frame(h2.CONTINUATION, 0, 1)),
    "a block too large": (h2.ENHANCE_YOUR_CALM, headers(1, 0) + 9 * h2.frame(h2.CONTINUATION, 0, 1, bytes(999))),
    "a block that is none": (h2.COMPRESSION_ERROR, headers(1, ALL, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff")),
    "fields without end": (h2.ENHANCE_YOUR_CALM, headers(1, ALL, block() + b"\x00\x01a\x00" * 97)),
    "fields without end behind a body": (h2.ENHANCE_YOUR_CALM, OPEN + headers(1, ALL, b"\x00\x01a\x00" * 101)),
    "a list too large": (h2.ENHANCE_YOUR_CALM, headers(1, ALL, b"\x00\x01a\x00" * 1000)),
    "a bomb": (h2.ENHANCE_YOUR_CALM, headers(1, ALL, b"\x40\x01a\x7f\xd0\x0e" + b"b" * 1999 + b"\xbe" * 99)),
    "sizes of the table without end": (h2.COMPRESSION_ERROR, headers(1, ALL, b"\x20" * 16_000)),
    "a table too large": (h2.COMPRESSION_ERROR, headers(1, ALL, b"\x3f\xff\xff\x03" + block())),
    "SETTINGS of a stream": (h2.PROTOCOL_ERROR, h2.frame(h2.SETTINGS, 0, 1)),
    "SETTINGS of a part": (h2.FRAME_SIZE_ERROR, h2.frame(h2.SETTINGS, 0, 0, bytes(5))),
    "SETTINGS with ACK and more": (h2.FRAME_SIZE_ERROR, h2.frame(h2.SETTINGS, h2.ACK, 0, bytes(6))),
    "ENABLE_PUSH of 2": (h2.PROTOCOL_ERROR, h2.settings_frame([(h2.ENABLE_PUSH, 2)])),
    "a window too large": (h2.FLOW_CONTROL_ERROR, h2.settings_frame([(h2.INITIAL_WINDOW, 1 << 31)])),
    "a stream's window too large": (
        h2.FLOW_CONTROL_ERROR,
        OPEN + h2.window_frame(1, 1 << 30) + h2.settings_frame([(h2.INITIAL_WINDOW, (1 << 31) - 1)]),
    ),
    "frames too small": (h2.PROTOCOL_ERROR, h2.settings_frame([(h2.MAX_FRAME, 16_383)])),
    "frames too large": (h2.PROTOCOL_ERROR, h2.settings_frame([(h2.MAX_FRAME, 1 << 24)])),
    "PING too short": (h2.FRAME_SIZE_ERROR, h2.frame(h2.PING, 0, 0, bytes(7))),
    "PING of a stream": (h2.PROTOCOL_ERROR, h2.frame(h2.PING, 0, 1, bytes(8))),
    "RST_STREAM of an idle stream": (h2.PROTOCOL_ERROR, h2.reset_frame(1, 8)),
    "RST_STREAM without a stream": (h2.PROTOCOL_ERROR, h2.reset_frame(0, 8)),
    "RST_STREAM too short": (h2.FRAME_SIZE_ERROR, OPEN + h2.frame(h2.RST_STREAM, 0, 1, bytes(3))),
    "WINDOW_UPDATE of nothing": (h2.PROTOCOL_ERROR, h2.window_frame(0, 0)),
    "WINDOW_UPDATE beyond": (h2.FLOW_CONTROL_ERROR, h2.window_frame(0, (1 << 31) - 1)),
    "WINDOW_UPDATE of an idle stream": (h2.PROTOCOL_ERROR, h2.window_frame(7, 1)),
    "WINDOW_UPDATE too short": (h2.FRAME_SIZE_ERROR, h2.frame(h2.WINDOW_UPDATE, 0, 0, bytes(3))),
    "GOAWAY too short": (h2.FRAME_SIZE_ERROR, h2.frame(h2.GOAWAY, 0, 0, bytes(7))),
    "GOAWAY of a stream": (h2.PROTOCOL_ERROR, h2.frame(h2.GOAWAY, 0, 1, bytes(8))),
    "PUSH_PROMISE": (h2.PROTOCOL_ERROR, h2.frame(h2.PUSH_PROMISE, 4, 1, bytes(4))),
    "PRIORITY too short": (h2.FRAME_SIZE_ERROR, h2.frame(h2.PRIORITY, 0, 1, bytes(4))),
    "PRIORITY on itself": (h2.PROTOCOL_ERROR, h2.frame(h2.PRIORITY, 0, 1, b"\x00\x00\x00\x01\x00")),
    "more than a stream's window": (
        h2.FLOW_CONTROL_ERROR, OPEN + 6 * h2.frame(h2.DATA, 0, 1, bytes(16_000)),
    ),
    "a flood of PING": (h2.ENHANCE_YOUR_CALM, 5001 * h2.frame(h2.PING, 0, 0, bytes(8))),
    "a flood of SETTINGS": (h2.ENHANCE_YOUR_CALM, 251 * h2.settings_frame(())),
    "a flood of empty DATA": (h2.ENHANCE_YOUR_CALM, OPEN + 5001 * h2.frame(h2.DATA, 0, 1)),
    "a flood of unknown frames": (h2.ENHANCE_YOUR_CALM, 5001 * h2.frame(99, 0, 0)),
    "rapid reset": (
        h2.ENHANCE_YOUR_CALM, b"".join(headers(one) + h2.reset_frame(one, 8) for one in range(1, 2003, 2)),
    ),
    "resets that the server is made to send": (
        h2.ENHANCE_YOUR_CALM, b"".join(headers(one) + h2.window_frame(one, 0) for one in range(1, 2003, 2)),
    ),
}  # fmt: skip


def finish(one: Http2Connection, data: bytes, now_s: float = 0.0) -> list[Any]:
    """All events that some bytes bring, however many turns that takes."""
    found = one.receive(data, now_s)
    while one.has_more:
        found += one.go_on(now_s)
    return found


@pytest.mark.parametrize("what", WRONG)
def test_what_no_client_may_do_ends_its_connection_with_the_code_for_it(what: str) -> None:
    code, data = WRONG[what]
    one = connection()
    finish(one, data)
    assert ended_with(one) == code
    assert finish(one, headers(9001)) == []


@pytest.mark.parametrize("hello", [b"GET / HTTP/1.1\r\n\r\n", h2.PREFACE + h2.frame(h2.PING, 0, 0, bytes(8))])
def test_who_does_not_begin_as_http2_does_is_told_so(hello: bytes) -> None:
    one = fresh()
    one.receive(hello, 0.0)
    assert ended_with(one) == h2.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        POST[1:], POST[:2], [*POST, (":path", "/b")], [*POST, (":odd", "1")], [*POST, ("Upper", "1")],
        [*POST, ("connection", "close")], [*POST, ("te", "gzip")], [*POST, ("a", "b\nc")], [*POST, ("", "x")],
        [POST[3], *POST[:3]], [*POST, ("content-length", "7")], [*POST, ("content-length", "x")],
        [*POST, ("a b", "1")], [*POST, ("a\x7f", "1")],
    ],
)  # fmt: skip
def test_a_malformed_request_ends_its_stream_alone(fields: list[tuple[str, str]]) -> None:
    one = connection()
    assert one.receive(headers(1, ALL, block(fields)) + headers(3), 0.0) == [Whole(3, one_call(), b"")]
    assert [(kind, stream, payload[-1]) for kind, _, stream, payload in sent(one)] == [(h2.RST_STREAM, 1, 1)]


def one_call() -> Any:
    """What `POST` is."""
    return read(Head(method=b"POST", path=b"/a", fields={b"content-type": b"application/grpc"}))


def test_a_request_comes_in_parts_with_padding_priority_and_trailers() -> None:
    one = connection()
    data = block()
    begun = h2.frame(h2.HEADERS, h2.PADDED | h2.HAS_PRIORITY, 1, b"\x02" + bytes(5) + data[:5] + bytes(2))
    told = finish(
        one,
        begun + h2.frame(h2.CONTINUATION, 0, 1, data[5:9]) + h2.frame(h2.CONTINUATION, 4, 1, data[9:])
        + h2.frame(h2.DATA, h2.PADDED, 1, b"\x03ab" + bytes(3)) + h2.frame(h2.PRIORITY, 0, 9, bytes(5))
        + h2.frame(99, 7, 3, b"unknown") + h2.frame(h2.DATA, 0, 1, b"cd")
        + headers(1, ALL, block([("trailer", "1")])),
    )  # fmt: skip
    assert told == [Whole(1, one_call(), b"abcd")]
    assert sent(one) == [(h2.WINDOW_UPDATE, 0, 1, (4).to_bytes(4, "big"))]
    one.answer(1, ANSWER_HEAD, b"body", ANSWER_END)
    assert [(kind, flags, stream) for kind, flags, stream, _ in sent(one)] == [
        (h2.HEADERS, 4, 1), (h2.DATA, 0, 1), (h2.HEADERS, 5, 1),
    ]  # fmt: skip
    assert one.calls == 0


def test_trailers_that_do_not_end_a_request_end_its_stream() -> None:
    one = connection()
    assert one.receive(OPEN + headers(1, h2.END_HEADERS, block([("a", "b")])), 0.0) == []
    assert [(kind, stream) for kind, _, stream, _ in sent(one)] == [(h2.RST_STREAM, 1)]


def test_streams_beyond_the_bound_are_refused_and_the_headers_of_others_still_read() -> None:
    one, encoder = connection(), Encoder()
    blocks = [encoder.encode([*POST, ("n", "1"), ("m", str(at % 3))]) for at in range(6)]
    told = one.receive(b"".join(headers(2 * at + 1, ALL, data) for at, data in enumerate(blocks)), 0.0)
    assert [event.stream for event in told] == [1, 3, 5, 7]
    assert [(kind, stream, payload[-1]) for kind, _, stream, payload in sent(one)] == [
        (h2.RST_STREAM, 9, h2.REFUSED_STREAM), (h2.RST_STREAM, 11, h2.REFUSED_STREAM),
    ]  # fmt: skip
    assert one.receive(h2.reset_frame(3, h2.CANCEL), 0.0) == [Gone(3)]
    assert [event.stream for event in one.receive(headers(13, ALL, encoder.encode(POST)), 0.0)] == [13]


@pytest.mark.parametrize(("size", "code"), [(0, h2.PROTOCOL_ERROR), ((1 << 31) - 1, h2.FLOW_CONTROL_ERROR)])
def test_a_wrong_window_of_a_stream_ends_that_stream(size: int, code: int) -> None:
    one = connection()
    assert one.receive(headers(1) + h2.window_frame(1, size), 0.0)[1:] == [Gone(1)]
    assert [(kind, stream, payload[-1]) for kind, _, stream, payload in sent(one)] == [(h2.RST_STREAM, 1, code)]


def test_a_body_too_large_is_told_of_at_once_and_what_follows_is_dropped() -> None:
    one = connection()
    big = h2.frame(h2.DATA, 0, 1, bytes(16_000))
    assert finish(one, OPEN + 3 * big) == [Early(1, one_call(), "large")]
    one.answer(1, failed("RESOURCE_EXHAUSTED", "too much"))
    assert [(kind, flags) for kind, flags, _, _ in sent(one)] == [(h2.HEADERS, ALL), (h2.RST_STREAM, 0)]
    assert finish(one, big + h2.frame(h2.DATA, 1, 1, b"x") + headers(3)) == [Whole(3, one_call(), b"")]


@pytest.mark.parametrize("cut", [1, 4, 5, 900])
def test_a_message_that_says_it_is_larger_than_its_path_takes_is_told_of_before_it_is_there(cut: int) -> None:
    share, data = Share(1 << 30), written(bytes(1001))
    one = connection(share=share)
    begin, end = h2.frame(h2.DATA, 0, 1, data[:cut]), h2.frame(h2.DATA, 0, 1, data[cut : cut + 5])

    found = finish(one, headers(1, h2.END_HEADERS, block(TO_SMALL)) + begin + end)

    assert [(type(event), event.why) for event in found] == [(Early, "large")]
    assert share.held == 0
    largest = h2.frame(h2.DATA, h2.END_STREAM, 3, written(bytes(1000)))
    assert [type(event) for event in finish(one, headers(3, h2.END_HEADERS, block(TO_SMALL)) + largest)] == [Whole]


def test_bodies_that_are_not_whole_are_bounded_together() -> None:
    one = connection()
    part = bytes(16_000)
    begun = b"".join(headers(at, h2.END_HEADERS) + 2 * h2.frame(h2.DATA, 0, at, part) for at in (1, 3, 5, 7))
    assert finish(one, begun) == [Early(7, one_call(), "crowded")]
    assert [type(event) for event in finish(one, h2.frame(h2.DATA, 1, 1) + h2.frame(h2.DATA, 1, 3))] == [Whole, Whole]


def test_what_is_slow_idle_or_dead_is_ended_in_its_time() -> None:
    one = connection()
    one.receive(OPEN, 1.0)
    assert one.look(30.0) == []
    assert one.look(31.5) == [Early(1, one_call(), "slow")]
    assert [kind for kind, *_ in sent(one)] == [h2.PING]
    one.receive(h2.frame(h2.PING, h2.ACK, 0, bytes(8)), 32.0)
    one.answer(1, failed("DEADLINE_EXCEEDED", "slow"))
    assert one.look(63.0) == []
    assert not one.is_closed
    one.receive(h2.frame(h2.PING, 0, 0, bytes(8)), 100.0)
    sent(one)
    one.look(110.0)
    assert ended_with(one) == h2.NO_ERROR

    dead = connection()
    dead.receive(headers(1), 0.0)
    dead.look(31.0)
    dead.look(41.0)
    assert not dead.is_closed
    dead.look(41.5)
    assert ended_with(dead) == h2.NO_ERROR
    late = connection()
    late.receive(headers(1), 0.0)
    late.look(60.0)  # the loop was away: nothing has been asked yet
    assert [kind for kind, *_ in sent(late)] == [h2.PING]
    late.look(70.0)
    assert not late.is_closed
    late.look(70.5)
    assert ended_with(late) == h2.NO_ERROR
    silent = fresh()
    silent.look(11.0)
    assert ended_with(silent) == h2.NO_ERROR
    halved = connection()
    halved.receive(headers(1, 0), 0.0)
    halved.look(11.0)
    assert ended_with(halved) == h2.ENHANCE_YOUR_CALM
    unread = connection()
    unread.receive(headers(1), 0.0)
    unread.answer(1, ANSWER_HEAD, bytes(70_000), ANSWER_END)
    sent(unread)
    unread.receive(h2.frame(h2.PING, 0, 0, bytes(8)), 31.0)
    unread.look(31.0)
    assert ended_with(unread) == h2.ENHANCE_YOUR_CALM


def test_bodies_that_are_not_whole_are_bounded_on_all_connections() -> None:
    share, part = Share(40_000), h2.frame(h2.DATA, 0, 1, bytes(16_000))
    first, second = connection(share=share), connection(share=share)
    assert finish(first, OPEN + 2 * part) == []
    assert finish(second, OPEN + part) == [Early(1, one_call(), "full")]
    ended = h2.frame(h2.DATA, h2.END_STREAM, 3, bytes(16_000))
    assert finish(second, headers(3, h2.END_HEADERS) + ended) == [Whole(3, one_call(), bytes(16_000))]
    first.lost()
    assert share.held == 0
    assert finish(second, headers(5, h2.END_HEADERS) + h2.frame(h2.DATA, 0, 5, bytes(16_000))) == []
    second.receive(h2.reset_frame(5, h2.CANCEL), 0.0)
    assert share.held == 0


def test_a_large_body_ends_the_turn() -> None:
    bounds = Bounds(head_bytes=4096, body_bytes=1 << 20, held_bytes=1 << 21, unsent_bytes=1, streams=4, idle_s=75.0)
    one = Http2Connection(bounds, lambda head: read_call(head, {b"/a": 1 << 20}), 0.0, Share(1 << 30), Share(1 << 30))
    finish(one, HELLO + headers(1, h2.END_HEADERS) + headers(3, h2.END_HEADERS))
    finish(one, b"".join(5 * h2.frame(h2.DATA, 0, at, bytes(16_000)) for at in (1, 3)))
    ends = h2.frame(h2.DATA, h2.END_STREAM, 1) + h2.frame(h2.DATA, h2.END_STREAM, 3)
    assert [event.stream for event in one.receive(ends, 0.0)] == [1]
    assert one.has_more
    assert [event.stream for event in one.go_on(0.0)] == [3]


def test_heads_of_many_fields_end_the_turn_and_those_that_are_known_do_not() -> None:
    bounds = Bounds(head_bytes=1 << 16, body_bytes=1, held_bytes=1, unsent_bytes=1, streams=99, idle_s=75.0)
    one = Http2Connection(bounds, read, 0.0, Share(1), Share(1))
    finish(one, HELLO)
    heads = [block([*POST, *((f"n{name}", str(at)) for name in range(96))]) for at in range(30)]

    told = [len(one.receive(b"".join(headers(2 * at + 1, ALL, data) for at, data in enumerate(heads)), 0.0))]
    while one.has_more:
        told.append(len(one.go_on(0.0)))

    assert told == [5] * 6
    again = b"".join(headers(at, ALL, heads[0]) for at in range(61, 121, 2))
    assert len(one.receive(again, 0.0)) == 30


@pytest.mark.parametrize("part", [16_384, 32_768])
def test_a_client_that_reads_fast_keeps_its_connection(part: int) -> None:
    one = connection()
    body, taken, of_all = bytes(190_000), 0, 0
    for at in range(1200):  # 228 MB within a second
        stream, of_one = 2 * at + 1, 0
        finish(one, headers(stream))
        assert one.answer(stream, ANSWER_HEAD, body, ANSWER_END)
        while data := [len(payload) for kind, _, _, payload in sent(one) if kind == h2.DATA]:
            for size in data:
                taken, of_all, of_one = taken + size, of_all + size, of_one + size
                if of_all >= part - 1:
                    finish(one, h2.window_frame(0, of_all))
                    of_all = 0
                if of_one >= part - 1:
                    finish(one, h2.window_frame(stream, of_one))
                    of_one = 0
        assert not one.is_closed
    assert taken == 1200 * len(body)


def test_windows_of_a_byte_earn_nothing() -> None:
    one = connection(HELLO + h2.settings_frame([(h2.INITIAL_WINDOW, 0)]))
    finish(one, headers(1))
    one.answer(1, ANSWER_HEAD, bytes(90_000), ANSWER_END)
    for _ in range(6000):
        finish(one, h2.window_frame(1, 1))
        one.sender.take(0.0)
    assert one.is_closed


def test_a_client_that_trickles_its_answers_loses_its_connection() -> None:
    slow, steady = connection(), connection()
    for one in (slow, steady):
        finish(one, headers(1) + headers(3))
        one.answer(1, ANSWER_HEAD, bytes(150_000), ANSWER_END)
        one.answer(3, ANSWER_HEAD, bytes(40_000), ANSWER_END)
        sent(one)
    for now_s in range(1, 30):
        for one in (slow, steady):
            one.receive(h2.window_frame(0, 1), now_s)
            sent(one, now_s)
            one.look(now_s)
            assert not one.is_closed
    steady.receive(h2.window_frame(0, 1 << 20) + h2.window_frame(1, 1 << 20), 30.0)
    sent(steady, 30.0)
    assert steady.sender.unsent.size == 0
    for now_s in (31, 32, 33, 34):
        slow.receive(h2.window_frame(0, 1), now_s)
        sent(slow, now_s)
        slow.look(now_s)
    assert slow.is_closed


def test_answers_that_a_client_does_not_take_are_bounded() -> None:
    one = connection()
    finish(one, b"".join(headers(at) for at in (1, 3, 5, 7)))
    taken = [one.answer(at, ANSWER_HEAD, bytes(90_000), ANSWER_END) for at in (1, 3, 5)]
    assert taken == [True, True, False]
    assert one.answer(5, failed("RESOURCE_EXHAUSTED", "too much waits"))
    assert sum(len(payload) for kind, _, _, payload in sent(one) if kind == h2.DATA) == h2.WINDOW_BYTES
    assert one.receive(h2.reset_frame(1, 8) + h2.reset_frame(3, 8), 0.0) == [Gone(1), Gone(3)]
    assert one.sender.unsent.size == 0


def test_answers_that_are_not_taken_are_counted_on_all_connections() -> None:
    unsent = Share(1 << 30)
    first, second = connection(unsent=unsent), connection(unsent=unsent)
    for now_s, one in ((1.0, first), (2.0, second)):
        finish(one, headers(1) + headers(3), now_s)
        assert one.answer(1, ANSWER_HEAD, bytes(90_000), ANSWER_END)
        sent(one, now_s)
    assert unsent.held == 2 * (90_000 - h2.WINDOW_BYTES)
    assert first.sender.unsent.latest_s < second.sender.unsent.latest_s
    assert second.answer(3, ANSWER_HEAD, bytes(1000), ANSWER_END)
    second.receive(h2.reset_frame(1, h2.CANCEL), 3.0)
    first.lost()
    assert unsent.held == 1000
    second.receive(h2.window_frame(0, 1000), 4.0)
    sent(second, 4.0)
    assert (unsent.held, second.calls, second.sender.unsent.latest_s) == (0, 0, float("inf"))


def test_who_is_to_leave_ends_what_it_has_and_gets_nothing_more() -> None:
    one = connection()
    one.receive(headers(1), 0.0)
    one.leave()
    assert one.receive(headers(3), 0.0) == []
    one.answer(1, ANSWER_HEAD, b"body", ANSWER_END)
    assert [kind for kind, *_ in sent(one)] == [h2.GOAWAY, h2.RST_STREAM, h2.HEADERS, h2.DATA, h2.HEADERS]
    assert one.calls == 0


def test_frames_are_read_some_at_a_time() -> None:
    one = connection()
    one.receive(100 * h2.frame(h2.PING, 0, 0, bytes(8)), 0.0)
    assert one.has_more
    assert len(sent(one)) == subject.FRAMES_A_TURN
    one.go_on(0.0)
    assert (one.has_more, len(sent(one))) == (False, 100 - subject.FRAMES_A_TURN)


SOUND = (
    OPEN + h2.frame(h2.DATA, 0, 1, written(b"hello")) + h2.frame(h2.DATA, 1, 1) + headers(3) + h2.window_frame(3, 9)
    + h2.settings_frame([(h2.INITIAL_WINDOW, 10)]) + h2.frame(h2.PING, 0, 0, bytes(8)) + h2.reset_frame(3, 8)
)  # fmt: skip


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """Frames of any kind, and sound ones that are spoilt."""
    data = bytearray()
    for _ in range(draw(st.integers(0, 6))):
        if draw(st.booleans()):
            kind, flags = draw(st.integers(0, 11)), draw(st.sampled_from((0, 1, 4, 5, 8, 9, 12, 0x20, 0x25, 0xFF)))
            data += h2.frame(kind, flags, draw(st.integers(0, 7)), draw(st.binary(max_size=40)))
        else:
            data += SOUND
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(data)


@settings(max_examples=300, deadline=None)
@given(data=hostile(), cuts=st.lists(st.integers(1, 60), max_size=12), hello=st.booleans())
def test_no_bytes_raise_and_cuts_between_them_change_nothing(data: bytes, cuts: list[int], hello: bool) -> None:
    whole, parted = fresh(), fresh()
    data = HELLO + data if hello else data
    told = finish(whole, data)
    found, at = [], 0
    for size in [*cuts, len(data)]:
        found += finish(parted, data[at : at + size])
        at += size
    assert found == told
    assert sent(parted) == sent(whole)
    for event in told:
        whole.answer(event.stream, ANSWER_HEAD, b"body", ANSWER_END)
    sent(whole)


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(5, 90_000), min_size=1, max_size=4),
    grants=st.lists(st.tuples(st.integers(-1, 4), st.integers(1, 60_000)), max_size=30),
)
def test_answers_keep_to_the_clients_windows_and_come_whole(sizes: list[int], grants: list[tuple[int, int]]) -> None:
    one = fresh()
    initial = 1000
    finish(one, HELLO + h2.settings_frame([(h2.INITIAL_WINDOW, initial)]))
    streams = [2 * at + 1 for at in range(len(sizes))]
    finish(one, b"".join(headers(stream) for stream in streams))
    window, extra = h2.WINDOW_BYTES, dict.fromkeys(streams, 0)
    got: dict[int, bytes] = dict.fromkeys(streams, b"")
    ended: list[int] = []

    def look() -> None:
        nonlocal window
        for kind, flags, stream, payload in sent(one):
            if kind == h2.DATA:
                got[stream] += payload
                window -= len(payload)
                assert window >= 0
                assert initial + extra[stream] - len(got[stream]) >= 0
            elif kind == h2.HEADERS and flags & h2.END_STREAM:
                ended.append(stream)

    kept = [
        stream for stream, size in zip(streams, sizes, strict=True)
        if one.answer(stream, ANSWER_HEAD, b"x" * size, ANSWER_END)
    ]  # fmt: skip
    look()
    for at, size in [*grants, (0, 1 << 30), *((one, 1 << 30) for one in range(1, 5))]:
        if at < 0:
            initial = size
            finish(one, h2.settings_frame([(h2.INITIAL_WINDOW, size)]))
        elif at == 0:
            window += size
            finish(one, h2.window_frame(0, size))
        elif at <= len(streams):
            extra[streams[at - 1]] += size
            finish(one, h2.window_frame(streams[at - 1], size))
        look()
    assert sorted(ended) == kept
    assert [len(got[stream]) for stream in kept] == [sizes[streams.index(stream)] for stream in kept]


FIELDS = st.lists(st.tuples(st.sampled_from(["a", "bb", "te"]), st.sampled_from(["trailers", "x" * 60])), max_size=4)


@settings(max_examples=150, deadline=None)
@given(lists=st.lists(FIELDS, max_size=12), size=st.sampled_from((0, 150, 4096)))
def test_heads_that_are_kept_are_what_the_table_says_now(lists: list[list[tuple[str, str]]], size: int) -> None:
    encoder, plain = Encoder(), Decoder()
    encoder.header_table_size = size
    reader = HeadReader(4096, lambda head: head)
    for fields in lists:
        data = encoder.encode([*POST, *(one for one in fields if one != ("te", "x" * 60))])
        expected: dict[bytes, bytes] = {}
        for name, value in plain.decode(data, raw=True):
            if name[:1] != b":":
                expected[name] = expected[name] + b"," + value if name in expected else value
        assert reader.request(data)[0].fields == expected or expected.get(b"te") not in (None, b"trailers")


def test_a_change_of_the_tables_size_ends_what_is_kept_of_blocks() -> None:
    reader = HeadReader(4096, lambda head: head)
    adds = block() + b"\x40\x01a\x01x"  # a field that the table gets, where it has room
    reader.request(b"\x20" + block())  # it has none
    reader.request(adds)
    reader.request(b"\x3f\xe1\x1f" + block())  # 4,096 bytes
    reader.request(adds)
    assert reader.request(block() + b"\xbe")[0].fields[b"a"] == b"x"


def test_a_calls_head_says_whether_it_is_served_and_by_when() -> None:
    def call(method: bytes = b"POST", path: bytes = b"/a", **fields: str) -> Any:
        given = {b"content-type": b"application/grpc"} | {
            k.replace("_", "-").encode(): v.encode() for k, v in fields.items()
        }
        return read(Head(method=method, path=path, fields=given))

    assert not call().is_refused
    assert call(content_type="application/grpc+proto").refusal == b""
    assert call(method=b"GET").refusal == b"\x08\x03405"
    assert (
        call(content_type="application/json").refusal
        == call(content_type="application/grpcx").refusal
        == b"\x08\x03415"
    )
    for refused in (
        call(path=b"/c"),
        call(grpc_encoding="br"),
        call(grpc_timeout="1x"),
        call(grpc_timeout="123456789S"),
    ):
        assert b"grpc-status" in refused.refusal
    assert call(grpc_timeout="250m").within_s == 0.25
    assert call(grpc_timeout="2H").within_s == 7200


@pytest.mark.parametrize(
    ("body", "encoding", "code"),
    [
        (b"", b"identity", "INVALID_ARGUMENT"), (b"\x00\x00\x00\x00\x02a", b"identity", "INVALID_ARGUMENT"),
        (2 * written(b"a"), b"identity", "INVALID_ARGUMENT"), (written(bytes(99)), b"identity", "RESOURCE_EXHAUSTED"),
        (b"\x01\x00\x00\x00\x01a", b"identity", "INTERNAL"), (b"\x01\x00\x00\x00\x01a", b"gzip", "INTERNAL"),
        (b"\x02\x00\x00\x00\x01a", b"gzip", "INTERNAL"),
    ],
)  # fmt: skip
def test_what_is_not_one_message_has_its_status(body: bytes, encoding: bytes, code: str) -> None:
    call = read(
        Head(method=b"POST", path=b"/a", fields={b"grpc-encoding": encoding, b"content-type": b"application/grpc"})
    )
    with pytest.raises(CallError) as raised:
        read_message(call, body, 64)
    assert raised.value.code == code


def test_a_message_that_swells_is_refused_before_it_is_large() -> None:
    import zlib

    packed = zlib.compress(bytes(1 << 20))
    call = read(
        Head(method=b"POST", path=b"/a", fields={b"grpc-encoding": b"deflate", b"content-type": b"application/grpc"})
    )
    with pytest.raises(CallError, match="larger"):
        read_message(call, b"\x01" + len(packed).to_bytes(4, "big") + packed, 4096)
    with pytest.raises(CallError, match="16 times"):
        read_message(call, b"\x01" + len(packed).to_bytes(4, "big") + packed, 1 << 20)
    small = zlib.compress(b"hello")
    assert read_message(call, b"\x01" + len(small).to_bytes(4, "big") + small, 4096) == b"hello"
