"""Large requests and answers: a process reads and writes them, so that other clients are answered meanwhile."""

import asyncio
import errno
import gzip
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from farside.agent.serving.model_file import ModelFile, TensorSpec
from farside.serve.inference import InferenceError, InferRequest
from farside.serve.large import reader
from farside.serve.large.message import LARGE_BYTES, is_needed
from farside.serve.large.reader import LargeReader
from tests.serving.front import grpc_front, http_front, in_loop, model_file
from tests.support.ports import free_port

SMALL = model_file(shape=(2,))
WIDE = model_file("wide", shape=(100_000,), max_batch=8)
PAIR = ModelFile(
    name="pair", path="/m/pair/1/model.onnx", framework="onnxruntime", max_batch=2,
    inputs=(TensorSpec("a", "INT8", (3,)), TensorSpec("b", "FP32", (50_001,))),
    outputs=(TensorSpec("x", "INT8", (3,)), TensorSpec("y", "FP32", (50_001,))),
)  # fmt: skip


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


def binary(model: ModelFile, rows: int, arrays: list[Any], **more: Any) -> tuple[bytes, int]:
    """A request with its tensors as bytes, which no process needs to read, and the bytes of its head."""
    data = [array.tobytes() for array in arrays]
    inputs = [
        {"name": spec.name, "shape": [rows, *spec.shape], "datatype": spec.datatype,
         "parameters": {"binary_data_size": len(one)}}
        for spec, one in zip(model.inputs, data, strict=True)
    ]  # fmt: skip
    head = msgspec.json.encode({"inputs": inputs, **more})
    return b"".join((head, *data)), len(head)


def ask(port: int, model: str, data: bytes, head: int | None = None) -> tuple[int, Any]:
    """What a client gets that is a program of its own kind: Python's."""
    fields = {} if head is None else {"Inference-Header-Content-Length": str(head)}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/{model}/infer", data, fields)
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            size = answer.headers.get("Inference-Header-Content-Length")
            if size is not None:
                return answer.status, (msgspec.json.decode(answer.read(int(size))), answer.read())
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
    async with grpc_front([SMALL, WIDE]) as (address, pool, _):
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
            swells = request("wide", 100_000, 1)
            swells.raw_input_contents[0] = given[:50_000].tobytes() + bytes(200_000)
            assert len(gzip.compress(swells.SerializeToString())) < LARGE_BYTES
            wide.append(infer(channel, swells, compression=grpc.Compression.Gzip))
            for _ in range(20):
                await infer(channel, request("twice", 2, 1))
            assert not any(one.done() for one in wide[1:])

            os.kill(readers[0].pid, signal.SIGCONT)

            found = [np.frombuffer((await one).raw_output_contents[0], "f4") for one in wide]
            swollen = found.pop()
            assert (swollen[:50_000] == 2 * given[:50_000]).all()
            assert swollen[50_000:].tolist() == [0.0] * 50_000
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
            assert pool.counts["wide"].refused == 1
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            with pytest.raises(grpc.RpcError) as raised:
                await call(os.urandom(LARGE_BYTES + 1), timeout=60)
            assert raised.value.code().name == "INVALID_ARGUMENT"


def test_while_a_message_of_megabytes_is_read_others_are_answered(readers: list[LargeReader]) -> None:
    _others_go_on_by_grpc(readers)


@in_loop
async def _others_go_on_while_it_is_written(readers: list[LargeReader]) -> None:
    port = free_port()
    given = np.arange(800_000, dtype="f4").reshape(8, 100_000)
    large = binary(WIDE, 8, [given], id="q")
    async with http_front([SMALL, WIDE], port) as (pool, _):
        first = asyncio.create_task(asyncio.to_thread(ask, port, "wide", *large))
        await until(lambda: readers and readers[0].waiting)
        os.kill(readers[0].pid, signal.SIGSTOP)
        wide = asyncio.create_task(asyncio.to_thread(ask, port, "wide", *large))
        await until(lambda: pool.counts["wide"].met == 2)
        for _ in range(20):
            assert (await asyncio.to_thread(ask, port, "twice", body("twice", [1.0, 2.0])))[0] == 200
        assert not wide.done()

        os.kill(readers[0].pid, signal.SIGCONT)

        for status, told in await asyncio.gather(first, wide):
            assert (status, told["id"]) == (200, "q")
            assert told["outputs"][0]["shape"] == [8, 100_000]
            assert told["outputs"][0]["data"] == (2 * given).ravel().tolist()


def test_while_an_answer_of_megabytes_is_written_in_json_others_are_answered(readers: list[LargeReader]) -> None:
    _others_go_on_while_it_is_written(readers)


@in_loop
async def _in_both_forms(readers: list[LargeReader]) -> None:
    port = free_port()
    given = [np.arange(6, dtype="i1").reshape(2, 3), np.arange(100_002, dtype="f4").reshape(2, 50_001)]
    wanted = [{"name": "x", "parameters": {"binary_data": True}}, {"name": "y"}]
    async with http_front([PAIR], port):
        status, (told, tail) = await asyncio.to_thread(ask, port, "pair", *binary(PAIR, 2, given, outputs=wanted))
        assert (status, [one["name"] for one in told["outputs"]]) == (200, ["x", "y"])
        assert tail == (2 * given[0]).tobytes()
        assert told["outputs"][1]["data"] == (2 * given[1]).ravel().tolist()
        status, told = await asyncio.to_thread(ask, port, "pair", *binary(PAIR, 2, given, outputs=wanted[1:]))
        assert [one["name"] for one in told["outputs"]] == ["y"]
        assert told["outputs"][0]["data"] == (2 * given[1]).ravel().tolist()
        assert readers[0].pid


