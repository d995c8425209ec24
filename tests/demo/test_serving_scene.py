"""The demo's serving scenes: their verdicts, and the client that they judge by."""

import asyncio
import io
import signal
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console

from farside.cli.demo import serving, serving_cluster
from farside.cli.demo.serving import (
    Course,
    Phase,
    ServingScene,
    largest_part,
    need_packages,
    scene_faults,
    serve_load,
)
from farside.cli.demo.serving_cluster import ClusterScene
from farside.cli.demo.serving_load import Ended, OpenLoop, Outcome, Result, Target, poisson
from farside.cli.demo.serving_report import print_cluster_scene, print_scene
from farside.cli.demo.serving_rig import Mix, Running
from farside.errors import Unavailable
from farside.scheduler.sharing.glet.plan import Glet
from farside.serve.status import ChangeRecord, GletStatus, ModelStatus, ServeStatus
from tests.serving.front import http_front, in_loop, model_file
from tests.support.ports import free_port

MODEL = model_file("net", shape=(2,))
TARGETS = {"net": Target(model="net", input="input", shape=(2,), slo_ms=60_000)}


STEPPED_AT_S = 100.0


def change(cause: str, at_s: float = 0.0, *, gpus: int = 1, problem: str = "") -> ChangeRecord:
    return ChangeRecord(at_s=at_s, cause=cause, gpus=gpus, part_pct=100, problem=problem)


STARTED, STEPPED = change("start"), change("burst", STEPPED_AT_S + 2)
REFUSED = change("burst", STEPPED_AT_S + 2, problem="the rates have no plan")
LEASED = (change("devices"), change("devices", 12), change("devices", 38), change("devices", STEPPED_AT_S + 3, gpus=2))


def glet(node: str = "", pid: int = 7, part_pct: int = 100) -> GletStatus:
    return GletStatus(glet=Glet(gpu=0, part_pct=part_pct, cycle_ms=10, models=()), pid=pid, ratio=1.0, node=node)


