"""The gRPC door's connections: what plain channels get, and what hostile clients cost others."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("hpack", reason="needs hpack (requirements/serving.txt)")
pytest.importorskip("grpc", reason="needs grpcio (requirements/serving.txt)")
pytest.importorskip("tritonclient.grpc", reason="needs tritonclient (requirements/serving.txt)")

import grpc

from farside.serve import door_server
from farside.serve.grpc_message import service_pb2
from farside.serve.http2 import connection
from farside.serve.http2 import frame as h2
from farside.serve.http2.call import written
from farside.tls import TlsFiles, client_tls
from tests.serving.front import grpc_front, in_loop, model_file
from tests.support.certificates import SERVER, Authority

MODEL = model_file(shape=(2,))
WIDE = model_file("wide", shape=(100_000,), max_batch=8)
INFER = "/inference.GRPCInferenceService/ModelInfer"
HELLO = h2.PREFACE + h2.settings_frame(())
HEADS = b"".join(
    h2.field(name, value)
    for name, value in (
        (b":method", b"POST"), (b":scheme", b"http"), (b":path", INFER.encode()),
        (b"content-type", b"application/grpc"), (b"te", b"trailers"),
    )
)  # fmt: skip


def request(model: str = "twice", rows: int = 1, items: int = 2) -> Any:
    """Ones for a model."""
    tensor = {"name": "input", "shape": [rows, items], "datatype": "FP32"}
    data = np.ones(rows * items, "f4").tobytes()
    return service_pb2.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[data])


async def infer(channel: Any, asked: Any, **options: Any) -> Any:
    """What a model answers."""
    call = channel.unary_unary(INFER, type(asked).SerializeToString, service_pb2.ModelInferResponse.FromString)
    return await call(asked, **{"timeout": 60, **options})


async def is_served(address: str) -> bool:
    """Whether another client gets its answer."""
    async with grpc.aio.insecure_channel(address) as channel:
        return bool((await infer(channel, request())).model_name == "twice")


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the door closes a connection."""
    data = b""
    try:
        async with asyncio.timeout(60):
            while more := await reader.read(65_536):
                data += more
    except ConnectionResetError:
        pass
    return data


@in_loop
async def test_tensors_of_megabytes_go_both_ways_beside_each_other() -> None:
    async with grpc_front([MODEL, WIDE]) as (address, _, _), grpc.aio.insecure_channel(address) as channel:
        asked = [infer(channel, request("wide", 8, 100_000)), *(infer(channel, request()) for _ in range(9))]
        wide, *others = await asyncio.gather(*asked, infer(channel, request("wide", 3, 100_000)))
        assert np.frombuffer(wide.raw_output_contents[0], "f4").tolist() == [2.0] * 800_000
        assert [len(one.raw_output_contents[0]) for one in others] == [8] * 9 + [1_200_000]


@in_loop
async def test_compressed_messages_are_taken() -> None:
    async with grpc_front([MODEL]) as (address, _, _), grpc.aio.insecure_channel(address) as channel:
        for way in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            assert (await infer(channel, request(rows=8), compression=way)).outputs[0].shape == [8, 2]


@in_loop
async def test_messages_that_ask_about_the_server_are_refused_where_they_are_large_also_once_decompressed() -> None:
    async with grpc_front([MODEL, WIDE]) as (address, _, _), grpc.aio.insecure_channel(address) as channel:
        for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            if method.name in ("ModelInfer", "ModelStreamInfer"):
                continue
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method.name}")
            unknown_field = b"\x7a\x80\x80\x04" + bytes(1 << 16)
            for way in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
                with pytest.raises(grpc.RpcError) as raised:
                    await call(unknown_field, compression=way, timeout=60)
                assert (raised.value.code(), raised.value.details()) == (
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    "the message is larger than 65536 bytes, the largest that is taken",
                )
        call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
        assert await call(b"\x7a\xf0\xff\x03" + bytes(65_520), compression=grpc.Compression.Gzip, timeout=60)
        assert (await infer(channel, request("wide", 8, 100_000))).model_name == "wide"


