"""What the page's tests look at: a real manager, nodes of tests/live, and a headless Chromium."""

import asyncio
import shutil
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from farside.agent import messages as m
from farside.scheduler.manager.auth.token_file import Role, add_token
from farside.scheduler.manager.model.event import NodesWanted, PowerChanged
from farside.scheduler.manager.model.power_record import NodePowerRecord
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.transaction import Draft
from farside.scheduler.power.state import Phase as PowerPhase
from tests.live.fake_agent import FakeNode, FakeSession
from tests.live.manager import Manager, running_manager
from tests.support.waiting import until

DEADLINE_S = 90.0
EVIL = "<img src=x onerror=alert(1)>\"'&amp;"


def chromium() -> str:
    """The browser; a test skips where there is none."""
    pytest.importorskip("playwright", reason="playwright is not installed: pip install -r requirements/dev.txt")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no chromium here: apt-get install chromium")
    return found


class Scene:
    """A manager and its nodes, which a thread of their own keeps connected."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager
        self.operator = add_token(manager.tokens, "ada", Role.OPERATOR)
        self.user = add_token(manager.tokens, "carl", Role.USER)
        self.nodes: dict[str, FakeNode] = {}
        self._sessions: dict[str, FakeSession] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._over = asyncio.Event()

    @property
    def page(self) -> str:
        return f"http://127.0.0.1:{self.manager.port}/ui/"

    def join(self, node: FakeNode) -> None:
        """Connects a node and has it report once."""
        self.nodes[node.name] = node
        self._do(self._connect(node)).result(DEADLINE_S)
        self.report(node.name)

    def report(self, name: str) -> None:
        """Has a node tell what it feels now."""
        self._do(self._sessions[name].report()).result(DEADLINE_S)

    def sleeps(self, name: str, phase: PowerPhase, reason: str) -> None:
        """Has the log say this of a node's power, as who keeps it would."""
        store = EventStore(self.manager.store_url)
        note = NodePowerRecord(phase=phase, reason=reason, drain_number=1)
        generation = int(self.manager.get("health")["generation"])
        events = (
            NodesWanted(nodes=2, needed=2, reason=reason),
            PowerChanged(node=name, generation=generation, note=note),
        )
        store.append([Draft(event=event, cause="power") for event in events], time.time())
        store.close()

    def exit(self, task_id: str, code: int = 0, start: int = 1) -> None:
        """Ends a process where it runs."""
        key = task_id, start
        name = next(name for name, node in self.nodes.items() if node.is_running(key))
        self._do(self._sessions[name].exit(key, code)).result(DEADLINE_S)

    def runs(self, job_id: str) -> None:
        """Waits until it does."""
        self.until_job(job_id, "running")

    def until_job(self, job_id: str, state: str) -> None:
        """Waits for it."""
        until(lambda: self.manager.job(job_id)["state"] == state, what=f"job {job_id} {state}", deadline_s=DEADLINE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._do(_drain()).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _connect(self, node: FakeNode) -> None:
        connected = asyncio.Event()

        async def stay() -> None:
            async with node.connected(self.manager.url, self.manager.node_token(node.name)) as session:
                self._sessions[node.name] = session
                connected.set()
                await self._over.wait()

        task = asyncio.ensure_future(stay())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await connected.wait()


async def _drain() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.wait(others, timeout=DEADLINE_S) if others else None


@contextmanager
def a_scene(folder: Path) -> Iterator[Scene]:
    """Two nodes, one of which lends memory; a job that runs, one that waits, one that is held, one that has failed."""
    (folder / "power.toml").write_text('[node.evening]\ndriver = "dry-run"\n')
    with running_manager(
        folder, power="ces", power_settings="forecast=true; wake_ahead=true", power_dry_run="true",
        power_drivers=folder / "power.toml",
    ) as manager:  # fmt: skip
        scene = Scene(manager)
        try:
            donor = m.Donor(node="n1", control="tcp:192.0.2.1:9000", has_rdma=True)
            loans = (m.Loan(borrower="n2", bytes=3 << 30),)
            scene.join(FakeNode("n1", gpus=8, power_w=300.0, loans=loans, donor=donor))
            scene.join(FakeNode("n2", gpus=8, swap=m.Swap(size_bytes=8 << 30)))
            failed = manager.submit("false", name="broken-import")
            scene.runs(failed)
            scene.exit(f"{failed}.0", 1)
            scene.until_job(failed, "failed")
            trained = manager.submit(name="train-llama", gpus=12)
            scene.runs(trained)
            manager.submit(name=EVIL, gpus=16, after=[trained])  # so that it lets others pass
            manager.submit(name="later", gpus=1, hold=True)
            yield scene
        finally:
            scene.close()
