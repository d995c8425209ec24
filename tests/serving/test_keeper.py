"""The keeper of leases and a manager that is away, or that does not take its reports."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest

from farside.agent.serving.handle import ServeError
from farside.agent.serving.remote import NoCommonKey
from farside.client.manager_client import ManagerAddress
from farside.errors import FarsideError, PeerError
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
from farside.serve.lease import keeper as keeper_module
from farside.serve.lease.keeper import (
    AGAIN_S_MAX,
    FAILURES_SAID,
    REFUSALS_MAX,
    LeaseKeeper,
    LeaseSettings,
    silent_words,
)
from farside.serve.lease.report import fitting
from farside.serve.lease.rules import LeaseRules
from tests.serving.front import in_loop
from tests.serving.test_worker import one_key
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_S

WAITING = {"state": "waiting", "nodes": [], "held_s": 0.0, "master_port": 0, "reason": "", "spec": {}}
RUNNING = {**WAITING, "state": "running", "nodes": ["n1"], "master_addr": "127.0.0.1", "master_port": 1}


class Answering:
    """A manager as a keeper sees it: a lease that waits, and what becomes of reports."""

    def __init__(self, report: tuple[int, str]) -> None:
        self.report = report
        self.job: dict[str, Any] = WAITING
        self.extension: tuple[int, Any] = (200, {})
        self.refusal: tuple[int, Any] | None = None
        self.again_in_s = ""
        self.asked: list[str] = []
        self.of_deployment = ["7"]
        self.is_away = self.loses_answers = self.is_before = False
        self.node = {"state": "busy"}
        self.submitting, self.is_free = Event(), Event()
        self.is_free.set()

    def changed(self) -> list[str]:
        """What was submitted and cancelled."""
        return [one for one in self.asked if one.startswith("POST")]

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        self.asked.append(f"{method} {path}")
        if self.is_away:
            return 503, {"detail": "it is away"}
        match method, path.partition("?")[0].removeprefix("/v1/").split("/"):
            case "PUT", ["deployments", _]:
                return self.report[0], {"detail": self.report[1]}
            case "GET", ["whoami"]:
                return 200, {"name": "ann"}
            case "GET", ["jobs"]:
                return 200, {"jobs": [{"id": one, "deployment": "t", "user": "ann"} for one in self.of_deployment]}
            case "GET", ["deployments", _, "leases"] if self.is_before:
                return 404, {"detail": "Not Found"}
            case "GET", ["deployments", _, "leases"]:
                ids = parse_qs(path.partition("?")[2])["ids"][0].split(",")
                nodes = dict.fromkeys(self.job["nodes"], self.node["state"])
                return 200, {"jobs": [{**self.job, "id": one} for one in ids], "nodes": nodes}
            case "GET", ["nodes", _]:
                return 200, self.node
            case "POST", ["jobs", _, "cancel"] if self.loses_answers:
                return 503, {"detail": "it was done, and nobody hears of it"}
            case "POST", ["jobs", _, "extend"]:
                if self.extension[0] == 200:
                    self.job = {**self.job, "left_s": 86_400.0}
                return self.extension
            case "POST", ["jobs"] if self.refusal is not None:
                return self.refusal
            case "POST", ["jobs"]:
                self.submitting.set()
                assert self.is_free.wait(DEADLINE_S)
                self.of_deployment.append(str(int(self.of_deployment[-1]) + 1))
                return 201, {"ids": self.of_deployment[-1:]}
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
            if answering.again_in_s and status >= 400:
                self.send_header("Retry-After", answering.again_in_s)
            self.end_headers()
            if status != 204:
                self.wfile.write(json.dumps(body).encode())

        do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815

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
        name="t", front="f", job={}, rules=LeaseRules(most=2, spare=0, replace_before_s=1.0), keys=one_key,
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


@pytest.mark.parametrize(
    ("state", "exit_code", "signal", "told"),
    [
        ("failed", 2, None, "; /models/serve-t-7.log there says why"),
        ("failed", None, 11, "; /models/serve-t-7.log there says why"),
        ("failed", None, None, ""),
        ("cancelled", None, 15, ""),
        ("cancelled", 2, None, ""),
    ],
)
@in_loop
async def test_a_lease_whose_worker_has_failed_names_the_log_that_says_why_and_a_cancelled_one_none(
    state: str, exit_code: int | None, signal: int | None, told: str
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        keeper.want(1)
        await keeper.look()
        there.job = {
            **WAITING, "state": state, "reason": "its reason",
            "tasks": [{"exit_code": exit_code, "signal": signal, "output": "/models/serve-t-7.log"}],
        }  # fmt: skip
        await keeper.look()

    assert keeper.problem == f"lease 7: its reason{told}"


class Clock:
    """Its time is what a test says."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


