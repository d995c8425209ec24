"""The manager as real processes, killed at any moment; the nodes are fakes that speak the real protocol."""

import asyncio
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import VERSION, CancelRequested, NodeLost
from farside.scheduler.manager.store import table
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.transaction import Draft
from tests.live.fake_agent import FakeNode, FakeSession
from tests.live.manager import Manager, running_manager
from tests.live.stores import KINDS, store_url
from tests.support.certificates import Authority
from tests.support.programs import run
from tests.support.waiting import until

LIMIT_S = 180.0
LONG = pytest.mark.long
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


async def eventually(look: Callable[[], object], what: str) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not await asyncio.to_thread(look):
        assert time.monotonic() < end_s, f"not in time: {what}"
        await asyncio.sleep(0.05)


def states(manager: Manager) -> list[str]:
    try:
        return [job["state"] for job in manager.get("jobs", all="true")["jobs"]]
    except Exception:  # it is being started again
        return []


async def with_nodes(manager: Manager, nodes: list[FakeNode], act: Callable[[], Awaitable[None]]) -> None:
    """Runs with all nodes connected, and connected again whenever the manager comes back."""

    async def keep(node: FakeNode) -> None:
        while True:
            try:
                async with node.connected(manager.url, manager.node_token(node.name)) as session:
                    await session.line.connection.wait_closed()
            except (OSError, WebSocketException):  # also one that is killed as it answers
                pass
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        kept = [group.create_task(keep(node)) for node in nodes]
        try:
            await act()
        finally:
            for task in kept:
                task.cancel()


def test_jobs_run_on_nodes_and_end(tmp_path: Path) -> None:
    with running_manager(tmp_path) as manager:
        nodes = [FakeNode(f"n{at}", ends_after_s=0.1) for at in range(2)]

        async def act() -> None:
            await eventually(lambda: len(manager.get("nodes")["nodes"]) == 2, "both nodes joined")
            for gpus in (1, 4, 8, 2, 8):
                manager.submit("true", gpus=gpus)
            await eventually(lambda: states(manager) == ["done"] * 5, "all jobs done")

        asyncio.run(with_nodes(manager, nodes, act))

        assert list(violations(manager.entries(), is_complete=True)) == []


@pytest.mark.parametrize("part", [pytest.param("brain", marks=LONG), pytest.param("api", marks=LONG), "all"])
def test_a_manager_killed_in_the_middle_loses_nothing_and_starts_nothing_twice(part: str, tmp_path: Path) -> None:
    with running_manager(tmp_path) as manager:
        nodes = [FakeNode(f"n{at}", ends_after_s=0.3) for at in range(2)]

        async def act() -> None:
            await eventually(lambda: len(manager.get("nodes")["nodes"]) == 2, "both nodes joined")
            await asyncio.to_thread(manager.submit, "true", gpus=2, count=20)
            await eventually(lambda: "done" in states(manager), "the first job is done")
            if part == "all":
                await asyncio.to_thread(manager.kill_all)
                await asyncio.to_thread(manager.start)
            else:
                await asyncio.to_thread(manager.kill, part)
            await eventually(lambda: states(manager) == ["done"] * 20, "all jobs done")

        asyncio.run(with_nodes(manager, nodes, act))

        assert list(violations(manager.entries(), is_complete=True)) == []
        starts = [start for node in nodes for start in node.starts]
        assert len(starts) == len(set(starts)) == 20


@pytest.mark.long
def test_a_log_is_made_smaller_under_a_running_manager_and_it_goes_on_and_starts_again(tmp_path: Path) -> None:
    with running_manager(tmp_path) as manager:
        node = FakeNode("n0", ends_after_s=0.05)

        async def act() -> None:
            await eventually(lambda: manager.get("nodes")["nodes"], "the node has joined")
            await asyncio.to_thread(manager.submit, "true", count=20)
            await eventually(lambda: states(manager) == ["done"] * 20, "all jobs done")
            told = ("--set", f"store_url={manager.store_url}", "--set", "keep_history_s=0.001")
            command = [sys.executable, "-m", "farside", "store", "compact", "-c", "/dev/null", *told]
            said = await asyncio.to_thread(run, command)
            assert "20 jobs forgotten" in said
            await eventually(lambda: states(manager) == [], "they are forgotten")
            assert await asyncio.to_thread(manager.submit, "true") == "2"
            await eventually(lambda: states(manager) == ["done"], "the next one is done")
            await asyncio.to_thread(manager.kill_all)
            await asyncio.to_thread(manager.start)
            assert states(manager) == ["done"]
            assert await asyncio.to_thread(manager.submit, "true") == "3"
            await eventually(lambda: states(manager) == ["done"] * 2, "and the one after the restart")

        asyncio.run(with_nodes(manager, [node], act))
        store = EventStore(manager.store_url)
        assert 40 < store.extent().snapshot_seq < store.extent().last_seq
        assert list(violations(store.read_all(), is_complete=True)) == []
        store.close()


