"""A runner in a test: real task supervisors, real programs, states collected."""

import asyncio
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil

from farside.agent import messages as m
from farside.agent.gpu_share import devices_of
from farside.agent.run.containment import Cgroup, CgroupRoot
from farside.agent.run.fork_server import ForkServer
from farside.agent.run.ledger import FINAL, RANK
from farside.agent.run.runner import Policy, Runner
from tests.agent.frames import SPEC
from tests.support.waiting import until

ME = pwd.getpwuid(os.geteuid()).pw_name
DEADLINE_S = 90.0 * float(os.environ.get("FARSIDE_PATIENCE", "1"))  # a guest is emulated, on a host that others use


class Node:
    """One node's runner, and all that it told."""

    def __init__(
        self,
        folder: Path,
        *,
        cgroup: CgroupRoot | None = None,
        run_as: str = "starter",
        fork_server: ForkServer | None = None,
        **policy: Any,
    ) -> None:
        self.folder = folder
        self.told: list[m.TaskState] = []
        settings = {"users": (), "devices": lambda: devices_of(range(8)), **policy}
        self.policy = Policy(run_as=run_as, cgroup=cgroup, **settings)
        self.runner = Runner(folder, self.policy, self.told.append, fork_server=fork_server)

    def restarted(self) -> "Node":
        """Another agent on the same folder; this one is not used any more."""
        after = Node.__new__(Node)
        after.folder, after.policy, after.told = self.folder, self.policy, []
        after.runner = Runner(self.folder, self.policy, after.told.append)
        return after

    def start(self, script: str, *, task_id: str = "1.0", nth: int = 1, **spec: Any) -> None:
        given = {"argv": ("sh", "-c", script), "user": ME, "gpus": (), "stdout": str(self.out), **spec}
        asked = msgspec.structs.replace(SPEC, **given)
        self.runner.take(m.Start(task_id=task_id, start=nth, generation=1, spec=asked))

    def stop(self, *, task_id: str = "1.0", nth: int = 1, grace_s: float = 10.0, cause: str = "preempted") -> None:
        self.runner.take(m.Stop(task_id=task_id, start=nth, generation=1, cause=cause, grace_s=grace_s))

    @property
    def out(self) -> Path:
        return self.folder.parent / "out" / "log"

    def output(self) -> str:
        return self.out.read_text() if self.out.exists() else ""

    def state(self, task_id: str = "1.0", nth: int = 1) -> m.TaskState:
        self.runner.look()
        return self.runner.ledger.tasks[task_id, nth].state

    def until(self, name: str, task_id: str = "1.0", nth: int = 1) -> m.TaskState:
        def there() -> m.TaskState | None:
            state = self.state(task_id, nth)
            return state if RANK[state.state] >= RANK[name] else None

        found = until(there, what=f"{task_id} {name}", deadline_s=DEADLINE_S)
        assert found is not None
        return found

    def ended(self, task_id: str = "1.0", nth: int = 1) -> m.TaskState:
        return self.until("exited", task_id, nth)

    def says(self, text: str) -> None:
        until(lambda: text in self.output(), what=f"{text!r} in the output", deadline_s=DEADLINE_S)

    def kill_all(self) -> None:
        for key, task in self.runner.ledger.tasks.items():
            if task.is_live:
                self.stop(task_id=key[0], nth=key[1], grace_s=0)
        until(
            lambda: all(RANK[self.state(*key).state] >= FINAL for key in self.runner.ledger.tasks),
            what="the end of all tasks",
            deadline_s=DEADLINE_S,
        )


@contextmanager
def node(folder: Path, **settings: Any) -> Iterator[Node]:
    made = Node(folder / "state", **settings)
    try:
        yield made
    finally:
        made.restarted().kill_all()


def processes_with(word: str) -> list[int]:
    """Processes that have this word in their command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and any(word in part for part in process.cmdline()):
                found.append(process.pid)
    return found


def remove_cgroups(base: Path) -> None:
    for folder in base.iterdir():
        if folder.is_dir():
            Cgroup(folder).close()
    base.rmdir()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
