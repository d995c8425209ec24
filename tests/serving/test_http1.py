"""HTTP/1.1 of the HTTP door: one connection's state, and what clients of its own kind get over sockets."""

import asyncio
import http.client
import math
import socket
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.serve import door_server
from farside.serve.door_server import DoorConnection
from farside.serve.http1 import connection as connection_module
from farside.serve.http1.connection import (
    BODY_LIMIT_S,
    HEAD_LIMIT_S,
    LINGER_BYTES_MAX,
    LINGER_SILENT_S,
    Bounds,
    Head,
    Http1Connection,
    Whole,
)
from farside.serve.http2 import budget
from farside.serve.http2.budget import Share
from tests.serving.front import http_front, in_loop, model_file
from tests.support.ports import free_port

BOUNDS = Bounds(head_bytes=300, wire_bytes=3000, idle_s=75.0)
MODEL = model_file(shape=(2,))
WIDE = model_file("wide", shape=(500_000,), max_batch=8)
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
EXPECT = b"Expect: 100-continue\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Seen(NamedTuple):
    """A head as it came."""

    head: Head
    body_bytes_max: int = 1000
    wants_body: bool = True


def connection(share: Share | None = None, *, wants_body: bool = True) -> Http1Connection:
    """One that has just been opened."""
    return Http1Connection(BOUNDS, lambda head: Seen(head, wants_body=wants_body), 0.0, share or Share(10_000))


def told(one: Http1Connection, pieces: Sequence[bytes], now_s: float = 1.0) -> list[Whole]:
    """All requests of these bytes, each answered before the next."""
    found: list[Whole] = []
    for piece in pieces:
        one.receive(piece, now_s)
        while True:
            if (whole := one.take()) is not None:
                found.append(whole)
                one.answers()
                one.answered(now_s)
            elif one.has_more:
                one.go_on(now_s)
            else:
                break
    return found


def request(body: bytes = b"", *, method: bytes = b"POST", more: bytes = b"", is_chunked: bool = False) -> bytes:
    """A request of /x."""
    if is_chunked:
        framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
        return b"%b /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n%b\r\n%b" % (method, more, framed)
    return b"%b /x HTTP/1.1\r\nContent-Length: %d\r\n%b\r\n%b" % (method, len(body), more, body)


@settings(deadline=None)
@given(
    bodies=st.lists(st.tuples(st.binary(max_size=900), st.booleans()), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 5000), max_size=6),
)
def test_requests_are_the_same_wherever_their_bytes_are_cut(bodies: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    data = b"".join(request(body, is_chunked=chunked) for body, chunked in bodies)
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    share = Share(10_000)
    one = connection(share)

    found = told(one, [data[a:b] for a, b in pairwise(at)])

    assert [bytes(whole.body) for whole in found] == [body for body, _ in bodies]
    assert all(whole.head.head[:2] == (b"POST", b"/x") and not whole.why for whole in found)
    assert (share.held, one.is_closed, one.out) == (0, False, b"")


@settings(deadline=None)
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=200),
            st.sampled_from([request(b"abc"), request(b"abc", more=UPGRADE), request(b"abc", more=EXPECT)]),
        ),
        max_size=8,
    ),
    cut=st.integers(0, 90),
)
def test_no_bytes_raise_or_leave_anything_behind(pieces: list[bytes], cut: int) -> None:
    share = Share(10_000)
    one = connection(share)
    told(one, [request(b"abcd" * 20)[:cut], *pieces])
    one.lost()
    assert share.held == 0
    assert one.late_s == math.inf


def test_a_body_takes_no_turn_of_others_and_what_is_no_body_does() -> None:
    wide = Bounds(head_bytes=300, wire_bytes=100_000, idle_s=75.0)
    one = Http1Connection(wide, lambda head: Seen(head, body_bytes_max=50_000), 0.0, Share(100_000))
    one.receive(request(b"x" * 40_000), 1.0)
    whole = one.take()
    assert whole is not None
    assert bytes(whole.body) == b"x" * 40_000
    assert not one.has_more

    two = Http1Connection(wide, lambda head: Seen(head, body_bytes_max=50_000), 0.0, Share(100_000))
    two.receive(b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 5000, 1.0)
    assert two.has_more