@pytest.mark.long
def test_a_manager_whose_log_a_newer_one_goes_on_with_ends_and_says_so(tmp_path: Path) -> None:
    with running_manager(tmp_path) as manager:
        store = EventStore(manager.store_url)
        store.append([Draft(event=CancelRequested(job_id="1", by="ann"), cause="user ann")], time.time())
        with store.engine.begin() as connection:
            connection.execute(table.log.update().where(table.log.c.seq > 1).values(version=VERSION + 1))
        store.close()
        assert manager.process is not None

        # Both parts have read the entry as it was: they read it again after a restart.
        manager.kill("brain")
        code = manager.process.wait(LIMIT_S)
        manager.process = None

    assert code == 2
    assert "run the newer manager" in manager.log()


def restart(manager: Manager, part: str) -> None:
    first = manager.pids()[part]
    manager.kill(part)
    until(lambda: manager.pids()[part] != first, what="another process", deadline_s=LIMIT_S)
    manager.wait_ready()
    assert manager.process is not None
    assert manager.process.poll() is None


@pytest.mark.long
def test_a_scheduler_process_that_is_started_again_knows_past_jobs_whose_file_is_gone(tmp_path: Path) -> None:
    past = tmp_path / "past.csv"
    past.write_text("job_id,submit_s,user,name,gpus,duration_s\n1,0,ann,train,1,50\n")
    with running_manager(tmp_path, policy="qssf", policy_history=past) as manager:
        past.unlink()

        restart(manager, "brain")

        async def act() -> None:
            await eventually(lambda: manager.get("nodes")["nodes"], "the node joined")
            job = await asyncio.to_thread(manager.submit, "true", name="train")
            await eventually(lambda: manager.job(job)["expected_s"] == pytest.approx(50.0), "what past jobs say")

        asyncio.run(with_nodes(manager, [FakeNode("n0")], act))


@pytest.mark.long
def test_an_api_process_that_is_started_again_needs_no_file_that_was_read_at_the_start(tmp_path: Path) -> None:
    made = Authority(tmp_path).make("manager", says="IP:127.0.0.1")
    power, holidays = tmp_path / "power.toml", tmp_path / "holidays"
    power.write_text('[node.n0]\ndriver = "command"\nprogram = ["/bin/true"]\n')
    holidays.write_text("2026-12-25\n")
    told = {
        "tls_cert": made.cert, "tls_key": made.key, "power": "ces", "power_settings": "forecast=true",
        "power_drivers": power, "holidays_file": holidays,
    }  # fmt: skip
    with running_manager(tmp_path, **told) as manager:
        shown = ssl.get_server_certificate(("127.0.0.1", manager.port))
        for file in (power, holidays, made.cert):
            file.unlink()

        restart(manager, "api")

        assert manager.get("power")["policy"] == "ces"
        assert ssl.get_server_certificate(("127.0.0.1", manager.port)) == shown
    assert "the certificate of the manager's start is in use" in manager.log()


@pytest.mark.long
def test_what_ended_while_the_manager_was_away_is_known_when_it_is_back(tmp_path: Path) -> None:
    with running_manager(tmp_path) as manager:
        node = FakeNode("n0")

        async def act() -> None:
            await wait_for_node(manager, node)
            async with node.connected(manager.url, manager.node_token(node.name)):
                job = await asyncio.to_thread(manager.submit, "true")
                await eventually(lambda: manager.job(job)["state"] == "running", "it runs")
                await asyncio.to_thread(manager.kill_all)
            node.exit(("1.0", 1), 3)
            await asyncio.to_thread(manager.start)
            before = manager.job(job)["state"]
            async with node.connected(manager.url, manager.node_token(node.name)):
                await eventually(lambda: manager.job(job)["state"] == "failed", "it is known to have failed")
            assert (before, manager.job(job)["exit_code"]) == ("running", 3)

        asyncio.run(act())


