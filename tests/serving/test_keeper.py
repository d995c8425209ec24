"""The keeper of leases and a manager that is away, or that does not take its reports."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import msgspec
import pytest

from farside.client.manager_client import ManagerAddress
from farside.errors import FarsideError
from farside.scheduler.manager.view.deployments import (
    CHANGES_MAX,
    GPUS_MAX,
    MODELS_MAX,
    REPORT_BYTES_MAX,
    DeployedChange,
    DeployedGpu,
    DeployedModel,
    DeployedPart,
    DeploymentBody,
)
from farside.serve.lease.keeper import LeaseKeeper, LeaseSettings
from farside.serve.lease.report import fitting
from farside.serve.lease.rules import LeaseRules
from tests.serving.front import in_loop
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_S

WAITING = {"state": "waiting", "nodes": [], "held_s": 0.0, "master_port": 0, "reason": "", "spec": {}}


class Answering:
    """A manager as a keeper sees it: a lease that waits, and what becomes of reports."""

    def __init__(self, report: tuple[int, str]) -> None:
        self.report = report
        self.job: dict[str, Any] = WAITING
        self.asked: list[str] = []

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        match method, path.partition("?")[0].removeprefix("/v1/").split("/"):
            case "PUT", ["deployments", _]:
                return self.report[0], {"detail": self.report[1]}
            case "GET", ["whoami"]:
                return 200, {"name": "ann"}
            case "GET", ["jobs"]:
                return 200, {"jobs": [{"id": "7", "deployment": "t", "user": "ann"}]}
            case _:
                return 200, self.job


@contextmanager
def manager(port: int, report: tuple[int, str]) -> Iterator[Answering]:
    answering = Answering(report)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, body = answering.answer(self.command, self.path)
            self.send_response(status)
            self.end_headers()
            if status != 204:
                self.wfile.write(json.dumps(body).encode())

        do_GET = do_PUT = _answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield answering
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def keeper_of(port: int) -> LeaseKeeper:
    settings = LeaseSettings(
        name="t", front="f", job={}, rules=LeaseRules(most=1, spare=0, replace_before_s=1.0), key=b"k" * 32,
        site_of=lambda *_: pytest.fail("no lease runs"),
    )  # fmt: skip
    return LeaseKeeper(ManagerAddress(endpoint=f"http://127.0.0.1:{port}"), settings)


@in_loop
async def test_a_front_that_starts_while_its_manager_is_away_waits_and_finds_its_leases(
    capfd: pytest.CaptureFixture[str],
) -> None:
    port = free_port()
    keeper, ended = keeper_of(port), asyncio.Event()
    claiming = asyncio.ensure_future(keeper.claim(ended))
    async with asyncio.timeout(DEADLINE_S):
        while not keeper.away:
            await asyncio.sleep(0.01)
        with manager(port, (204, "")):
            assert await claiming

    assert [one.job_id for one in keeper.leases()] == ["7"]
    assert keeper.away == ""


@in_loop
async def test_a_front_that_waits_for_its_manager_ends_when_it_is_told_to() -> None:
    keeper, ended = keeper_of(free_port()), asyncio.Event()
    claiming = asyncio.ensure_future(keeper.claim(ended))
    async with asyncio.timeout(DEADLINE_S):
        while not keeper.away:
            await asyncio.sleep(0.01)
        ended.set()
        assert not await claiming


@pytest.mark.parametrize("status", [413, 422, 429])
@in_loop
async def test_a_report_that_the_manager_does_not_take_costs_no_lease_and_reads_as_no_manager_that_is_away(
    status: int,
) -> None:
    port = free_port()
    with manager(port, (status, "not this one")) as there:
        keeper = keeper_of(port)
        async with asyncio.timeout(DEADLINE_S):
            assert await keeper.claim(asyncio.Event())
            running = asyncio.ensure_future(keeper.run())
            while sum(one.startswith("PUT") for one in there.asked) < 3:
                assert keeper.away == ""
                await asyncio.sleep(0.01)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    assert [one.job_id for one in keeper.leases()] == ["7"]
    assert there.asked.count("GET /v1/whoami") == 1, "leases are looked for once"


@in_loop
async def test_a_name_that_is_another_fronts_ends_the_start() -> None:
    port = free_port()
    refused = pytest.raises(FarsideError, match="deployment t of ann is run by g")
    with manager(port, (409, "deployment t of ann is run by g")), refused:
        await keeper_of(port).claim(asyncio.Event())


@in_loop
async def test_why_a_lease_was_lost_is_told_in_its_pause_and_as_long_as_one_is_lacking() -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        keeper.want(1)
        keeper.problem = "its worker does not answer"
        await keeper.look()
        assert keeper.problem, "it waits still"
        there.job = {**WAITING, "state": "failed", "reason": "its node is lost"}
        told = list[str]()
        for needed, is_paused in ((1, True), (0, True), (0, False)):
            if not is_paused:
                keeper._paused_until_s = 0.0
            keeper.want(needed)
            await keeper.look()
            told.append(keeper.problem)

    assert told == ["lease 7: its node is lost", "lease 7: its node is lost", ""]


def report(*, gpus: int, models: int, changes: int) -> DeploymentBody:
    part = DeployedPart(part_pct=50, models="x" * 200, cycle_ms=1.5, busy_pct=99.5)
    return DeploymentBody(
        front="f", ready=True,
        gpus=(DeployedGpu(job="1" * 10, node="n" * 20, state="running", left_s=1.5, parts=(part, part)),) * gpus,
        models=(
            DeployedModel(
                name="m" * 64, slo_ms=100.0, rate=1.25, planned_rate=1.25, p99_ms=1.25, met=10**9, violated=0, dropped=0
            ),
        ) * models,
        changes=tuple(
            DeployedChange(at_s=float(at), cause="burst", gpus=1, problem="p" * 300) for at in range(changes)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "gpus", "models", "is_cut"),
    [
        (report(gpus=2, models=2, changes=CHANGES_MAX), 2, 2, True),
        (report(gpus=64, models=100, changes=CHANGES_MAX), 64, 100, True),
        (report(gpus=200, models=100, changes=CHANGES_MAX), 200, 100, False),
        (report(gpus=320, models=2, changes=0), GPUS_MAX, 2, False),
    ],
)
def test_a_large_report_leaves_out_old_changes_then_parts_until_it_fits(
    given: DeploymentBody, gpus: int, models: int, is_cut: bool
) -> None:
    told = fitting(given)

    assert (len(told.gpus), len(told.models)) == (gpus, models)
    assert all(bool(gpu.parts) == is_cut for gpu in told.gpus)
    assert told.changes == given.changes[len(given.changes) - len(told.changes) :]


def test_the_largest_report_fits() -> None:
    told = fitting(report(gpus=320, models=MODELS_MAX, changes=CHANGES_MAX))

    assert len(json.dumps(msgspec.to_builtins(told))) <= REPORT_BYTES_MAX
    assert told.gpus
    assert told.models
