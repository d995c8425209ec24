"""A node, and strangers, that try to fill the manager's store and its log, with real processes [M5]."""

import asyncio
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from farside.agent import messages as m
from farside.agent import protocol
from farside.agent.line import open_proved_line
from farside.scheduler.manager.model.event import NodeChanged, NodeLost
from farside.scheduler.manager.nodes.entry_budget import CHANGE_PERIOD_S, CHANGES_BURST
from tests.agent.process import agent, until_connected, write_config
from tests.live.fake_agent import FakeNode
from tests.live.manager import Manager, running_manager
from tests.support.waiting import until

FLOOD_S, FLOOD_REPORTS = 3.0, 40
LIMIT_S = 120.0
STRANGERS = 200


async def flap(manager: Manager, node: FakeNode, least: int) -> int:
    """Reports with another headroom each, as fast as they are acknowledged; how many."""
    async with open_proved_line(manager.url, manager.node_token(node.name)) as line:
        side = protocol.AgentSide(seen_generation=0)
        await line.send(side.send(node.hello()))
        side.receive(await line.receive())
        end_s = time.monotonic() + FLOOD_S
        for number in itertools.count(1):
            if number > least and time.monotonic() >= end_s:
                return number
            report = m.Report(
                seq=number,
                at_s=time.time(),
                headroom_bytes=(number % 2) << 38,
                psi=m.Psi(),
                gpus=node.declared(),
                tasks=(),
            )
            await line.send(side.send(report))
            while not isinstance(side.receive(await line.receive()), m.Ack):
                pass
    return 0


@pytest.mark.long
def test_neither_a_node_nor_strangers_fill_the_store_or_the_log(tmp_path: Path) -> None:
    """[M5] A node wrote 434 MB in 20 s by facts that flapped.

    [L6] Each stranger cost a line, and each agent that hung up three traces.
    """
    with running_manager(tmp_path / "m") as manager:
        begun_s = time.monotonic()
        reports = asyncio.run(flap(manager, FakeNode("n0", gpus=8), FLOOD_REPORTS))
        took_s = time.monotonic() - begun_s
        for _ in range(STRANGERS):
            with socket.create_connection(("127.0.0.1", manager.port)) as stranger:
                stranger.sendall(b"\x16\x03 this is no request\r\n\r\n")
                stranger.recv(64)
        for _ in range(10):
            asyncio.run(hang_up(manager))

        changes = [entry for entry in manager.entries() if isinstance(entry.event, NodeChanged)]
        assert reports > len(changes)
        assert len(changes) <= CHANGES_BURST + took_s / CHANGE_PERIOD_S + 1
        said = manager.log()
        (line,) = [line for line in said.splitlines() if "bytes that are no HTTP request" in line]
        assert "client=127.0.0.1" in line
        assert "keep it from this port" in line
        assert "Invalid HTTP request" not in said
        assert "Traceback" not in said


@pytest.mark.long
def test_a_refused_agent_costs_one_line_that_says_whose_it_was(tmp_path: Path) -> None:
    """[L6] The server's own line said neither address nor reason."""

    async def refused() -> None:
        with pytest.raises(InvalidStatus):
            async with open_proved_line(manager.url, "invite-garbled"):
                pass

    with running_manager(tmp_path / "m") as manager:
        for _ in range(3):
            asyncio.run(refused())
        until(lambda: "refused an agent" in manager.log(), what="the line", deadline_s=LIMIT_S)

    (line,) = [line for line in manager.log().splitlines() if "refused an agent" in line]
    assert "address=127.0.0.1" in line
    assert "an invitation counts once" in line
    assert "ASGI" not in manager.log()


@contextmanager
def manager_of_small_budget(folder: Path, bytes_per_s: float) -> Iterator[Manager]:
    """Its nodes owe from their first entry on."""
    manager = Manager(folder)
    small = f"entry_budget.BURST_BYTES, entry_budget.BYTES_PER_S = 1, {bytes_per_s}"
    try:
        manager.start(f"from farside.scheduler.manager.nodes import entry_budget\n{small}")
        yield manager
    finally:
        manager.stop()


def test_a_node_that_owes_is_slowed_and_its_session_goes_on(tmp_path: Path) -> None:
    """[M5] Who wrote too much waits, and is not thrown out for it."""
    with manager_of_small_budget(tmp_path, 4000.0) as manager:
        reports = asyncio.run(flap(manager, FakeNode("n0", gpus=8), 2))

        assert reports > 2
        assert "a node writes too much into the log and is slowed" in manager.log()
        assert "Traceback" not in manager.log()


@pytest.mark.long
def test_a_node_that_owes_for_long_is_heard_meanwhile_and_may_come_again(tmp_path: Path) -> None:
    """[M5] A node whose tasks ended with long causes was thrown out and refused: with a fence all its tasks ended."""
    node = FakeNode("n0", gpus=8)

    async def end_all(manager: Manager) -> None:
        token = manager.node_token(node.name)
        async with node.connected(manager.url, token) as session, asyncio.timeout(LIMIT_S):
            await asyncio.to_thread(manager.submit, count=node.gpus)
            while len(node.running) < node.gpus:
                await asyncio.sleep(0.02)
            for key in node.running:
                node.set(key, "exited", exit_code=1, cause="x" * m.CAUSE_CHARS_MAX)
                await session.report(key)
            while session.acked < node.seq:
                await asyncio.sleep(0.02)
        async with node.connected(manager.url, token):
            pass  # it is welcome

    # Each of these ends costs more than two minutes.
    with manager_of_small_budget(tmp_path, 4.0) as manager:
        asyncio.run(end_all(manager))

        assert "a node writes too much into the log and is slowed" in manager.log()
        assert "hung up" not in manager.log()


async def hang_up(manager: Manager) -> None:
    """An agent that goes without a word while it is being spoken to."""
    async with open_proved_line(manager.url, manager.node_token("n1")) as line:
        side = protocol.AgentSide(seen_generation=0)
        await line.send(side.send(FakeNode("n1").hello()))
        line.connection.transport.abort()


def test_a_silent_node_is_lost_when_the_setting_says_so(tmp_path: Path) -> None:
    """[L9] Silence counted from the end of the connection, which was noticed after twenty seconds."""
    with running_manager(tmp_path / "m", node_timeout_s=4) as manager:
        config = write_config(tmp_path, manager.url, token=manager.node_token("n1"))
        with agent(config) as process:
            until_connected(tmp_path)
            stopped_s = time.time()
            os.kill(process.pid, signal.SIGSTOP)

            def lost() -> list[float]:
                return [entry.at_s for entry in manager.entries() if isinstance(entry.event, NodeLost)]

            (lost_s,) = until(lost, what="the node's loss", deadline_s=60)
            os.kill(process.pid, signal.SIGCONT)

    # Half of it to notice, and as much again where both were at their latest, and as long for a machine that others
    # use; it was six times as much.
    assert 2.0 < lost_s - stopped_s < 4 * 5
