"""The connection to the manager, in this process: it ends when it is told to, at whatever moment that is."""

import asyncio
from pathlib import Path

import pytest

from farside.agent import messages as m
from tests.agent.fake_manager import FakeManager, fake_manager
from tests.agent.one_session import session, until_connected


@pytest.mark.parametrize("turns", range(16))
def test_a_session_that_is_told_to_end_right_after_news_ends(tmp_path: Path, turns: int) -> None:
    async def scene(manager: FakeManager) -> bool:
        made = session(tmp_path, manager.url)
        running = asyncio.ensure_future(made.run())
        await until_connected(made)
        while not manager.reports:
            await asyncio.sleep(0.005)
        made.tell(m.TaskState(task_id="1.0", start=1, state="exited", at_s=1.0))
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        done, _ = await asyncio.wait({running}, timeout=60)
        if not done:
            running.cancel()
        return bool(done)

    with fake_manager() as manager:
        assert asyncio.run(scene(manager))


def test_while_a_job_may_wait_for_its_node_an_agent_reports_before_its_period_is_over(tmp_path: Path) -> None:
    async def scene(manager: FakeManager) -> int:
        running = asyncio.ensure_future(session(tmp_path, manager.url, hurries=True).run())
        async with asyncio.timeout(50):  # its period is a minute
            while len(manager.reports) < 3:
                await asyncio.sleep(0.005)
        running.cancel()
        await asyncio.wait({running})
        return len(manager.reports)

    with fake_manager() as manager:
        assert asyncio.run(scene(manager)) >= 3


def test_a_manager_that_is_not_there_is_told_and_tried_again(tmp_path: Path) -> None:
    async def scene(manager: FakeManager) -> str:
        made = session(tmp_path, manager.url)
        await asyncio.to_thread(manager.vanish)
        running = asyncio.ensure_future(made.run())
        async with asyncio.timeout(60):
            while made.last_problem == "not tried yet":
                await asyncio.sleep(0.005)
        problem = made.last_problem
        await asyncio.to_thread(manager.listen)
        await until_connected(made)
        running.cancel()
        await asyncio.wait({running})
        return problem

    with fake_manager() as manager:
        problem = asyncio.run(scene(manager))

    assert "refused" in problem.lower() or "Connect call failed" in problem


def test_a_folder_that_cannot_be_asked_about_costs_no_connection(tmp_path: Path) -> None:
    async def failing(probe: m.Probe) -> m.Probed:
        return m.Probed(probe_id=probe.probe_id, made="relative")  # which no frame may say

    async def scene(manager: FakeManager) -> int:
        running = asyncio.ensure_future(session(tmp_path, manager.url, probe=failing).run())
        async with asyncio.timeout(60):
            await asyncio.to_thread(manager.until_hellos, 1)
            await asyncio.to_thread(manager.send, m.Probe(probe_id="7", step="see", user="a", path="/a", mark="m"))
            while not manager.probed:
                await asyncio.sleep(0.005)
        hellos = len(manager.hellos)
        running.cancel()
        await asyncio.wait({running})
        return hellos

    with fake_manager() as manager:
        hellos = asyncio.run(scene(manager))

    assert (hellos, manager.probed) == (1, [m.Probed(probe_id="7", problem="this node could not look")])
