"""The demo's serving scene: its verdict, and the client that it judges by."""

import asyncio
import io
from dataclasses import replace
from typing import cast

import pytest
from rich.console import Console

from farside.cli.demo import serving
from farside.cli.demo.serving import Phase, ServingScene, need_packages, scene_faults
from farside.cli.demo.serving_load import Ended, OpenLoop, Outcome, Result, Target, poisson
from farside.cli.demo.serving_report import print_scene
from farside.cli.demo.serving_rig import Mix
from farside.errors import Unavailable
from farside.serve.status import ChangeRecord, ModelStatus, ServeStatus
from tests.serving.front import http_front, in_loop, model_file
from tests.support.ports import free_port

MODEL = model_file("net", shape=(2,))
TARGETS = {"net": Target(model="net", input="input", shape=(2,), slo_ms=60_000)}


STARTED, STEPPED, REFUSED = (
    ChangeRecord(at_s=0, cause=cause, gpus=1, part_pct=100, problem=problem)
    for cause, problem in (("start", ""), ("burst", ""), ("burst", "the rates have no plan"))
)


def scene(*outcomes: str, deaths: int = 1, changes: tuple[ChangeRecord, ...] = (STARTED, STEPPED)) -> ServingScene:
    counts = {name: sum(one == name for one in outcomes) for name in ("met", "late", "dropped", "rejected", "failed")}
    model = ModelStatus(
        name="net", slo_ms=100, rate=1, planned_rate=2, waiting=0, p50_ms=1, p99_ms=2, refused=0, cancelled=0, again=0,
        **counts,
    )  # fmt: skip
    status = ServeStatus(
        name="t", http="", grpc="", driver="cpu", devices=2, ready=True, glets=(), models=(model,),
        changes=changes, deaths=deaths, stray=0,
    )  # fmt: skip
    return ServingScene(
        mix=Mix(slo_ms={"net": 100}, most={"net": 4}),
        phases=(Phase(name="at first", since_s=0, until_s=10, rates={"net": 1.0}),),
        result=Result(ended=[Ended("net", 1.0, cast("Outcome", one), 0.01) for one in outcomes]),
        status=status,
        killed=7,
    )


def test_a_scene_that_kept_its_promises_is_good() -> None:
    good = scene(*["met"] * 99, "late")

    assert scene_faults(good) == ()
    assert print_scene(Console(file=io.StringIO(), width=120), good) == 0


def test_what_was_out_of_bounds_is_named_and_fails_the_demo() -> None:
    bad = scene(*["met"] * 90, *["dropped"] * 7, "failed", "lost", "doubled", deaths=0, changes=(STARTED, REFUSED))
    console = Console(file=io.StringIO(), width=120)

    assert print_scene(console, bad) == 1

    assert scene_faults(bad) == (
        "at first: 10.0 % of requests violated their SLO; 1 % may",
        "1 requests were failed",
        "1 requests were lost",
        "1 requests were doubled",
        "no new plan was made for the step",
        "0 executors died, one was killed",
        "100 requests were sent, and 98 counted",
    )
    assert console.file.getvalue().count("FAIL") == 7  # type: ignore[attr-defined]


def test_without_its_packages_the_scene_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PACKAGES", ("nothing_of_this_name",))

    with pytest.raises(Unavailable, match="make demo SCENE=serving"):
        need_packages()


def test_poisson_times_are_of_their_rate_and_equal_for_a_seed() -> None:
    times = poisson({"a": 50.0, "b": 0.0}, 100.0, 3, start_s=5.0)

    assert times == poisson({"a": 50.0, "b": 0.0}, 100.0, 3, start_s=5.0)
    assert 4500 < len(times) < 5500
    assert all(5 <= at < 105 and name == "a" for at, name in times)


@in_loop
async def test_the_client_sends_at_its_times_and_counts_what_became_of_each() -> None:
    port = free_port()
    async with http_front([MODEL], port) as (pool, executor):
        client = OpenLoop("127.0.0.1", port, TARGETS)
        result = await client.run([(at / 500, "net") for at in range(50)])
        assert result.counts() == {"met": 50}

        executor.raises = "no"
        assert (await client.run([(0.0, "net")])).counts() == {"failed": 1}
        executor.raises = ""
        late = OpenLoop("127.0.0.1", port, {"net": replace(TARGETS["net"], slo_ms=0.001)})
        assert (await late.run([(0.0, "net")])).counts() == {"late": 1}
        pool.switch([], {})
        assert (await client.run([(0.0, "net")])).counts() == {"rejected": 1}
    assert (await client.run([(0.0, "net")])).counts() == {"lost": 1}


@in_loop
async def test_an_answer_to_another_request_is_wrong() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{"id":"99"}')
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    closed = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert (await OpenLoop("127.0.0.1", port, TARGETS).run([(0.0, "net")])).counts() == {"wrong": 1}
        await asyncio.wait_for(closed.wait(), 60)