class Line:
    """A line to a worker that answers."""

    is_up = True

    def close(self) -> None:
        self.is_up = False


async def hanging_up(_: object) -> Line:
    raise NoCommonKey("it has hung up on each key")


async def silent(_: object) -> Line:
    raise ServeError("no answer within 10 s")


def on_running(keeper: LeaseKeeper, there: Answering, monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, list[Line]]:
    """Has the lease run, and the keeper reach its worker, in a time of the test's."""
    clock, lines = Clock(), list[Line]()

    async def connect(_: object) -> Line:
        lines.append(Line())
        return lines[-1]

    monkeypatch.setattr(keeper_module, "connect_worker", connect)
    keeper._loop = clock  # type: ignore[assignment]
    keeper._settings = replace(keeper._settings, site_of=lambda *_: object())  # type: ignore[arg-type]
    there.job = {**RUNNING, "spec": {"time_limit_s": 86_400.0}}
    return clock, lines


@in_loop
async def test_a_lease_on_which_no_executor_starts_is_left_out_and_in_the_end_given_back_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        clock, _ = on_running(keeper, there, monkeypatch)
        keeper.want(1)
        await keeper.look()
        seen = list[tuple[set[int], bool]]()
        for _ in range(3):
            await keeper.look()
            assert keeper.usable == {0}
            keeper.failed(0, "a library is missing")
            keeper.failed(0, "and again, as it is left out")
            seen.append((set(keeper.usable), keeper.leaving != {}))
            clock.now_s += 40.0
        await keeper.look()

    assert seen == [(set(), False), (set(), False), (set(), True)]
    assert there.changed() == ["POST /v1/jobs/7/cancel", "POST /v1/jobs"]
    assert keeper.lease_problem == "lease 7: no executor starts on n1: a library is missing"


@in_loop
async def test_where_no_executor_starts_on_the_next_lease_either_none_is_asked_for_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        clock, _ = on_running(keeper, there, monkeypatch)
        keeper.want(1)
        for _ in range(2):
            for _ in range(3):
                await keeper.look()
                keeper.failed(next(iter(keeper.usable)), "the model is broken")
                clock.now_s += 40.0
            await keeper.look()
        asked = there.changed()[2:]

    assert asked == ["POST /v1/jobs/8/cancel"]
    assert "lease 8: no executor starts on n1: the model is broken" in keeper.lease_problem


@in_loop
async def test_a_line_to_a_worker_that_breaks_is_joined_again_while_the_manager_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        _, lines = on_running(keeper, there, monkeypatch)
        keeper.want(1)
        await keeper.look()
        there.is_away = True
        lines[0].is_up = False
        running = asyncio.ensure_future(keeper.run())
        async with asyncio.timeout(DEADLINE_S):
            while not keeper.away:
                await asyncio.sleep(0.01)
            while len(lines) < 2:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])

    assert keeper.usable == {0}