def test_a_large_answer_has_each_output_in_the_form_that_was_asked_for(readers: list[LargeReader]) -> None:
    _in_both_forms(readers)


@in_loop
async def _answers_end(readers: list[LargeReader]) -> None:
    port = free_port()
    large, head = binary(WIDE, 1, [np.ones(100_000, "f4")])
    asked = (
        b"POST /v2/models/wide/infer HTTP/1.1\r\nContent-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n"
        % (len(large), head)
    )
    async with http_front([SMALL, WIDE], port) as (pool, _):
        assert (await asyncio.to_thread(ask, port, "wide", large, head))[0] == 200
        os.kill(readers[0].pid, signal.SIGSTOP)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asked + large)
        await until(lambda: readers[0].waiting == 1)
        writer.transport.abort()
        waits = asyncio.create_task(asyncio.to_thread(ask, port, "wide", large, head))
        await until(lambda: readers[0].waiting == 2)
        os.kill(readers[0].pid, signal.SIGKILL)
        status, told = await waits
        assert (status, "\n" in told["error"]) == (503, False)
        assert (await asyncio.to_thread(ask, port, "wide", large, head))[0] == 200
        assert (pool.counts["wide"].met, pool.counts["wide"].cancelled) == (4, 0)


def test_where_the_process_that_writes_is_killed_clients_are_told_and_who_hung_up_is_forgotten(
    readers: list[LargeReader],
) -> None:
    _answers_end(readers)


def test_a_process_is_started_for_models_whose_requests_or_answers_may_be_large() -> None:
    assert not is_needed([SMALL])
    assert is_needed([SMALL, WIDE])
    assert is_needed([msgspec.structs.replace(SMALL, outputs=WIDE.outputs)])


@in_loop
async def _ends(readers: list[LargeReader]) -> None:
    port = free_port()
    large = body("wide", [1.0] * 100_000)
    async with http_front([SMALL, WIDE], port) as (pool, _):
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
        counts = pool.counts["wide"]
        assert (counts.met, counts.refused, counts.failed) == (2, 2, 1)


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
        assert pool.counts["wide"].rejected == 1
        os.kill(readers[0].pid, signal.SIGCONT)
        await until(lambda: not readers[0].waiting)
        assert pool.counts["wide"].met == 1


def test_what_waits_to_be_read_is_bounded_and_who_hangs_up_is_forgotten(
    readers: list[LargeReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "HELD_BYTES_MAX", 2_000_000)
    _gone(readers)


Told = tuple[str, str]


def read_one(one: LargeReader, told: list[Told], name: str, data: bytes) -> Callable[[], None]:
    """Has a body read; what its client is told goes into ``told``, with its name."""

    def done(model: ModelFile, request: InferRequest) -> Callable[[], None]:
        told.append((name, ""))
        return lambda: None

    return one.read(data, done, lambda error, _: told.append((name, str(error))), model="wide")


@in_loop
async def _none_to_have(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    one, told, large = LargeReader({"wide": WIDE}), list[Told](), body("wide", [1.0] * 100_000)
    one.start()

    def refuse(*_: Any, **__: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(call, refuse)
        for name in ("first", "second"):
            read_one(one, told, name, large)
        await until(lambda: len(told) == 2)
    line = "large requests and answers can not be served now: Too many open files"
    assert told == [("first", line), ("second", line)]
    assert not one.waiting
    read_one(one, told, "third", large)
    await until(lambda: len(told) == 3)
    assert told[2] == ("third", "")
    one.close()


@pytest.mark.parametrize("call", ["os.memfd_create", "mmap.mmap"])
def test_what_no_descriptor_is_left_for_is_told_so_at_once(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    _none_to_have(monkeypatch, call)


@in_loop
async def _gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    one, told, large = LargeReader({"wide": WIDE}), list[Told](), body("wide", [1.0] * 100_000)
    monkeypatch.setattr(reader, "HELD_BYTES_MAX", 4 * len(large))
    one.start()
    os.kill(one.pid, signal.SIGSTOP)
    gone = [read_one(one, told, f"gone {at}", large) for at in range(4)]
    with pytest.raises(InferenceError, match="too many"):
        read_one(one, told, "beyond", large)

    for cancel in gone:
        cancel()

    for name in ("first", "second"):
        read_one(one, told, name, large)
    with pytest.raises(InferenceError, match="too many"):  # those that are with the process count until they are read
        read_one(one, told, "beyond", large)
    os.kill(one.pid, signal.SIGCONT)
    await until(lambda: not one.waiting)
    assert told == [("first", ""), ("second", "")]
    one.close()


def test_large_requests_whose_clients_have_gone_hold_nothing_while_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    _gives_back(monkeypatch)


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