@pytest.mark.long
@pytest.mark.skipif(FAKETIME is None, reason="libfaketime (package faketime) sets another process's clock")
@pytest.mark.parametrize("jump", ["-1d", "+1d"])
def test_a_clock_that_jumps_by_a_day_costs_no_job_anything(jump: str, tmp_path: Path) -> None:
    with running_manager(tmp_path) as manager:
        node = FakeNode("n0")

        async def act() -> None:
            await wait_for_node(manager, node)
            async with node.connected(manager.url, manager.node_token(node.name)):
                running = await asyncio.to_thread(lambda: manager.submit("true", gpus=2, time_limit_s=3600))
                await eventually(lambda: manager.job(running)["state"] == "running", "it runs")
                await asyncio.to_thread(manager.kill_all)
            manager.on = ("env", f"LD_PRELOAD={FAKETIME}", "FAKETIME_DONT_FAKE_MONOTONIC=1", f"FAKETIME={jump}")
            await asyncio.to_thread(manager.start)
            async with node.connected(manager.url, manager.node_token(node.name)):
                new = await asyncio.to_thread(lambda: manager.submit("true", gpus=2))
                await eventually(lambda: manager.job(new)["state"] == "running", "it decides")
                waiting = await asyncio.to_thread(lambda: manager.submit("true", gpus=4))
                assert manager.job(running)["state"] == "running"
                for key in list(node.running):
                    node.end(key)
                await eventually(lambda: manager.job(waiting)["state"] == "running", "the next one runs")
                node.end((f"{waiting}.0", 1))
                await eventually(lambda: states(manager) == ["done"] * 3, "all are done")

        asyncio.run(act())

        times_s = [entry.at_s for entry in manager.entries()]
        assert times_s == sorted(times_s)
        assert len(node.starts) == 3
        assert list(violations(manager.entries(), is_complete=True)) == []


async def wait_for_node(manager: Manager, node: FakeNode) -> None:
    """A manager refuses jobs that are larger than all nodes it ever knew."""
    async with node.connected(manager.url, manager.node_token(node.name)):
        await eventually(lambda: manager.get("nodes")["nodes"], "the node has joined")


@pytest.mark.long
def test_a_silent_node_is_lost_and_its_job_starts_elsewhere_and_the_old_one_is_stopped(tmp_path: Path) -> None:
    with running_manager(tmp_path, node_timeout_s=6) as manager:
        nodes = [FakeNode("n0"), FakeNode("n1")]

        async def act() -> None:
            await wait_for_node(manager, nodes[0])
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(nodes[1].connected(manager.url, manager.node_token("n1")))
                async with nodes[0].connected(manager.url, manager.node_token()):
                    await asyncio.to_thread(manager.submit, "true", gpus=4)
                    await eventually(lambda: nodes[0].running, "it runs on the node that joined first")
                await eventually(lambda: nodes[1].running == [("1.0", 2)], "it runs elsewhere")
                assert nodes[0].running == [("1.0", 1)]  # nobody could tell it
                await stack.enter_async_context(nodes[0].connected(manager.url, manager.node_token()))
                await eventually(lambda: not nodes[0].running, "the old start is stopped")
                assert nodes[1].running == [("1.0", 2)]

        asyncio.run(act())
        assert list(violations(manager.entries())) == []


async def session_error(node: FakeNode, url: str, token: str) -> str:
    try:
        async with node.connected(url, token) as session:
            await session.line.connection.wait_closed()
            return str(session.line.connection.close_reason)
    except InvalidStatus as error:
        return f"HTTP {error.response.status_code}"
    except ConnectionClosed as error:
        return error.rcvd.reason if error.rcvd is not None else "closed"


@pytest.mark.long
def test_who_may_not_speak_for_a_node_is_told_so_in_one_line(tmp_path: Path) -> None:
    with running_manager(tmp_path) as manager:

        async def act() -> None:
            async with FakeNode("n0").connected(manager.url, manager.node_token()) as session:
                wrong = await session_error(FakeNode("n1"), manager.url, "wrong")
                twice = await session_error(FakeNode("n0", boot_id="another"), manager.url, manager.node_token())
                assert wrong == "HTTP 401"
                assert twice == "another machine is connected as n0; give one of them another name"
                await says_version(session)

        asyncio.run(act())


@pytest.mark.long
def test_another_agent_of_the_same_name_waits_until_the_first_is_lost_and_nothing_runs_twice(tmp_path: Path) -> None:
    with running_manager(tmp_path, node_timeout_s=15) as manager:
        first, second = FakeNode("n0", agent="first"), FakeNode("n0", agent="second")

        async def act() -> None:
            refusal = "an agent with another state_dir is n0 here; end it, or give one of them another name"
            async with first.connected(manager.url, manager.node_token()):
                await asyncio.to_thread(manager.submit, "sleep", "60")
                await eventually(lambda: states(manager) == ["running"], "a running job")
                assert await session_error(second, manager.url, manager.node_token()) == refusal
            # It has lost its connection, and may come back; so does a new process with the same state folder.
            assert await session_error(second, manager.url, manager.node_token()) == refusal
            manager.kill("api")
            await eventually(manager.is_ready, "the API again")
            assert await session_error(second, manager.url, manager.node_token()) == refusal
            async with first.connected(manager.url, manager.node_token()):
                assert states(manager) == ["running"]
            await eventually(lambda: manager.get("nodes")["nodes"][0]["state"] == "lost", "the node lost")
            async with second.connected(manager.url, manager.node_token()):
                await eventually(lambda: len(second.starts) == 1, "the job, once more")

        asyncio.run(act())
        assert (len(first.starts), len(second.starts)) == (1, 1)


