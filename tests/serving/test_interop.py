"""Triton's own clients, unchanged, against both doors; and its load generator, against a deployment."""

import asyncio
import csv
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from benchmarks.serving.peer_environment import PerfAnalyzer, perf_analyzer
from tests.serving.front import grpc_front, http_front, in_loop, model_file
from tests.serving.test_run import MODELS, Deployed
from tests.support.ports import free_port

MODEL = model_file(shape=(2,))
GIVEN = np.arange(6, dtype="f4").reshape(3, 2)


def asked(client: Any, *, is_binary: bool = True) -> list[Any]:
    """The model's input as a client makes it."""
    given = client.InferInput("input", list(GIVEN.shape), "FP32")
    given.set_data_from_numpy(GIVEN, **({} if "grpc" in client.__name__ else {"binary_data": is_binary}))
    return [given]


@in_loop
async def test_tritonclient_http() -> None:
    # tritonclient itself raises no ImportError where this is missing.
    pytest.importorskip("geventhttpclient", reason="needs geventhttpclient (requirements/cluster.txt)")
    client = pytest.importorskip("tritonclient.http")
    port = free_port()

    def use() -> None:
        with client.InferenceServerClient(f"127.0.0.1:{port}") as server:
            assert server.is_server_live()
            assert server.is_server_ready()
            assert server.is_model_ready("twice")
            assert server.get_model_metadata("twice")["name"] == "twice"
            assert server.get_model_config("twice")["max_batch_size"] == 8
            assert server.get_model_repository_index()[0]["state"] == "READY"
            for is_binary in (True, False):
                wanted = [client.InferRequestedOutput("output", binary_data=is_binary)]
                answer = server.infer("twice", asked(client, is_binary=is_binary), outputs=wanted, request_id="q")
                assert np.array_equal(answer.as_numpy("output"), 2 * GIVEN)
                assert answer.get_response()["id"] == "q"
            later = [server.async_infer("twice", asked(client)) for _ in range(8)]
            assert all(np.array_equal(one.get_result().as_numpy("output"), 2 * GIVEN) for one in later)
            assert server.get_inference_statistics("twice")["model_stats"][0]["inference_count"] == 30
            with pytest.raises(client.InferenceServerException, match="no model 'nope' is served"):
                server.infer("nope", asked(client))
            with pytest.raises(client.InferenceServerException, match="can not answer within"):
                server.infer("twice", asked(client), timeout=1)

    async with http_front([MODEL], port):
        await asyncio.to_thread(use)


@in_loop
async def test_tritonclient_http_aio() -> None:
    pytest.importorskip("geventhttpclient", reason="needs geventhttpclient (requirements/cluster.txt)")
    pytest.importorskip("aiohttp", reason="needs aiohttp (requirements/cluster.txt)")
    client = pytest.importorskip("tritonclient.http.aio")
    port = free_port()
    async with http_front([MODEL], port), client.InferenceServerClient(f"127.0.0.1:{port}") as server:
        assert await server.is_server_ready()
        answers = await asyncio.gather(*(server.infer("twice", asked(client)) for _ in range(8)))
        assert all(np.array_equal(one.as_numpy("output"), 2 * GIVEN) for one in answers)


@in_loop
async def test_tritonclient_grpc() -> None:
    client = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient (requirements/serving.txt)")
    heard: SimpleQueue[Any] = SimpleQueue()

    def use() -> None:
        with client.InferenceServerClient(address) as server:
            assert server.is_model_ready("twice")
            answer = server.infer("twice", asked(client), outputs=[client.InferRequestedOutput("output")])
            assert np.array_equal(answer.as_numpy("output"), 2 * GIVEN)
            with pytest.raises(client.InferenceServerException, match="DEADLINE_EXCEEDED"):
                server.infer("twice", asked(client), timeout=1)
            for way in ("gzip", "deflate"):
                packed = server.infer("twice", asked(client), compression_algorithm=way)
                assert np.array_equal(packed.as_numpy("output"), 2 * GIVEN)
            for _ in range(8):
                server.async_infer("twice", asked(client), callback=lambda result, error: heard.put(error or result))
            answers = [heard.get(timeout=60) for _ in range(8)]
            assert all(np.array_equal(one.as_numpy("output"), 2 * GIVEN) for one in answers)

    async with grpc_front([MODEL]) as (address, _, _):
        await asyncio.to_thread(use)