@in_loop
async def test_a_method_that_there_is_not_and_a_stream_are_unimplemented_at_once() -> None:
    async with grpc_front([MODEL]) as (address, _, _), grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.RpcError) as raised:
            await channel.unary_unary("/inference.GRPCInferenceService/Nope")(b"", timeout=60)
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(timeout=60)
        with pytest.raises(grpc.RpcError) as raised:
            await stream.read()  # its client has not said that it ends
        assert raised.value.code() == grpc.StatusCode.UNIMPLEMENTED


@in_loop
async def test_tls_is_spoken_with_who_asks_for_h2(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    made = authority.make("front", says=SERVER)
    async with grpc_front([MODEL], secure=TlsFiles(cert=made.cert, key=made.key)) as (address, _, _):
        trusted = grpc.ssl_channel_credentials(authority.cert.read_bytes())
        async with grpc.aio.secure_channel(address, trusted) as channel:
            assert (await infer(channel, request())).model_name == "twice"
        plain = client_tls(TlsFiles(ca=authority.cert))
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, port, ssl=plain, server_hostname=host)
        assert await until_closed(reader) == b""
        writer.close()


@in_loop
async def test_a_client_that_hangs_up_takes_its_calls_with_it() -> None:
    async with grpc_front([MODEL]) as (address, pool, executor):
        executor.is_hung = True
        _, writer = await asyncio.open_connection(*address.split(":"))
        body = written(request().SerializeToString())
        writer.write(HELLO + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEADS) + h2.frame(h2.DATA, h2.END_STREAM, 1, body))
        async with asyncio.timeout(60):
            while not pool.turns[0].batches:
                await asyncio.sleep(0.005)
            writer.transport.abort()
            while not pool.counts["twice"].cancelled:
                await asyncio.sleep(0.005)


@in_loop
async def test_a_call_without_a_token_is_answered_before_its_message_comes() -> None:
    async with grpc_front([MODEL], ("sesame",)) as (address, _, _):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(HELLO + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEADS))
        told = b""
        async with asyncio.timeout(60):
            while b"token is missing" not in told or h2.reset_frame(1, h2.NO_ERROR) not in told:
                told += await reader.read(4096)
        writer.close()
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                await infer(channel, request())
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
            token = (("authorization", "Bearer sesame"),)
            assert (await infer(channel, request(), metadata=token)).model_name == "twice"


@in_loop
async def test_a_client_in_its_handshake_is_not_served_after_the_door_closes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    made = authority.make("front", says=SERVER)
    trusted = client_tls(TlsFiles(ca=authority.cert))
    trusted.set_alpn_protocols(["h2"])
    async with grpc_front([MODEL], secure=TlsFiles(cert=made.cert, key=made.key), grace_s=0) as (address, _, _):
        host, port = address.split(":")
        late = socket.create_connection((host, int(port)))
        late.setblocking(False)
        async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority.cert.read_bytes())) as one:
            assert (await infer(one, request())).model_name == "twice"  # so that the other is accepted
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection(sock=late, ssl=trusted, server_hostname=host), 60
    )  # fmt: skip
    body = written(request().SerializeToString())
    writer.write(HELLO + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEADS) + h2.frame(h2.DATA, h2.END_STREAM, 1, body))
    told = await until_closed(reader)
    assert b"the server ends" in told
    assert b"twice" not in told
    writer.close()


@in_loop
async def test_a_door_that_closes_answers_what_is_under_way() -> None:
    async with grpc_front([MODEL], grace_s=30) as (address, pool, executor):
        executor.is_hung = True
        channel = grpc.aio.insecure_channel(address)
        asked = asyncio.ensure_future(infer(channel, request()))
        async with asyncio.timeout(60):
            while not pool.turns[0].batches:
                await asyncio.sleep(0.005)
        asyncio.get_running_loop().call_later(0.05, executor.answer)
    assert (await asked).model_name == "twice"
    with pytest.raises(grpc.RpcError):
        await infer(channel, request(), timeout=5)
    await channel.close()