def test_what_is_no_http_gets_400_behind_the_answers_before_it() -> None:
    one = connection()
    assert told(one, [b"\x16\x03\x01junk"]) == []
    assert one.out.startswith(b"HTTP/1.1 400 ")
    assert one.is_closed
    two = connection()
    two.receive(request(b"a") + b"junk\r\n\r\n", 1.0)
    assert two.take() is not None
    assert two.answers() == (True, False)
    two.answered(1.0)
    assert (two.is_closed, two.out) == (True, b"")


def test_heads_and_bodies_beyond_their_bounds_end_the_connection() -> None:
    one = connection()
    told(one, [b"GET /x HTTP/1.1\r\n", *(b"a: b\r\n" for _ in range(60))])
    assert one.out.startswith(b"HTTP/1.1 431 ")
    assert one.is_closed
    blank = connection()
    told(blank, [b"\r\n" * 200])
    assert blank.is_closed
    endless = connection()
    told(endless, [b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", *(b"1\r\nx\r\n" for _ in range(600))])
    assert endless.is_closed


def test_a_body_that_is_too_large_is_told_of_as_soon_as_that_is_known() -> None:
    for chunked, known in ((False, 60), (True, 1200)):
        share = Share(10_000)
        one = connection(share)
        data = request(bytes(1500), is_chunked=chunked)
        (whole,) = told(one, [data[:known]])
        assert (whole.why, whole.body, share.held, one.is_closed, one.lingers) == ("large", b"", 0, True, True)
        assert told(one, [data[known:] + request()]) == []


def test_a_body_beyond_what_is_read_of_any_is_answered_though_nobody_wants_it() -> None:
    for pieces in (
        [b"POST /x HTTP/1.1\r\nContent-Length: 1099511627776\r\n\r\n"],
        [b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 600],
    ):
        one = connection(wants_body=False)
        assert len(told(one, pieces)) == 1
        assert (one.is_closed, one.lingers) == (True, True)


def test_what_comes_after_the_last_answer_is_thrown_away_for_a_while() -> None:
    one = connection()
    told(one, [b"POST /x HTTP/1.1\r\nContent-Length: 1099511627776\r\n\r\n"], 1.0)
    assert one.late_s == 1.0 + LINGER_SILENT_S
    one.receive(bytes(1000), 4.0)
    assert one.late_s == 4.0 + LINGER_SILENT_S
    one.receive(bytes(1000), BODY_LIMIT_S)
    assert one.late_s == 1.0 + BODY_LIMIT_S
    piece = bytes(1 << 20)
    for _ in range((LINGER_BYTES_MAX >> 20) - 1):
        one.receive(piece, 4.0)
    assert one.lingers
    one.receive(piece, 4.0)
    assert not one.lingers


def test_who_waited_long_for_its_answer_has_it_before_the_connection_closes() -> None:
    one = connection()
    one.receive(request(b"abc") + b"\x00garbage", 1.0)
    assert one.take() is not None
    one.answers()
    one.answered(1.0 + 2 * BODY_LIMIT_S)
    assert one.is_closed
    assert one.lingers
    assert one.late_s == 1.0 + 2 * BODY_LIMIT_S + LINGER_SILENT_S


def test_transfer_codings_on_several_lines_are_one_field() -> None:
    one = connection()
    one.receive(b"POST /x HTTP/1.1\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1.0)
    whole = one.take()
    assert whole is not None
    assert whole.head.head.fields[b"transfer-encoding"] == b"gzip, chunked"


def test_who_has_sent_all_is_closed_at_once() -> None:
    one = connection()
    assert len(told(one, [request(b"abc", more=b"Connection: close\r\n")])) == 1
    assert (one.is_closed, one.lingers, one.late_s) == (True, False, math.inf)


def test_nothing_is_kept_of_a_body_that_nobody_reads() -> None:
    for chunked in (False, True):
        share = Share(10_000)
        one = connection(share, wants_body=False)
        data = request(bytes(1500), is_chunked=chunked)
        one.receive(data[:700], 1.0)
        assert share.held == 0
        (whole,) = told(one, [data[700:]])
        assert (whole.why, whole.body, one.is_closed) == ("", b"", False)


def test_a_body_belongs_to_who_takes_its_request_and_is_kept_by_nobody_else() -> None:
    for chunked in (False, True):
        one = connection()
        one.receive(request(b"x" * 900, is_chunked=chunked), 1.0)
        body, own = getattr(one.take(), "body", b""), bytearray(900)
        held, alone = sys.getrefcount(body), sys.getrefcount(own)
        assert (bytes(body), held) == (b"x" * 900, alone)


def test_bodies_of_all_connections_together_are_bounded() -> None:
    share = Share(1000)
    first, second = connection(share), connection(share)
    first.receive(request(bytes(900))[:700], 1.0)
    assert 600 < share.held < 700
    (whole,) = told(second, [request(bytes(800))[:500], request(bytes(800))[500:]])
    assert whole.why == "full"
    first.lost()
    assert share.held == 0


def test_who_asks_before_the_body_is_answered_before_it() -> None:
    asks = request(b"abc", more=EXPECT)
    one = connection()
    one.receive(asks[:-3], 1.0)
    assert one.out == CONTINUE
    assert [whole.body for whole in told(one, [b"abc"])] == [b"abc"]
    barred = connection(wants_body=False)
    barred.receive(asks[:-3], 1.0)
    assert barred.take() is not None
    assert barred.out == b""
    assert barred.answers() == (True, False)


def test_a_body_is_asked_for_behind_the_answers_before_it() -> None:
    one = connection()
    one.receive(request(b"first") * 2 + request(b"abc", more=EXPECT)[:-3], 1.0)
    for _ in range(2):
        assert one.out == b""
        assert one.take() is not None
        assert one.answers() == (True, True)
        one.answered(1.0)
    assert one.out == CONTINUE
    assert [whole.body for whole in told(one, [b"abc"])] == [b"abc"]
    assert one.out == CONTINUE
    closes = connection()
    closes.receive(request(more=b"Connection: close\r\n") + request(b"abc", more=EXPECT)[:-3], 1.0)
    assert closes.take() is not None
    closes.answered(1.0)
    assert (closes.is_closed, closes.out) == (True, b"")


def test_a_client_owes_a_head_and_a_body_in_time_but_nothing_while_it_is_answered() -> None:
    one = connection()
    assert one.late_s == HEAD_LIMIT_S
    one.receive(b"\r\n", 5.0)
    one.receive(b"POST /x HTTP/1.1\r\n", 9.0)
    assert one.late_s == 5.0 + HEAD_LIMIT_S
    one.receive(b"Content-Length: 2\r\n\r\na", 12.0)
    assert one.late_s == 12.0 + BODY_LIMIT_S
    one.receive(b"b" + b"GET /x", 13.0)
    assert one.take() is not None
    assert one.late_s == math.inf
    one.answered(50.0)
    assert one.late_s == 50.0 + HEAD_LIMIT_S
    assert len(told(one, [b" HTTP/1.1\r\n\r\n"], 51.0)) == 1
    assert one.late_s == 51.0 + BOUNDS.idle_s


def test_an_old_client_and_one_that_asks_for_it_are_answered_once() -> None:
    for data in (
        b"GET /x HTTP/1.0\r\n\r\n",
        request(more=b"Connection: close\r\n"),
        b"CONNECT h:1 HTTP/1.1\r\n\r\n",
    ):
        one = connection()
        one.receive(data + request(), 1.0)
        assert one.take() is not None
        assert one.answers() == (True, False)
        one.answered(1.0)
        assert one.is_closed
        assert one.take() is None
    kept = connection()
    kept.receive(request(method=b"HEAD"), 1.0)
    assert kept.take() is not None
    assert kept.answers() == (False, True)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_request_for_another_protocol_is_served_in_this_one(is_chunked: bool) -> None:
    bodies = [b"", b"abc", b"x" * 900, b"z"]
    data = b"".join(request(body, more=UPGRADE, is_chunked=is_chunked) for body in bodies) + request(b"end")
    asks = request(b"abc", more=UPGRADE + EXPECT)
    for size in (len(data), 1, 7, 100):
        share = Share(10_000)
        one = connection(share)
        found = told(one, [data[at : at + size] for at in range(0, len(data), size)])
        assert [(bytes(whole.body), whole.why) for whole in found] == [
            (b"", ""), (b"abc", ""), (b"x" * 900, ""), (b"z", ""), (b"end", ""),
        ]  # fmt: skip
        assert found[1].head.head.fields[b"upgrade"] == b"h2c"
        assert (one.is_closed, one.out, share.held) == (False, b"", 0)
        (large,) = told(one, [request(b"y" * 1001, more=UPGRADE, is_chunked=is_chunked), request()])
        assert (large.why, one.is_closed, share.held) == ("large", True, 0)
    two = connection()
    two.receive(asks[:-3], 1.0)
    assert two.out == CONTINUE
    assert [whole.body for whole in told(two, [b"abc"])] == [b"abc"]


def test_a_request_for_another_protocol_has_the_bounds_of_all() -> None:
    unknown = connection()
    told(unknown, [b"POST /x HTTP/1.1\r\nTransfer-Encoding: gzip\r\n%b\r\nabc" % UPGRADE])
    assert unknown.out.startswith(b"HTTP/1.1 400 ")
    twice = connection()
    told(twice, [request(b"abc", more=UPGRADE + b"Transfer-Encoding: chunked\r\n")])
    assert twice.out.startswith(b"HTTP/1.1 400 ")
    endless = connection()
    head = b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n%b\r\n" % UPGRADE
    told(endless, [head, *(b"1\r\nx\r\n" for _ in range(600))])
    assert endless.is_closed
    last = connection()
    last.receive(request(b"abc", more=b"Upgrade: h2c\r\nConnection: upgrade, close\r\n") + request(), 1.0)
    assert last.take() is not None
    assert last.answers() == (True, False)
    many = connection()
    assert len(told(many, [request(more=UPGRADE) * 3000])) == 3000


def test_blanks_around_a_value_are_not_of_it() -> None:
    one = connection()
    one.receive(b"POST /x HTTP/1.1\r\nContent-Length: 2 \t\r\nExpect: 100-continue \r\nA: \t b c\t \r\n\r\n", 1.0)
    assert one.out == CONTINUE
    (whole,) = told(one, [b"ab"])
    assert (whole.head.head.fields[b"a"], whole.body) == (b"b c", b"ab")


def test_what_comes_behind_a_request_waits_within_a_bound() -> None:
    one = connection()
    one.receive(request(), 1.0)
    assert one.take() is not None
    one.receive(request() * 3000, 1.0)
    assert one.is_full
    assert one.take() is None
    one.answered(1.0)
    assert len(told(one, [b""])) == 3000
    assert not one.is_full


# ---- over sockets


def infer(model: str, items: int, rows: int = 1) -> bytes:
    """A request of ones, with binary tensors both ways."""
    data = np.ones(rows * items, "f4").tobytes()
    tensor = {
        "name": "input",
        "shape": [rows, items],
        "datatype": "FP32",
        "parameters": {"binary_data_size": len(data)},
    }
    head = msgspec.json.encode({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    lines = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(head) + len(data)}\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\n\r\n"
    )
    return lines.encode() + head + data


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("\r\ncontent-length: ")[1].split("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


@in_loop
async def test_pipelined_requests_are_answered_in_order() -> None:
    port = free_port()
    async with http_front([MODEL], port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
        writer.write(
            infer("twice", 2) + live + infer("twice", 2, rows=3) + b"GET /nope HTTP/1.1\r\nHost: h\r\n\r\n" + live
        )
        found = [await answer(reader) for _ in range(5)]
        assert [status for status, _ in found] == [200, 200, 200, 404, 200]
        assert found[2][1].endswith(np.full(6, 2, "f4").tobytes())
        writer.close()


@in_loop
async def test_a_body_is_asked_for_once_the_request_before_it_is_answered() -> None:
    port = free_port()
    async with http_front([MODEL], port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head, _, body = infer("twice", 2).partition(b"\r\n\r\n")
        writer.write(infer("twice", 2) + head + b"\r\n" + UPGRADE + EXPECT + b"\r\n")
        assert (await answer(reader))[0] == 200
        assert await reader.readexactly(len(CONTINUE)) == CONTINUE
        writer.write(body)
        assert (await answer(reader))[0] == 200
        writer.close()


@in_loop
async def test_a_request_behind_an_answer_that_stalls_is_answered_once_its_client_reads_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def shrink(self: DoorConnection) -> None:
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    monkeypatch.setattr(DoorConnection, "opened", shrink)  # as on a slow line: the kernel takes little of an answer
    port = free_port()
    async with http_front([model_file("half", shape=(50_000,))], port), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(infer("half", 50_000) + b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")

        assert (await answer(reader))[1].endswith(np.full(50_000, 2, "f4").tobytes())

        assert (await answer(reader))[0] == 200
        writer.close()


@in_loop
async def test_tensors_of_megabytes_go_both_ways_beside_small_ones() -> None:
    port = free_port()
    async with http_front([MODEL, WIDE], port), asyncio.timeout(60):
        wide, small = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        wide[1].write(infer("wide", 500_000, rows=8))
        for _ in range(20):
            small[1].write(infer("twice", 2))
            assert (await answer(small[0]))[0] == 200
        status, body = await answer(wide[0])
        assert status == 200
        assert body.endswith(np.full(4_000_000, 2, "f4").tobytes())
        for _, writer in (wide, small):
            writer.close()


@in_loop
async def test_a_long_answer_that_ends_its_connection_ends_it_once() -> None:
    port = free_port()
    async with http_front([WIDE], port), asyncio.timeout(60):
        errors: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        asked = infer("wide", 500_000, rows=8).replace(b"Host: h\r\n", b"Host: h\r\nConnection: close\r\n")
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(asked)
            assert (await reader.read()).endswith(np.full(4_000_000, 2, "f4").tobytes())
            writer.close()
            await writer.wait_closed()
        assert errors == []


@in_loop
async def test_who_does_not_read_its_answers_is_closed_and_costs_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door_server, "WRITE_LIMIT_S", 1.0)
    monkeypatch.setattr(door_server, "_LOOK_EVERY_S", 0.05)
    port = free_port()
    async with http_front([MODEL, WIDE], port) as (pool, _), asyncio.timeout(60):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(3):
            writer.write(infer("wide", 500_000, rows=8))
        while not pool.counts["wide"].met:
            await asyncio.sleep(0.01)
        other, asks = await asyncio.open_connection("127.0.0.1", port)
        asks.write(infer("twice", 2))
        assert (await answer(other))[0] == 200
        while not writer.transport.is_closing():
            writer.write(b"\r\n")
            await asyncio.sleep(0.01)
        asks.close()


@in_loop
async def test_who_reads_an_answer_too_slowly_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "WRITE_LIMIT_S", 0.0)
    monkeypatch.setattr(budget, "LEAST_BYTES_A_S", 1 << 40)
    monkeypatch.setattr(door_server, "_LOOK_EVERY_S", 0.05)
    port, got = free_port(), 0
    async with http_front([MODEL, WIDE], port), asyncio.timeout(60):
        slow, writer = await asyncio.open_connection("127.0.0.1", port, limit=16_384)
        other, asks = await asyncio.open_connection("127.0.0.1", port)
        writer.write(infer("wide", 500_000, rows=8))
        try:
            while got < 16_000_000 and (more := await slow.read(16_384)):
                got += len(more)
                asks.write(infer("twice", 2))  # it reads on meanwhile, so it never stalls for long
                assert (await answer(other))[0] == 200
        except ConnectionResetError:
            pass
        assert got < 16_000_000
        for one in (writer, asks):
            one.close()


@in_loop
async def test_where_too_much_waits_for_clients_who_is_furthest_behind_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door_server, "UNSENT_BYTES_ALL", 16_000_000)
    monkeypatch.setattr(door_server, "WRITE_LIMIT_S", 3600.0)  # which would end both
    port = free_port()
    async with http_front([WIDE], port) as (pool, _), asyncio.timeout(60):
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # so that the kernel holds little for it
        deaf.setblocking(False)
        await asyncio.get_running_loop().sock_connect(deaf, ("127.0.0.1", port))
        _, behind = await asyncio.open_connection(sock=deaf)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for at, one in enumerate((behind, writer), 1):
            one.transport.pause_reading()  # type: ignore[attr-defined]
            one.write(infer("wide", 500_000, rows=8))
            while pool.counts["wide"].met < at:
                await asyncio.sleep(0.01)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert (await answer(reader))[1].endswith(np.full(4_000_000, 2, "f4").tobytes())
        while not behind.transport.is_closing():
            behind.write(b"\r\n")
            await asyncio.sleep(0.01)
        writer.close()


@in_loop
async def test_a_server_that_ends_answers_what_is_under_way() -> None:
    port = free_port()
    async with http_front([MODEL], port, latency_s=0.2, grace_s=30) as (pool, _), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        _, idle = await asyncio.open_connection("127.0.0.1", port)
        writer.write(infer("twice", 2))
        while not pool.turns[0].batches:
            await asyncio.sleep(0.005)
        told_of = asyncio.ensure_future(reader.read())
    assert (await told_of).startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in told_of.result()
    for one in (writer, idle):
        one.close()


@in_loop
async def test_a_fault_of_ours_is_told_and_the_door_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    async with http_front([MODEL], port) as (pool, _), asyncio.timeout(60):
        with monkeypatch.context() as patched:
            patched.setattr(pool, "submit", lambda one: 1 / 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(infer("twice", 2))
            assert (await answer(reader))[0] == 500
        writer.write(infer("twice", 2))
        assert (await answer(reader))[0] == 200
        writer.close()


def posted(port: int, path: str, size: int) -> tuple[int, str]:
    """Status and error of a request with so large a body, of a client that reads nothing before all is sent."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        client.request("POST", path, bytes(size))
        answered = client.getresponse()
        return answered.status, str(msgspec.json.decode(answered.read())["error"])
    finally:
        client.close()


async def sent_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b" " * 4096)
        await writer.drain()
        await asyncio.sleep(0.01)


@in_loop
async def test_a_client_that_sends_too_much_hears_why() -> None:
    port = free_port()
    async with http_front([MODEL, WIDE], port), asyncio.timeout(60):
        for path, size, status, line in (
            ("/v2/models/twice/infer", 70_000_000, 413, "the model's largest"),
            ("/v2/models/wide/infer", 200_000_000, 413, "the body is larger than 67108864 bytes"),
            ("/v2/models/nope/infer", 70_000_000, 404, "no model 'nope' is served"),
        ):
            found = await asyncio.to_thread(posted, port, path, size)
            assert (found[0], line in found[1]) == (status, True), found


@in_loop
async def test_a_length_beyond_the_largest_is_refused_by_the_head_and_the_connection_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection_module, "LINGER_SILENT_S", 0.0)
    monkeypatch.setattr(door_server, "_LOOK_EVERY_S", 0.05)
    port = free_port()
    async with http_front([MODEL], port), asyncio.timeout(20):  # less than a body's time
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v2/models/twice/infer HTTP/1.1\r\nHost: h\r\nContent-Length: 1099511627776\r\n\r\n")
        assert (await answer(reader))[0] == 413
        assert await reader.read() == b""
        with pytest.raises(ConnectionError):
            await sent_for_ever(writer)
        writer.close()