async def says_version(session: FakeSession) -> None:
    """A frame of a version that nobody speaks yet is refused, and the node that sent it told which are spoken."""
    await session.line.send('{"v":99,"type":"report"}')
    await session.line.connection.wait_closed()
    assert "protocol version 99 is not spoken here" in str(session.line.connection.close_reason)


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_managers_the_second_takes_over_when_the_first_is_killed(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(store_url(kind, tmp_path))
        first = stack.enter_context(running_manager(tmp_path / "a", store_url=url))
        second = stack.enter_context(running_manager(tmp_path / "b", store_url=url))
        node = FakeNode("n0", ends_after_s=0.05)

        async def act() -> None:
            await wait_for_node(first, node)
            await asyncio.to_thread(first.kill_all)
            async with node.connected(second.url, second.node_token()):
                await asyncio.to_thread(second.submit, "true")
                await eventually(lambda: states(second) == ["done"], "the second one runs it")

        asyncio.run(act())

        assert list(violations(second.entries(), is_complete=True)) == []
        assert second.get("health")["generation"] == 2


@pytest.mark.long
def test_a_node_that_one_of_two_managers_hears_is_silent_for_neither(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/shared.db"
        first = stack.enter_context(running_manager(tmp_path / "a", store_url=url, node_timeout_s=6))
        second = stack.enter_context(running_manager(tmp_path / "b", store_url=url, node_timeout_s=6))
        nodes = [FakeNode("n0"), FakeNode("n1")]

        def is_there(name: str, state: str) -> bool:
            return any((node["name"], node["state"]) == (name, state) for node in second.get("nodes")["nodes"])

        async def act() -> None:
            async with nodes[0].connected(first.url, first.node_token()):
                for at in range(2):  # the second manager calls this one lost, twice, so it has looked at the other too
                    async with nodes[1].connected(second.url, second.node_token("n1")):
                        await eventually(lambda: is_there("n1", "idle"), f"n1 joins for the {at + 1}. time")
                    await eventually(lambda: is_there("n1", "lost"), "n1 is lost")

        asyncio.run(act())

        lost = [entry.event.node for entry in second.entries() if isinstance(entry.event, NodeLost)]
        assert set(lost) == {"n1"}


@pytest.mark.long
def test_a_node_that_joins_at_the_newer_of_two_managers_is_not_lost_to_the_older(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/shared.db"
        first = stack.enter_context(running_manager(tmp_path / "a", store_url=url, node_timeout_s=6))
        second = stack.enter_context(running_manager(tmp_path / "b", store_url=url, node_timeout_s=6))

        def is_there(name: str, state: str) -> bool:
            return any((node["name"], node["state"]) == (name, state) for node in second.get("nodes")["nodes"])

        async def comes_and_goes(name: str) -> None:
            async with FakeNode(name).connected(first.url, first.node_token(name)):
                await eventually(lambda: is_there(name, "idle"), f"{name} joins")
            await eventually(lambda: is_there(name, "lost"), f"{name} is lost")

        async def act() -> None:
            await comes_and_goes("n1")  # now both have gone on for longer than a node may be silent
            async with FakeNode("n0").connected(second.url, second.node_token()):
                await comes_and_goes("n2")

        asyncio.run(act())

        lost = [entry.event.node for entry in second.entries() if isinstance(entry.event, NodeLost)]
        assert set(lost) == {"n1", "n2"}  # n2 by each of them, where both look before either has written


@pytest.mark.long
def test_a_node_that_another_manager_called_lost_is_hung_up_on_and_comes_back(tmp_path: Path) -> None:
    with running_manager(tmp_path) as manager:

        async def act() -> None:
            node = FakeNode("n0")
            async with node.connected(manager.url, manager.node_token()) as session:
                store = EventStore(manager.store_url)
                store.append([Draft(event=NodeLost(node="n0", reason="silent"), cause="another manager")], time.time())
                store.close()
                async with asyncio.timeout(LIMIT_S):
                    await session.over.wait()
                assert session.line.connection.close_reason == "another manager called this node lost; come again"
            async with node.connected(manager.url, manager.node_token()):
                await eventually(lambda: manager.get("nodes")["nodes"][0]["state"] == "idle", "it is back")

        asyncio.run(act())


@pytest.mark.long
def test_an_agent_that_sends_bytes_is_told_that_frames_are_text(tmp_path: Path) -> None:
    with running_manager(tmp_path) as manager:

        async def act() -> None:
            async with FakeNode("n0").connected(manager.url, manager.node_token()) as session:
                await session.line.connection.send(b"\x00")
                await session.line.connection.wait_closed()
                assert session.line.connection.close_reason == "frames of this protocol are text"

        asyncio.run(act())
        assert "Traceback" not in manager.log()