def scene(
    *outcomes: str, deaths: int = 1, changes: Sequence[ChangeRecord] = (STARTED, STEPPED), nodes: Sequence[str] = ("",)
) -> ServingScene:  # fmt: skip
    counts = {name: sum(one == name for one in outcomes) for name in ("met", "late", "dropped", "rejected", "failed")}
    model = ModelStatus(
        name="net", slo_ms=100, rate=1, planned_rate=2, waiting=0, p50_ms=1, p99_ms=2, refused=0, cancelled=0, again=0,
        **counts,
    )  # fmt: skip
    status = ServeStatus(
        name="t", http="", grpc="", driver="cpu", devices=2, ready=True,
        glets=tuple(map(glet, nodes)), models=(model,),
        changes=tuple(changes), deaths=deaths, stray=0,
    )  # fmt: skip
    return ServingScene(
        mix=Mix(slo_ms={"net": 100}, most={"net": 4}),
        phases=(Phase(name="at first", since_s=0, until_s=10, rates={"net": 1.0}),),
        result=Result(ended=[Ended("net", 1.0, cast("Outcome", one), 0.01) for one in outcomes]),
        status=status,
        stepped_at_s=STEPPED_AT_S,
        killed=glet(),
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


def test_a_plan_from_before_the_step_is_none_for_it() -> None:
    early = scene("met", changes=(STARTED, change("period", STEPPED_AT_S - 1)))

    assert scene_faults(early) == ("no new plan was made for the step",)


def test_phases_leave_out_what_a_step_and_a_kill_may_violate() -> None:
    course = Course(share=0.5, times=2.0, step_s=20.0, kill_s=40.0, end_s=60.0, back_after_step_s=10.0)

    phases = course.phases(Mix(slo_ms={"net": 100, "other": 200}, most={"net": 4, "other": 2}))

    assert [(one.name, one.since_s, one.until_s) for one in phases] == [
        ("at first", 3.0, 20.0),
        ("10 s after the step", 30.0, 39.8),
        ("5 s after the kill", 45.0, 60.0),
    ]
    assert [one.rates["net"] for one in phases] == [2.0, 4.0, 4.0]


@in_loop
async def test_the_executor_with_the_largest_part_is_killed_under_load(monkeypatch: pytest.MonkeyPatch) -> None:
    port, killed = free_port(), list[tuple[int, int]]()
    monkeypatch.setattr("os.kill", lambda *told: killed.append(told))
    status = msgspec.structs.replace(scene().status, glets=(glet("n1", 5, 40), glet("n2", 6, 60), glet("n3", 0, 100)))
    mix = Mix(slo_ms={"net": 60_000}, most={"net": 100.0})
    running = cast("Running", SimpleNamespace(mix=mix, http=port, targets=lambda: TARGETS, status=lambda: status))
    course = Course(share=0.5, times=2.0, step_s=0.2, kill_s=0.3, end_s=0.5, back_after_step_s=0.0)

    async with http_front([MODEL], port):
        served = await serve_load(running, course)

    assert killed == [(6, signal.SIGKILL)]
    assert served.killed.node == "n2"
    assert served.result.counts().keys() == {"met"}


def test_where_no_executor_runs_none_is_killed_and_the_reason_is_said() -> None:
    status = msgspec.structs.replace(scene().status, glets=(glet(pid=0),), lease_problem="job 3 failed")

    with pytest.raises(Unavailable, match="job 3 failed"):
        largest_part(status)


def cluster_scene(served: ServingScene | None = None, **others: Any) -> ClusterScene:
    good = ClusterScene(
        served=served or scene(*["met"] * 99, "late", changes=LEASED, nodes=("n4", "n5")),
        drained="n2", reserved="n3", extended=1, leases={"2": "n2", "3": "n3", "4": "n4", "5": "n5"}, gpu_hours=0.1,
        training="running", violations=(),
    )  # fmt: skip
    return replace(good, **others)


def test_a_scene_on_a_cluster_that_kept_its_promises_is_good_and_printed_as_the_one_without() -> None:
    good, console, alone = (
        cluster_scene(),
        Console(file=io.StringIO(), width=120),
        Console(file=io.StringIO(), width=120),
    )

    assert serving_cluster.scene_faults(good) == ()
    assert print_cluster_scene(console, good) == 0

    assert print_scene(alone, good.served) == 0
    for line in text(alone).splitlines():
        assert line in text(console)
    assert "job 5 on n5; n2 was drained, n3 reserved" in " ".join(text(console).split())


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        (cluster_scene(violations=("entry 7: a GPU is given twice",)), "entry 7: a GPU is given twice"),
        (
            cluster_scene(scene(*["met"] * 98, "late", "dropped", changes=LEASED)),
            "at first: 2.0 % of requests violated their SLO; 1 % may",
        ),
        (cluster_scene(scene(*["met"] * 199, "failed", changes=LEASED)), "1 requests were failed"),
        (cluster_scene(scene("met", changes=LEASED, deaths=0)), "0 executors died, one was killed"),
        (cluster_scene(scene("met", changes=LEASED, nodes=("n2",))), "n2 drains, and has executors still"),
        (
            cluster_scene(scene("met", changes=LEASED, nodes=("n4", "n3"))),
            "n3 is reserved, and a lease there did not end before",
        ),
        (
            cluster_scene(scene("met", changes=LEASED[1:])),
            "2 times leases were taken or changed; the start, the drain and an end are three at least",
        ),
        (cluster_scene(scene("met", changes=(*LEASED[:3], STEPPED))), "no plan on 2 leases followed the step"),
        (cluster_scene(extended=0), "the manager let no lease go on"),
        (cluster_scene(gpu_hours=0.0), "the manager has counted no GPU hours of the deployment"),
        (cluster_scene(training="waiting"), "the training job is waiting"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_each_bound_that_a_scene_on_a_cluster_breaks_is_named_and_fails_the_demo(bad: ClusterScene, line: str) -> None:
    console = Console(file=io.StringIO(), width=120)

    assert serving_cluster.scene_faults(bad) == (line,)
    assert print_cluster_scene(console, bad) == 1
    assert f"FAIL: {line}" in text(console)


def test_a_scene_on_a_cluster_without_a_step_names_both_that_lack() -> None:
    still = cluster_scene(scene("met", changes=LEASED[:3]))

    assert serving_cluster.scene_faults(still) == (
        "no new plan was made for the step",
        "no plan on 2 leases followed the step",
    )


def text(console: Console) -> str:
    return cast("io.StringIO", console.file).getvalue()


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
