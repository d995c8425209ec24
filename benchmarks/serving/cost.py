"""What serving itself costs: beside ONNX Runtime in one process, and requests a second of a model that does nothing.

Client, doors and executor share the cores of this machine. Latencies are of one client that waits for each answer, in
turns with calls in this process; throughputs are of 8 and 32 clients that each wait for their answers.

Calls one right after the other find the processor awake and the model in its caches, which no call of a client that
waits finds. What that alone costs is told beside it: the same calls in this process with pauses between.

All is done with several deployments, one after the other: where memory lies differs from start to start, and so do
latencies. What is judged is the median of them.
"""

import asyncio
import functools
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.figure import Figure, Table
from benchmarks.serving.bars import at_least, at_most, bars
from benchmarks.serving.deployed import WHO_GOES_FIRST
from benchmarks.serving.machine_noise import TRIED_HEADER, Tried, noisy_note, spread, tried
from farside.cli.demo.serving_rig import MAX_BATCH, Mix, Running
from farside.serve.sample_models import make_models

MODEL, NULL = "mlp", "null"
DEPLOYMENTS, CALLS, TURNS, WINDOW_S = 5, 300, 5, 5.0
PAUSE_S = 0.001
CLIENTS = (8, 32)
SLO_MS = 2000.0
_MEDIANS = "medians of all deployments, one after the other"
BAR_MS, BAR_HTTP, BAR_GRPC = 1.0, 5000, 2500

Ask = Callable[[], Awaitable[None]]


def measure_cost(*, quick: bool) -> Figure:
    """All of it, with each deployment."""
    effort = (CALLS // 10, 2, WINDOW_S / 5) if quick else (CALLS, TURNS, WINDOW_S)
    with tempfile.TemporaryDirectory(prefix="cost-") as place:
        folder = Path(place)
        make_models(folder, (MODEL, NULL), size=0.5)
        _write_tables(folder / "profile")
        names = (MODEL, NULL)
        mix = Mix(slo_ms=dict.fromkeys(names, SLO_MS), most=dict.fromkeys(names, 10.0))
        extra = ('device = "whole"', "gpus_max = 1")
        found: list[Tried[Cost]] = []
        for _ in range(2 if quick else DEPLOYMENTS):
            with Running(folder, mix, mix.most, extra=extra) as running:
                one = functools.partial(_cost, running, folder / f"{MODEL}.onnx", *effort)
                found.append(asyncio.run(tried(one)))
    return cost_figure(found, effort[-1])


def _write_tables(folder: Path) -> None:
    """Latencies of 1 ms: nothing is planned closely here."""
    folder.mkdir()
    rows = [f"{name},{part},{batch},1" for name in (MODEL, NULL) for part in (50, 100) for batch in (1, MAX_BATCH)]
    (folder / "x-LATENCY.csv").write_text("\n".join(["model,part_pct,batch,latency_ms", *rows]))
    listed = [f"{name},{SLO_MS},10,x" for name in (MODEL, NULL)]
    (folder / "models.csv").write_text("\n".join(["model,slo_ms,mem_mb,input", *listed]))


class Latency(NamedTuple):
    """Median milliseconds of a turn: calls in this process, with pauses between, and over HTTP with the null model."""

    local: float
    paused: float
    over: float
    null: float


async def _latency(running: Running, path: Path, calls: int, turns: int) -> list[Latency]:
    from farside.agent.serving.onnx_model import open_session  # ONNX Runtime, which other parts may do without

    session = open_session(str(path), 1, "cpu")
    shape = running.shape(MODEL)
    row = np.random.default_rng(1).random((1, *shape), dtype=np.float32)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.http)

    async def call() -> None:
        session.run(None, {"input": row})

    async def pause() -> None:
        await asyncio.sleep(PAUSE_S)

    def over(request: bytes) -> Ask:
        async def ask() -> None:
            writer.write(request)
            await _read_answer(reader)

        return ask

    found = []
    for _ in range(turns):
        found.append(
            Latency(
                local=await _median_ms(call, calls),
                paused=await _median_ms(call, calls, pause),
                over=await _median_ms(over(_http_request(MODEL, shape, row.tobytes())), calls),
                null=await _median_ms(over(_http_request(NULL, (4,), bytes(16))), calls),
            )
        )
    writer.close()
    return found


async def _median_ms(ask: Ask, calls: int, before: Ask | None = None) -> float:
    took = []
    for _ in range(calls):
        if before is not None:
            await before()
        began_s = time.perf_counter()
        await ask()
        took.append(time.perf_counter() - began_s)
    return 1000 * statistics.median(took)


class Throughput(NamedTuple):
    """A door under some clients: requests a second, median milliseconds, and CPU us a request of front and client."""

    door: str
    clients: int
    rate: float
    p50_ms: float
    front_us: float
    client_us: float


class Cost(NamedTuple):
    """Of one deployment: the medians of its turns, and each door under each number of clients."""

    latency: Latency
    more_ms: float
    rates: Sequence[Throughput]


async def _cost(running: Running, path: Path, calls: int, turns: int, window_s: float) -> Cost:
    found = await _latency(running, path, calls, turns)
    middle = Latency(*(statistics.median(column) for column in zip(*found, strict=True)))
    more_ms = statistics.median(one.over - one.local for one in found)
    return Cost(middle, more_ms, await _throughput(running, window_s))


async def _throughput(running: Running, window_s: float) -> list[Throughput]:
    found = []
    for clients in CLIENTS:
        for door, make in (("HTTP", _http_clients), ("gRPC", _grpc_clients)):
            asks, close = await make(running, clients)
            front_s, client_s = running.cpu_s(), time.process_time()
            count, rate, p50_ms = await _closed_loop(asks, window_s)
            front_us = 1e6 * (running.cpu_s() - front_s) / count
            client_us = 1e6 * (time.process_time() - client_s) / count
            await close()
            found.append(Throughput(door, clients, rate, p50_ms, front_us, client_us))
    return found


