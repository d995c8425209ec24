"""The start of a front on a manager's nodes: what ends it, and what becomes of leases that serve meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from farside import admin
from farside.agent.serving.worker import Worker
from farside.cli.keygen import add_key, make_key
from farside.client.manager_client import ManagerAddress
from farside.daemon.control.keys import read_keys
from farside.errors import ConfigError, FarsideError, PeerError
from farside.listen import open_listener
from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion
from farside.serve import main as serve_main
from farside.serve.controller import Controller
from farside.serve.deployment import Deployment, read_deployment
from farside.serve.door_server import DoorServer
from farside.serve.fleet import Fleet
from farside.serve.lease.front_state import StateFile
from farside.serve.planner import Planned, Planner
from tests.house.test_scrape import scraped
from tests.serving.front import in_loop, model_file
from tests.serving.test_changing_devices import until_so
from tests.serving.test_doors import ask
from tests.serving.test_keeper import RUNNING, Answering, manager
from tests.serving.test_run import MODELS, write_profile
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_S


def deployment_in(folder: Path, *, metrics: str = "", rate: int = 20) -> Deployment:
    write_profile(folder / "profile", 30_000)
    make_key(folder / "key")
    for name in MODELS:
        (folder / f"{name}.onnx").touch()
    lines = [
        'name = "t"', f'http_listen = "tcp:127.0.0.1:{free_port()}"', 'grpc_listen = ""', 'admin_socket = "s"',
        f'metrics_listen = "{metrics}"', 'profile = "profile"', 'device = "whole"', "gpus_max = 1",
        "cpu_devices = [[0]]", 'key_file = "key"',
    ]  # fmt: skip
    for name in MODELS:
        lines += [f"[model.{name}]", f'file = "{name}.onnx"', "slo_ms = 30000", f"rate = {rate}", "max_batch = 8"]
    (folder / "serving.toml").write_text("\n".join(lines))
    return read_deployment(folder, None)


async def start(deployment: Deployment, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts a front whose models nobody loads, and ends it."""

    async def described(_: object) -> object:
        return [model_file(name) for name in MODELS]

    monkeypatch.setattr(serve_main, "describe_models", described)
    address = ManagerAddress(endpoint=f"http://127.0.0.1:{port}")
    grounds = await serve_main._grounds(deployment, None, address)
    async with AsyncExitStack() as stack:
        await serve_main._serve(grounds, stack, asyncio.Event())


def with_a_lease(there: Answering) -> None:
    there.job = {**RUNNING, "spec": {"time_limit_s": 86_400.0}, "left_s": 80_000.0}