def refusals(server: Any, error: type[Exception]) -> dict[str, str]:
    """What a client is answered that asks to manage models, memory, traces and logs."""
    asks: dict[str, Callable[[], Any]] = {
        "load": lambda: server.load_model("twice"),
        "unload": lambda: server.unload_model("twice"),
        "trace, changed": lambda: server.update_trace_settings(settings={"trace_rate": "1"}),
        "trace of a model, changed": lambda: server.update_trace_settings("twice", {"trace_rate": "1"}),
        "trace": lambda: server.get_trace_settings(),
        "trace of a model": lambda: server.get_trace_settings("twice"),
        "log, changed": lambda: server.update_log_settings({"log_verbose_level": 1}),
        "log": lambda: server.get_log_settings(),
    }
    for kind in ("system", "cuda"):
        key = {"key": "/k"} if kind == "system" else {"raw_handle": b"aa==", "device_id": 0}
        told, register, unregister = (
            getattr(server, name.format(kind))
            for name in ("get_{}_shared_memory_status", "register_{}_shared_memory", "unregister_{}_shared_memory")
        )
        asks |= {
            f"{kind} memory": told,
            f"{kind} memory of a region": partial(told, "r"),
            f"{kind} memory, registered": partial(register, "r", byte_size=8, **key),
            f"{kind} memory, unregistered": unregister,
            f"{kind} memory of a region, unregistered": partial(unregister, "r"),
        }
    found = dict.fromkeys(asks, "done")
    for what, ask in asks.items():
        try:
            ask()
        except error as refused:
            found[what] = str(refused)
    return found


@in_loop
async def test_what_clients_may_not_manage_is_501_by_http() -> None:
    pytest.importorskip("geventhttpclient", reason="needs geventhttpclient (requirements/cluster.txt)")
    client, port = pytest.importorskip("tritonclient.http"), free_port()

    def use() -> dict[str, str]:
        with client.InferenceServerClient(f"127.0.0.1:{port}") as server:
            return refusals(server, client.InferenceServerException)

    async with http_front([MODEL], port):
        lines = await asyncio.to_thread(use)
    assert not {what: line for what, line in lines.items() if not line.startswith("[501] ")}


@in_loop
async def test_what_clients_may_not_manage_is_unimplemented_by_grpc() -> None:
    client = pytest.importorskip("tritonclient.grpc", reason="needs tritonclient (requirements/serving.txt)")

    def use() -> dict[str, str]:
        with client.InferenceServerClient(address) as server:
            return refusals(server, client.InferenceServerException)

    async with grpc_front([MODEL]) as (address, _, _):
        lines = await asyncio.to_thread(use)
    assert not {what: line for what, line in lines.items() if not line.startswith("[StatusCode.UNIMPLEMENTED] ")}


# One window is enough where nothing is measured: the most that its three may differ by is far.
REQUESTS = 30
SHORT = ("-s", "999", "--measurement-mode", "count_windows", "--measurement-request-count", f"{REQUESTS}")
OVER_HTTP, OVER_GRPC = ("-i", "http", "--max-threads", "8"), ("-i", "grpc", "-a")
CLOSED, OPEN = ("--concurrency-range", "4"), ("--request-rate-range", "50", "--request-distribution", "poisson")


@pytest.mark.long
def test_perf_analyzer_measures_a_deployment_over_both_doors(tmp_path: Path) -> None:
    analyzer = perf_analyzer()
    if analyzer is None:
        pytest.skip("needs perf_analyzer (python -m benchmarks.serving.peer_environment)")
    deployed = Deployed(tmp_path / "models").ready()
    try:
        counted = sum(
            measured(analyzer, tmp_path / f"{at}.csv", "-m", model, "-u", f"127.0.0.1:{port}", *door, *load)
            for at, (model, port, door, load) in enumerate(
                (
                    (MODELS[0], deployed.http, OVER_HTTP, CLOSED),
                    (MODELS[0], deployed.grpc, OVER_GRPC, CLOSED),
                    (MODELS[1], deployed.http, OVER_HTTP, OPEN),
                    (MODELS[1], deployed.grpc, (*OVER_GRPC, "-b", "2"), OPEN),
                )
            )
        )
        status = deployed.status()
    finally:
        ended = deployed.end()
    assert sum(one.met for one in status.models) >= counted >= 4 * REQUESTS
    assert all(one.refused == one.dropped == one.failed == one.rejected == 0 for one in status.models)
    assert ended == 0


def measured(analyzer: PerfAnalyzer, report: Path, *options: str) -> int:
    """Requests that it has counted."""
    done = subprocess.run(
        [analyzer.program, *options, *SHORT, "-f", report], env=analyzer.environment, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader(report.read_text().splitlines())
    assert float(row["Inferences/Second"]) > 0
    assert float(row["Server Queue"]) >= 0  # it has read the statistics, too
    return int(done.stdout.partition("Request count: ")[2].split()[0])