async def _closed_loop(asks: Sequence[Ask], window_s: float) -> tuple[int, float, float]:
    took: list[float] = []
    loop = asyncio.get_running_loop()
    end_s = loop.time() + window_s

    async def run(ask: Ask) -> None:
        while (began_s := loop.time()) < end_s:
            await ask()
            took.append(loop.time() - began_s)

    began_s = loop.time()
    await asyncio.gather(*(run(ask) for ask in asks))
    return len(took), len(took) / (loop.time() - began_s), 1000 * statistics.median(took)


async def _http_clients(running: Running, count: int) -> tuple[list[Ask], Callable[[], Awaitable[None]]]:
    connections = [await asyncio.open_connection("127.0.0.1", running.http) for _ in range(count)]
    request = _http_request(NULL, (4,), bytes(16))

    def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Ask:
        async def ask() -> None:
            writer.write(request)
            await _read_answer(reader)

        return ask

    async def close() -> None:
        for _, writer in connections:
            writer.close()

    return [client(*one) for one in connections], close


async def _grpc_clients(running: Running, count: int) -> tuple[list[Ask], Callable[[], Awaitable[None]]]:
    import grpc
    from tritonclient.grpc import service_pb2_grpc

    from farside.serve.grpc_message import service_pb2

    channel = grpc.aio.insecure_channel(f"127.0.0.1:{running.grpc}")
    stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    tensor = {"name": "input", "shape": [1, 4], "datatype": "FP32"}
    request = service_pb2.ModelInferRequest(model_name=NULL, inputs=[tensor], raw_input_contents=[bytes(16)])

    async def ask() -> None:
        await stub.ModelInfer(request)

    return [ask] * count, channel.close


def _http_request(model: str, shape: Sequence[int], data: bytes) -> bytes:
    one = {
        "name": "input", "shape": [1, *shape], "datatype": "FP32", "parameters": {"binary_data_size": len(data)},
    }  # fmt: skip
    head = msgspec.json.encode({"inputs": [one], "parameters": {"binary_data_output": True}})
    lines = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: f\r\nContent-Length: {len(head) + len(data)}\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\n\r\n"
    )
    return lines.encode() + head + data


async def _read_answer(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    at = head.lower().find(b"\r\ncontent-length:") + 17
    await reader.readexactly(int(head[at:].split(b"\r\n", 1)[0]))


def cost_figure(found: Sequence[Tried[Cost]], window_s: float) -> Figure:
    """The figure, of some deployments."""
    costs = [one.result for one in found]
    more_ms = [one.more_ms for one in costs]
    # Of each door and number of clients, what the deployments reached.
    doors = list(zip(*(one.rates for one in costs), strict=True))
    rates = [[one.rate for one in door] for door in doors]
    names = [f"{door[0].door} requests/s, {door[0].clients} clients" for door in doors]
    least = [{"HTTP": BAR_HTTP, "gRPC": BAR_GRPC}[door[0].door] for door in doors]
    return Figure(
        key="serving-cost",
        title="What serving costs",
        source="glet 5",
        tables=(
            _latency_table(costs, more_ms),
            Table(
                caption=f"Requests a second of the null model, {window_s:g} s each, client included; {_MEDIANS}",
                header=("door", "clients", "requests/s", "least", "most", "to reach", "p50 ms", "CPU us of front",
                        "of client"),
                rows=tuple(
                    (door[0].door, f"{door[0].clients}", *spread(reached, ",.0f"), f"{bar:,}", *_medians(door))
                    for door, reached, bar in zip(doors, rates, least, strict=True)
                ),
            ),
            Table(
                caption="Deployments",
                header=("deployment", "ms more", *names, *TRIED_HEADER),
                rows=tuple(
                    (f"{at}", f"{one.result.more_ms:.3f}", *(f"{door.rate:,.0f}" for door in one.result.rates),
                     *one.cells())
                    for at, one in enumerate(found, 1)
                ),
            ),
            bars(
                at_most("ms more over HTTP than in one process", statistics.median(more_ms), BAR_MS),
                *(
                    at_least(name, statistics.median(reached), bar)
                    for name, reached, bar in zip(names, rates, least, strict=True)
                ),
            ),
        ),
        notes=(f"{noisy_note(found)} {WHO_GOES_FIRST}",),
    )  # fmt: skip


def _latency_table(costs: Sequence[Cost], more_ms: Sequence[float]) -> Table:
    columns = zip(*(one.latency for one in costs), strict=True)
    names = (
        "ONNX Runtime called in this process", f"called {1000 * PAUSE_S:g} ms after the one before",
        "over HTTP, binary tensors", "over HTTP, a model that does nothing",
    )  # fmt: skip
    rows = [(name, *spread(column, ".3f")) for name, column in zip(names, columns, strict=True)]
    return Table(
        caption=f"Milliseconds at one client, medians of calls; {_MEDIANS}",
        header=("", "ms", "least", "most"),
        rows=(*rows, (f"more (at most {BAR_MS:g})", *spread(more_ms, ".3f"))),
    )


def _medians(door: Sequence[Throughput]) -> tuple[str, str, str]:
    """Milliseconds, and CPU us of front and client."""
    p50_ms, front_us, client_us = (
        statistics.median(getattr(one, what) for one in door) for what in ("p50_ms", "front_us", "client_us")
    )
    return f"{p50_ms:.2f}", f"{front_us:.0f}", f"{client_us:.0f}"