@pytest.mark.parametrize("taken", ["admin_socket", "metrics_listen"])
@in_loop
async def test_an_address_that_another_front_has_ends_the_start_before_the_manager_is_told(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, metrics = free_port(), f"tcp:127.0.0.1:{free_port()}"
    deployment = deployment_in(tmp_path, metrics=metrics)
    listener = open_listener(f"unix:{tmp_path / 's'}" if taken == "admin_socket" else metrics)
    with manager(port, (204, "")) as there, listener:
        with_a_lease(there)

        with pytest.raises(ConfigError, match=taken):
            await start(deployment, port, monkeypatch)

    assert there.asked == []


@pytest.mark.parametrize("wrong", ["key", "rates"])
@in_loop
async def test_a_wrong_key_file_and_rates_that_do_not_fit_end_the_start_before_anything_listens(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    deployment = deployment_in(tmp_path, rate=900_000 if wrong == "rates" else 20)
    if wrong == "key":
        (tmp_path / "key").write_text("none")
    monkeypatch.setattr(serve_main, "open_http", lambda *_: pytest.fail("it listens"))
    with manager(port, (204, "")) as there:
        with_a_lease(there)

        with pytest.raises(ConfigError, match="key file" if wrong == "key" else "does not fit on 1 device"):
            await start(deployment, port, monkeypatch)

    assert there.asked == []
    assert not (tmp_path / "s").exists()


@in_loop
async def test_a_start_asks_once_for_the_plan_of_its_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plan = list[float](), Planner.plan

    async def counted(planner: Planner, rates: Mapping[str, float], *more: Any, **named: Any) -> Planned:
        asked.append(sum(rates.values()))
        return await plan(planner, rates, *more, **named)

    monkeypatch.setattr(Planner, "plan", counted)
    port = free_port()
    with manager(port, (204, "")) as there:
        with_a_lease(there)

        await start(deployment_in(tmp_path), port, monkeypatch)

    assert len(asked) == 1


def plan_that_ran(folder: Path) -> Path:
    """What a front of before has left: all models on its lease, job 7."""
    portions = tuple(Portion(model=name, batch=4, rate=20.0) for name in MODELS)
    plan = Plan(glets=(Glet(gpu=0, part_pct=100, cycle_ms=100.0, models=portions),))
    state = folder / "s.state"
    StateFile(state, "t").write(plan, {"7": 0}, dict.fromkeys(MODELS, 20.0))
    return state


def with_a_late_failure(monkeypatch: pytest.MonkeyPatch, before: Callable[[], Awaitable[None]] | None = None) -> None:
    """Has a start fail once it has claimed its leases, after ``before``."""

    async def failing(*_: object, **__: object) -> bool:
        if before is not None:
            await before()
        raise FarsideError("no plan is led to")

    monkeypatch.setattr(Controller, "resume", failing)
    monkeypatch.setattr(Controller, "start", failing)


@in_loop
async def test_a_start_that_fails_leaves_the_leases_of_a_plan_that_ran_and_one_that_is_stopped_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, deployment, state = free_port(), deployment_in(tmp_path), plan_that_ran(tmp_path)
    with manager(port, (204, "")) as there:
        with_a_lease(there)
        with monkeypatch.context() as patched:
            with_a_late_failure(patched)
            with pytest.raises(FarsideError, match="no plan is led to"):
                await start(deployment, port, patched)
        failed = list(there.asked)
        was_kept = state.exists()
        await start(deployment, port, monkeypatch)

    assert any(one.startswith("PUT") for one in failed), "it was claimed"
    assert not [one for one in failed if one.startswith(("POST", "DELETE"))]
    assert was_kept
    assert "POST /v1/jobs/7/cancel" in there.asked
    assert any(one.startswith("DELETE /v1/deployments/t") for one in there.asked)
    assert not state.exists()


@in_loop
async def test_a_start_that_fails_gives_leases_back_where_no_plan_ran_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_late_failure(monkeypatch)
    port, deployment = free_port(), deployment_in(tmp_path)
    with manager(port, (204, "")) as there:
        with_a_lease(there)

        with pytest.raises(FarsideError, match="no plan is led to"):
            await start(deployment, port, monkeypatch)

    assert there.changed() == ["POST /v1/jobs/7/cancel"]


@pytest.mark.parametrize("ran", [True, False], ids=["a_plan_ran", "none_ran"])
@in_loop
async def test_a_start_that_fails_hangs_up_on_the_workers_of_leases(
    ran: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, deployment = free_port(), deployment_in(tmp_path)
    if ran:
        plan_that_ran(tmp_path)
    worker = Worker(lambda: read_keys(tmp_path / "key"), {})

    with_a_late_failure(monkeypatch, lambda: until_so(lambda: worker.has_front))
    async with await asyncio.start_server(worker.connected, "127.0.0.1", 0) as server:
        with manager(port, (204, "")) as there:
            with_a_lease(there)
            there.job["master_port"] = server.sockets[0].getsockname()[1]
            with pytest.raises(FarsideError, match="no plan is led to"):
                await start(deployment, port, monkeypatch)

        await until_so(lambda: not worker.has_front)


@in_loop
async def test_a_front_that_is_stopped_gives_leases_back_also_where_something_fails_as_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def failing(_: Fleet) -> None:
        raise OSError("an executor is not closed")

    monkeypatch.setattr(Fleet, "close", failing)
    port, deployment = free_port(), deployment_in(tmp_path)
    with manager(port, (204, "")) as there:
        with_a_lease(there)

        with pytest.raises(OSError, match="an executor is not closed"):
            await start(deployment, port, monkeypatch)

    assert there.changed() == ["POST /v1/jobs/7/cancel"]
    assert any(one.startswith("DELETE /v1/deployments/t") for one in there.asked)


@in_loop
async def test_a_front_with_a_new_key_before_the_old_one_reaches_the_leases_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, deployment = free_port(), deployment_in(tmp_path)
    old = read_keys(tmp_path / "key")
    worker, begin = Worker(lambda: old, {}), Controller.start

    async def reached(controller: Controller, *given: Any, **named: Any) -> None:
        await begin(controller, *given, **named)
        await until_so(lambda: worker.has_front)

    monkeypatch.setattr(Controller, "start", reached)
    add_key(tmp_path / "key")
    async with await asyncio.start_server(worker.connected, "127.0.0.1", 0) as server:
        with manager(port, (204, "")) as there:
            with_a_lease(there)
            there.job["master_port"] = server.sockets[0].getsockname()[1]
            await start(deployment, port, monkeypatch)


@asynccontextmanager
async def waiting_for_its_manager(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, port: int = 0, said: str = "waits for its manager"
) -> AsyncIterator[tuple[str, "asyncio.Task[None]"]]:
    """A front whose manager, on that port, is away: what it answers to who asks for its status, and its start.

    It is waited for until it has ``said`` that.
    """
    starting = asyncio.ensure_future(start(deployment, port or free_port(), monkeypatch))
    told = ""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while said not in told:
                assert not starting.done()
                try:
                    await admin.ask(deployment.admin_socket, "status")
                except PeerError as error:
                    told = str(error)
                await asyncio.sleep(0.01)
            yield told, starting
    finally:
        starting.cancel()
        await asyncio.wait([starting])


@in_loop
async def test_a_front_that_waits_for_its_manager_says_so_to_who_asks_for_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with waiting_for_its_manager(deployment_in(tmp_path), monkeypatch) as (told, _):
        assert told.startswith("t is starting and waits for its manager: ")


@in_loop
async def test_a_front_that_waits_for_its_manager_answers_scrapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    async with waiting_for_its_manager(deployment_in(tmp_path, metrics=f"tcp:127.0.0.1:{port}"), monkeypatch):
        lines = (await scraped(port)).decode().splitlines()

    assert "farside_serving_manager_up 0.0" in lines
    assert "farside_serving_has_plan 0.0" in lines


async def health(deployment: Deployment) -> tuple[int, int, int]:
    """What its door says to who asks whether it lives, whether it is ready, and for an inference."""
    body = b'{"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}]}'
    port = http_port(deployment)
    live, _, _ = await ask(port, "/v2/health/live")
    ready, _, _ = await ask(port, "/v2/health/ready")
    inferred, _, _ = await ask(port, f"/v2/models/{MODELS[0]}/infer", body)
    return live, ready, inferred


def http_port(deployment: Deployment) -> int:
    return int(deployment.http.rpartition(":")[2])


@in_loop
async def test_a_front_that_waits_for_its_manager_says_that_it_lives_and_refuses_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deployment_in(tmp_path)
    async with waiting_for_its_manager(deployment, monkeypatch):
        assert await health(deployment) == (200, 503, 503)


@pytest.mark.parametrize("ran", [True, False], ids=["a_plan_ran", "none_ran"])
@in_loop
async def test_so_does_one_whose_manager_takes_its_question_and_stays_silent(
    ran: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, deployment = free_port(), deployment_in(tmp_path)
    if ran:
        plan_that_ran(tmp_path)
    with open_listener(f"tcp:127.0.0.1:{port}"):
        async with waiting_for_its_manager(deployment, monkeypatch, port, "is starting") as (told, _):
            seen = await health(deployment)

    assert told == "t is starting", "it has not given up to hear from its manager"
    assert seen == (200, 503, 503)


@in_loop
async def test_a_front_that_is_ended_while_it_waits_for_its_manager_hangs_up_on_its_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = deployment_in(tmp_path)
    async with waiting_for_its_manager(deployment, monkeypatch):
        reader, writer = await asyncio.open_connection("127.0.0.1", http_port(deployment))
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = await reader.readuntil(b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
    writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
        await reader.readuntil(b"HTTP/1.1")
    writer.close()

    assert answer.startswith(b"HTTP/1.1 200")


@in_loop
async def test_doors_of_a_start_that_fails_stop_before_anything_else_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, close, seen = counting_starts(monkeypatch), Fleet.close, list[bool]()

    async def closing(fleet: Fleet) -> None:
        seen.extend(door.is_stopping for door in started)
        await close(fleet)

    monkeypatch.setattr(Fleet, "close", closing)
    with_a_late_failure(monkeypatch)
    port, deployment = free_port(), deployment_in(tmp_path)
    with manager(port, (204, "")) as there:
        with_a_lease(there)
        with pytest.raises(FarsideError, match="no plan is led to"):
            await start(deployment, port, monkeypatch)

    assert seen == [True]


def counting_starts(monkeypatch: pytest.MonkeyPatch) -> list[DoorServer]:
    """Doors, each as often as it is started from now on."""
    started, begin = list[DoorServer](), DoorServer.start

    async def counted(door: DoorServer) -> None:
        started.append(door)
        await begin(door)

    monkeypatch.setattr(DoorServer, "start", counted)
    return started


@in_loop
async def test_a_front_that_has_waited_for_its_manager_starts_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, deployment, started = free_port(), deployment_in(tmp_path), counting_starts(monkeypatch)
    async with waiting_for_its_manager(deployment, monkeypatch, port) as (_, starting):
        with manager(port, (204, "")) as there:
            with_a_lease(there)
            await starting

    assert there.changed() == ["POST /v1/jobs/7/cancel"]
    assert len(started) == 1


@in_loop
async def test_a_start_that_fails_after_its_doors_have_opened_leaves_the_leases_of_a_plan_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_a_late_failure(monkeypatch)
    started, state = counting_starts(monkeypatch), plan_that_ran(tmp_path)
    port, deployment = free_port(), deployment_in(tmp_path)
    async with waiting_for_its_manager(deployment, monkeypatch, port) as (_, starting):
        with manager(port, (204, "")) as there:
            with_a_lease(there)
            with pytest.raises(FarsideError, match="no plan is led to"):
                await starting

    assert started, "its doors have opened"
    assert not [one for one in there.asked if one.startswith(("POST", "DELETE"))]
    assert state.exists()
