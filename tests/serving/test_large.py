"""Large requests: a process reads them, so that other clients are answered meanwhile."""

import asyncio
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from farside.serve.large import reader
from farside.serve.large.message import LARGE_BYTES
from farside.serve.large.reader import LargeReader
from tests.serving.front import grpc_front, http_front, in_loop, model_file
from tests.support.ports import free_port

SMALL = model_file(shape=(2,))
WIDE = model_file("wide", shape=(100_000,), max_batch=8)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[LargeReader]:
    """The readers of fronts that a test makes."""
    made: list[LargeReader] = []
    start = LargeReader.start

    def started(self: LargeReader) -> None:
        start(self)
        if self not in made:
            made.append(self)

    monkeypatch.setattr(LargeReader, "start", started)
    return made


def body(model: str, values: list[float], rows: int = 1) -> bytes:
    """A request in JSON alone."""
    shape = [rows, len(values) // rows]
    return msgspec.json.encode({"inputs": [{"name": "input", "shape": shape, "datatype": "FP32", "data": values}]})


def ask(port: int, model: str, data: bytes) -> tuple[int, Any]:
    """What a client gets that is a program of its own kind: Python's."""
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/{model}/infer", data)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, msgspec.json.decode(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, msgspec.json.decode(error.read())


async def until(condition: Any) -> None:
    """Polls."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@in_loop
async def _others_go_on_by_http(readers: list[LargeReader]) -> None:
    port = free_port()
    values = [float(number % 1000) for number in range(800_000)]
    async with http_front([SMALL, WIDE], port):
        first = asyncio.create_task(asyncio.to_thread(ask, port, "wide", body("wide", values[:100_000])))
        await until(lambda: readers and readers[0].pid)
        os.kill(readers[0].pid, signal.SIGSTOP)
        wide = asyncio.create_task(asyncio.to_thread(ask, port, "wide", body("wide", values, 8)))
        for _ in range(20):
            assert (await asyncio.to_thread(ask, port, "twice", body("twice", [1.0, 2.0])))[0] == 200
        assert not wide.done()

        os.kill(readers[0].pid, signal.SIGCONT)

        assert (await first)[0] == 200
        status, told = await wide
        assert status == 200
        assert told["outputs"][0]["data"] == [2 * one for one in values]


def test_while_a_json_body_of_megabytes_is_read_others_are_answered(readers: list[LargeReader]) -> None:
    _others_go_on_by_http(readers)


@in_loop
async def _others_go_on_by_grpc(readers: list[LargeReader]) -> None:
    given = np.random.default_rng(1).random(900_000, dtype="f4")  # does not shrink much when it is compressed
    async with grpc_front([SMALL, WIDE]) as (address, _, _):
        import grpc

        from farside.serve.grpc_message import service_pb2

        def request(model: str, items: int, rows: int, **data: Any) -> Any:
            tensor = {"name": "input", "shape": [rows, items], "datatype": "FP32", **data}
            raw = [] if data else [given[: rows * items].tobytes()]
            return service_pb2.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=raw)

        def infer(channel: Any, asked: Any, **options: Any) -> Any:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                service_pb2.ModelInferRequest.SerializeToString,
                service_pb2.ModelInferResponse.FromString,
            )
            return asyncio.ensure_future(_answered(call(asked, timeout=60, **options)))

        async def _answered(call: Any) -> Any:
            return await call

        async with grpc.aio.insecure_channel(address) as channel:
            wide = [infer(channel, request("wide", 100_000, 8))]
            await until(lambda: readers and readers[0].pid)
            os.kill(readers[0].pid, signal.SIGSTOP)
            wide.append(infer(channel, request("wide", 100_000, 8), compression=grpc.Compression.Gzip))
            wide.append(infer(channel, request("wide", 100_000, 2, contents={"fp32_contents": given[:200_000]})))
            for _ in range(20):
                await infer(channel, request("twice", 2, 1))
            assert not any(one.done() for one in wide[1:])

            os.kill(readers[0].pid, signal.SIGCONT)

            found = [np.frombuffer((await one).raw_output_contents[0], "f4") for one in wide]
            assert [len(one) for one in found] == [800_000, 800_000, 200_000]
            assert all((one == 2 * given[: len(one)]).all() for one in found)
            wrong = {
                "NOT_FOUND": request("nope", 100_000, 8),
                "INVALID_ARGUMENT": request("wide", 100_001, 8),
            }
            for code, asked in wrong.items():
                with pytest.raises(grpc.RpcError) as raised:
                    await infer(channel, asked)
                assert raised.value.code().name == code
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as raised:
                await call(os.urandom(LARGE_BYTES + 1), timeout=60)
            assert raised.value.code().name == "INVALID_ARGUMENT"


def test_while_a_message_of_megabytes_is_read_others_are_answered(readers: list[LargeReader]) -> None:
    _others_go_on_by_grpc(readers)


@in_loop
async def _ends(readers: list[LargeReader]) -> None:
    port = free_port()
    large = body("wide", [1.0] * 100_000)
    async with http_front([SMALL, WIDE], port):
        assert (await asyncio.to_thread(ask, port, "wide", large))[0] == 200
        assert (await asyncio.to_thread(ask, port, "wide", large.replace(b"1.0]", b'"x"]')))[0] == 400
        assert (await asyncio.to_thread(ask, port, "wide", large[:-1]))[0] == 400
        os.kill(readers[0].pid, signal.SIGSTOP)
        waits = asyncio.create_task(asyncio.to_thread(ask, port, "wide", large))
        await until(lambda: readers[0].waiting)
        os.kill(readers[0].pid, signal.SIGKILL)
        status, told = await waits
        assert (status, "\n" in told["error"]) == (503, False)
        assert (await asyncio.to_thread(ask, port, "wide", large))[0] == 200


def test_where_the_process_that_reads_is_killed_the_next_request_has_another(readers: list[LargeReader]) -> None:
    _ends(readers)


@in_loop
async def _gone(readers: list[LargeReader]) -> None:
    port = free_port()
    large = body("wide", [1.0] * 100_000)
    async with http_front([SMALL, WIDE], port) as (pool, _):
        assert (await asyncio.to_thread(ask, port, "wide", large))[0] == 200
        os.kill(readers[0].pid, signal.SIGSTOP)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v2/models/wide/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(large) + large)
        await until(lambda: readers[0].waiting)
        writer.transport.abort()
        status, told = await asyncio.to_thread(ask, port, "wide", body("wide", [1.0] * 800_000, 8))
        assert status == 503
        assert "too many" in told["error"]
        os.kill(readers[0].pid, signal.SIGCONT)
        await until(lambda: not readers[0].waiting)
        assert pool.counts["wide"].met == 1


def test_what_waits_to_be_read_is_bounded_and_who_hangs_up_is_forgotten(
    readers: list[LargeReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "HELD_BYTES_MAX", 2_000_000)
    _gone(readers)


def test_the_process_ends_with_its_front(readers: list[LargeReader]) -> None:
    @in_loop
    async def test() -> None:
        port = free_port()
        async with http_front([SMALL, WIDE], port):
            assert (await asyncio.to_thread(ask, port, "wide", body("wide", [1.0] * 100_000)))[0] == 200
            pids.append(readers[0].pid)
        assert not readers[0].pid

    pids: list[int] = []
    test()
    assert pids[0]
    assert not Path(f"/proc/{pids[0]}").exists()