@pytest.mark.parametrize(("is_given_back", "asked"), [(True, ["POST /v1/jobs"]), (False, [])])
@in_loop
async def test_a_lease_that_was_given_back_without_an_answer_is_replaced_at_once_and_others_later(
    is_given_back: bool, asked: list[str]
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        there.loses_answers = True
        keeper = keeper_of(port)
        keeper.want(0 if is_given_back else 1)
        with suppress(PeerError):
            await keeper.look()
        there.job = {**WAITING, "state": "cancelled", "reason": "cancelled by ann"}
        given_back = there.changed()
        keeper.want(1)
        await keeper.look()

    assert given_back == (["POST /v1/jobs/7/cancel"] if is_given_back else [])
    assert there.changed()[len(given_back) :] == asked


@pytest.mark.parametrize(
    ("refusal", "again_in_s", "pauses_s"),
    [
        (429, "7", [7.0, 7.0, 7.0]),
        (429, "", [1.0, 2.0, 4.0]),
        (429, "99999999", [AGAIN_S_MAX] * 3),
        (429, "9" * 5000, [1.0, 2.0, 4.0]),
        (409, "7", [60.0, 60.0, 60.0]),
    ],
)
@in_loop
async def test_a_lease_that_the_manager_does_not_take_for_now_is_asked_for_when_it_says_or_later_each_time(
    refusal: int, again_in_s: str, pauses_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        there.of_deployment = []
        there.refusal, there.again_in_s = (refusal, {"detail": "too much at a time"}), again_in_s
        keeper = keeper_of(port)
        clock, _ = on_running(keeper, there, monkeypatch)
        keeper.want(1)
        seen = list[float]()
        for _ in pauses_s:
            await keeper.look()
            seen.append(keeper._paused_until_s - clock.now_s)
            before = there.changed()
            clock.now_s = keeper._paused_until_s - 0.1
            await keeper.look()
            assert there.changed() == before, "it is asked too early"
            clock.now_s = keeper._paused_until_s
        problem = keeper.problem
        there.refusal, there.of_deployment = None, ["7"]
        await keeper.look()

    assert seen == pauses_s
    assert problem == "no lease: too much at a time"
    assert keeper.problem == ""


@in_loop
async def test_a_refusal_of_another_kind_ends_a_row_of_those_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        there.of_deployment = []
        keeper = keeper_of(port)
        clock, _ = on_running(keeper, there, monkeypatch)
        keeper.want(1)
        pauses_s = list[float]()
        for code in (429, 429, 409, 429):
            there.refusal = code, {"detail": "no"}
            await keeper.look()
            pauses_s.append(keeper._paused_until_s - clock.now_s)
            clock.now_s = keeper._paused_until_s

    assert pauses_s == [1.0, 2.0, 60.0, 1.0]


@pytest.mark.parametrize("is_before", [False, True])
@in_loop
async def test_a_look_asks_for_all_leases_at_once_unless_the_manager_is_of_the_version_before(is_before: bool) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        there.job, there.node, there.is_before = {**WAITING, "nodes": ["n1"]}, {"state": "draining"}, is_before
        there.of_deployment = ["7", "9"]
        keeper = keeper_of(port)
        await keeper.look()
        there.asked.clear()

        await keeper.look()

    each = ["GET /v1/jobs/7", "GET /v1/jobs/9", "GET /v1/nodes/n1"] if is_before else []
    assert there.asked == ["GET /v1/deployments/t/leases?ids=7%2C9", *each]
    assert [(one.job_id, one.is_draining) for one in keeper.leases()] == [("7", True), ("9", True)]


@pytest.mark.parametrize(
    ("host", "endpoint", "is_told"),
    [
        ("127.0.0.1", "https://manager:7600", True),
        ("::1", "http://10.0.0.1:7600", True),
        ("10.0.0.7", "https://manager:7600", False),
        ("127.0.0.1", "unix:/run/farside/manager.sock", False),
        ("127.0.0.1", "http://127.0.0.1:7600", False),
    ],
)
def test_a_worker_on_a_node_that_joined_by_the_managers_socket_is_out_of_reach_from_elsewhere(
    host: str, endpoint: str, is_told: bool
) -> None:
    words = silent_words("n1", host, endpoint)

    assert words.startswith("its worker on n1 does not answer")
    assert ("joined by the manager's own socket" in words) == is_told


@pytest.mark.parametrize(
    ("extension", "asked"),
    [
        ((200, {}), ["POST /v1/jobs/7/extend"]),
        ((409, {"detail": "n1: new disks"}), ["POST /v1/jobs/7/extend", "POST /v1/jobs"]),
        ((404, {"detail": "a manager of the version before"}), ["POST /v1/jobs/7/extend", "POST /v1/jobs"]),
        ((503, {"detail": "nobody answers"}), ["POST /v1/jobs/7/extend"] * 2 + ["POST /v1/jobs"]),
        ((429, {"detail": "more requests than it takes"}), ["POST /v1/jobs/7/extend"] * 2 + ["POST /v1/jobs"]),
    ],
)
@in_loop
async def test_the_manager_is_asked_to_extend_a_lease_first_and_it_is_replaced_where_that_refuses_or_never_answers(
    extension: tuple[int, Any], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        clock, _ = on_running(keeper, there, monkeypatch)
        rules = LeaseRules(most=2, spare=0, replace_before_s=600.0)
        keeper._settings = replace(keeper._settings, rules=rules, job={"time_limit_s": 86_400.0})
        keeper.want(1)
        there.extension = extension
        await keeper.look()
        for left_s in (600.0, 500.0, 300.0):
            if there.job.get("left_s", 0.0) <= 600.0:
                there.job = {**there.job, "left_s": left_s}
            await keeper.look()
            if "POST /v1/jobs" in there.changed():
                break

    assert there.changed() == asked
    assert keeper.leaving == ({} if extension[0] == 200 else {0: "its time ends"})
    assert clock.now_s == 0


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


@in_loop
async def test_a_lease_of_the_front_before_that_the_file_asks_for_otherwise_now_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        on_running(keeper, there, monkeypatch)
        keeper._settings = replace(keeper._settings, job={"exclude": ("n1",), "time_limit_s": 86_400.0})
        there.job = {**there.job, "spec": {"exclude": [], "time_limit_s": 86_400.0}}
        keeper.want(1)

        await keeper.look()

    assert there.changed() == ["POST /v1/jobs"]
    assert list(keeper.leaving.values()) == ["the file asks for another one"]


@in_loop
async def test_a_lease_whose_worker_hangs_up_on_a_line_that_was_lost_is_kept_while_an_executor_runs_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, runs = free_port(), True
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        _, lines = on_running(keeper, there, monkeypatch)
        keeper.want(1)
        await keeper.look()
        keeper.serves(lambda: {0}, lambda number: runs and number == 0, lambda: report(gpus=0, models=0, changes=0))
        lines[0].is_up = False
        monkeypatch.setattr(keeper_module, "connect_worker", hanging_up)
        usable = list[set[int]]()
        for _ in range(REFUSALS_MAX):
            await keeper.look()
            usable.append(set(keeper.usable))
        asked = there.changed()
        for _ in range(FAILURES_SAID):
            await keeper.look()
        told = keeper.lease_problem
        runs = False
        await keeper.look()

    assert usable == [{0}] * REFUSALS_MAX
    assert asked == ["POST /v1/jobs"]
    assert "key_file" in told
    assert "does not answer" not in told
    assert keeper.usable == set()


@pytest.mark.parametrize("runs", [True, False], ids=["executors_serve", "none_serves"])
@in_loop
async def test_a_lease_whose_worker_does_not_answer_for_long_is_replaced_where_executors_serve_unless_it_answers_again(
    runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        _, lines = on_running(keeper, there, monkeypatch)
        keeper.want(1)
        await keeper.look()
        keeper.serves(lambda: {0}, lambda number: runs and number == 0, lambda: report(gpus=0, models=0, changes=0))
        lines[0].is_up = False
        with monkeypatch.context() as patched:
            patched.setattr(keeper_module, "connect_worker", silent)
            for _ in range(FAILURES_SAID - 1):
                await keeper.look()
            early = (there.changed(), dict(keeper.leaving))
            await keeper.look()
            left = (there.changed(), dict(keeper.leaving), set(keeper.usable))
            told = keeper.lease_problem
        await keeper.look()

    assert early == ([], {})
    assert left == ((["POST /v1/jobs"], {0: "its worker does not answer"}, {0}) if runs else ([], {}, set()))
    assert told == "lease 7: its worker on n1 does not answer"
    assert there.changed()[len(left[0]) :] == (["POST /v1/jobs/8/cancel"] if runs else [])
    assert (set(keeper.usable), keeper.leaving, keeper.lease_problem) == ({0}, {}, "")


@in_loop
async def test_of_a_worker_that_answers_again_nothing_is_told_while_a_lease_is_lacking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        keeper = keeper_of(port)
        _, lines = on_running(keeper, there, monkeypatch)
        there.refusal = (409, {"detail": "the queue is closed"})
        keeper.want(2)
        await keeper.look()
        lines[0].is_up = False
        with monkeypatch.context() as patched:
            patched.setattr(keeper_module, "connect_worker", silent)
            for _ in range(FAILURES_SAID):
                await keeper.look()
            told = keeper.lease_problem
        await keeper.look()

    assert told == "no lease: the queue is closed; lease 7: its worker on n1 does not answer"
    assert keeper.lease_problem == "no lease: the queue is closed"


@in_loop
async def test_leases_whose_workers_hang_up_on_all_keys_are_replaced_and_new_ones_not_again_and_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with manager(port, (204, "")) as there:
        there.of_deployment = ["5", "6"]
        keeper = keeper_of(port)
        on_running(keeper, there, monkeypatch)
        monkeypatch.setattr(keeper_module, "connect_worker", hanging_up)
        keeper.want(2)
        for _ in range(REFUSALS_MAX - 1):
            await keeper.look()
        early = there.changed()
        await keeper.look()
        replaced = there.changed()
        told, leaving = keeper.lease_problem, set(keeper.leaving.values())
        for _ in range(3 * REFUSALS_MAX):
            await keeper.look()
        later = there.changed()[len(replaced) :]

    assert early == []
    assert replaced == [*(f"POST /v1/jobs/{job}/cancel" for job in "56"), "POST /v1/jobs", "POST /v1/jobs"]
    assert leaving == {"its worker hangs up on each of the front's keys"}
    assert "its worker on n1 has hung up 3 times on each key of the front's key_file; " in told
    assert "a worker hangs up" in caplog.text
    assert "other keys" not in caplog.text, "that is more than is known"
    assert later == [f"POST /v1/jobs/{job}/cancel" for job in "78"], "others are asked for minutes later"