async def _ping_without_reading(address: str) -> None:
    """Returns once the door has closed the connection; others are served meanwhile."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(deaf, HELLO)
            while True:  # more answers than fit between the two
                await loop.sock_sendall(deaf, 2000 * h2.frame(h2.PING, 0, 0, bytes(8)))
                assert await is_served(address)
        except (ConnectionResetError, BrokenPipeError):
            return


@in_loop
async def test_who_is_slow_or_does_not_read_is_closed_and_costs_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BODY_LIMIT_S", 1.0)
    monkeypatch.setattr(door_server, "WRITE_LIMIT_S", 1.0)
    monkeypatch.setattr(door_server, "_LOOK_EVERY_S", 0.05)
    async with grpc_front([MODEL]) as (address, _, _):
        slow, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(HELLO + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEADS) + h2.frame(h2.DATA, 0, 1, b"\x00"))
        await asyncio.wait_for(_ping_without_reading(address), 60)
        async with asyncio.timeout(60):
            told = b""
            while b"within 30 s" not in told:
                told += await slow.read(4096)
        writer.close()


@in_loop
async def test_connections_beyond_an_addresss_number_take_the_place_of_idle_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door_server, "CONNECTIONS_MAX", 4)
    async with grpc_front([MODEL]) as (address, _, _):
        idle = [await asyncio.open_connection(*address.split(":")) for _ in range(8)]
        assert await is_served(address)
        for reader, _ in idle[:4]:
            await until_closed(reader)
        for _, writer in idle:
            writer.close()


@in_loop
async def test_who_uploads_or_is_sent_an_answer_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_server, "CONNECTIONS_MAX", 4)
    async with grpc_front([MODEL, WIDE]) as (address, _, _):
        body = written(request("wide", 8, 100_000).SerializeToString())
        frames = [body[at : at + h2.FRAME_BYTES] for at in range(0, len(body), h2.FRAME_BYTES)]
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(HELLO + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEADS) + h2.frame(h2.DATA, 0, 1, frames[0]))
        assert await is_served(address)  # the upload has begun
        others = [await asyncio.open_connection(*address.split(":")) for _ in range(5)]
        assert await is_served(address)
        for at, part in enumerate(frames[1:], 2):
            writer.write(h2.frame(h2.DATA, h2.END_STREAM if at == len(frames) else 0, 1, part))
        got = 0
        async with asyncio.timeout(60):
            while got < h2.WINDOW_BYTES:  # its answer is more than its windows
                got += len(await reader.read(65_536))
            others += [await asyncio.open_connection(*address.split(":")) for _ in range(5)]
            assert await is_served(address)
            writer.write(h2.window_frame(0, 1 << 22) + h2.window_frame(1, 1 << 22))
            while got < 3_200_000:
                more = await reader.read(65_536)
                assert more
                got += len(more)
        for _, one in ((reader, writer), *others):
            one.close()


@in_loop
async def test_where_too_much_waits_for_clients_who_is_furthest_behind_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door_server, "UNSENT_BYTES_ALL", 300_000)  # an answer has 200,000
    body = written(request("half", 1, 50_000).SerializeToString())
    asked = b"".join(
        h2.frame(h2.DATA, h2.END_STREAM if at + h2.FRAME_BYTES >= len(body) else 0, 1, body[at : at + h2.FRAME_BYTES])
        for at in range(0, len(body), h2.FRAME_BYTES)
    )
    async with grpc_front([MODEL, model_file("half", shape=(50_000,))]) as (address, _, _), asyncio.timeout(60):
        made = [await asyncio.open_connection(*address.split(":")) for _ in range(2)]
        got = 0
        for reader, writer in made:
            writer.write(HELLO + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEADS) + asked)
            got = 0
            while got < h2.WINDOW_BYTES:
                got += len(await reader.read(65_536))
        await until_closed(made[0][0])
        reader, writer = made[1]
        writer.write(h2.window_frame(0, 1 << 20) + h2.window_frame(1, 1 << 20))
        while got < 200_000:
            more = await reader.read(65_536)
            assert more
            got += len(more)
        assert await is_served(address)
        for _, writer in made:
            writer.close()


@in_loop
async def test_random_bytes_never_crash_the_grpc_door() -> None:
    sound = HELLO + h2.frame(h2.HEADERS, h2.END_HEADERS, 1, HEADS)
    tried: list[bytes] = []

    @settings(max_examples=60, deadline=None, database=None)
    @given(st.binary(max_size=200), st.integers(0, len(sound)))
    def collect(data: bytes, cut: int) -> None:
        tried.extend((data, sound[:cut] + data))

    collect()
    async with grpc_front([MODEL]) as (address, _, _):
        for data in tried:
            _, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(data)
            writer.close()
        assert await is_served(address)
