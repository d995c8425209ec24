"""Simulated node agents in one process: the real protocol over real sockets, tasks that only exist by name.

Each reports every ``period_s``; a task runs from its START until it is told to stop or its time is over.
"""

import asyncio
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from farside.agent import messages as m
from farside.agent import protocol
from farside.agent.line import Line, open_proved_line

MEMORY_BYTES = 256 << 30
JOINING_AT_ONCE = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What a process of agents is told.

    ``tokens``: a JSON file with each agent's; ``mean_run_s``: of a task, drawn from an exponential; 0: for ever.
    """

    url: str
    tokens: str
    first: int
    nodes: int
    gpus: int = 8
    period_s: float = 5.0
    mean_run_s: float = 0.0


@dataclass(slots=True)
class _Agent:
    fleet: Fleet
    name: str
    token: str
    seq: int = 0
    news: dict[tuple[str, int], m.TaskState] = field(default_factory=dict)
    running: set[tuple[str, int]] = field(default_factory=set)

    async def run(self, joining: asyncio.Semaphore) -> None:
        async with AsyncExitStack() as stack:
            async with joining:
                line = await stack.enter_async_context(open_proved_line(self.fleet.url, self.token))
                side = protocol.AgentSide()
                await line.send(side.send(self._hello()))
                side.receive(await line.receive())
            async with asyncio.TaskGroup() as group:
                group.create_task(self._obey(line, side, group))
                await asyncio.sleep(random.uniform(0, self.fleet.period_s))
                while True:
                    await self._report(line, side)
                    await asyncio.sleep(self.fleet.period_s)

    def _hello(self) -> m.Hello:
        return m.Hello(
            node=self.name, boot_id="boot", incarnation="one", version="0", cpus=64, memory_bytes=MEMORY_BYTES,
            gpus=self._gpus(), headroom_bytes=MEMORY_BYTES, tasks=(),
        )  # fmt: skip

    def _gpus(self) -> tuple[m.Gpu, ...]:
        return tuple(m.Gpu(index=at, model="H200", healthy=True) for at in range(self.fleet.gpus))

    async def _obey(self, line: Line, side: protocol.AgentSide, group: asyncio.TaskGroup) -> None:
        while True:
            message = side.receive(await line.receive())
            if isinstance(message, m.Start):
                key = message.task_id, message.start
                self.running.add(key)
                await self._tell(line, side, key, "running")
                if self.fleet.mean_run_s:
                    run_s = random.expovariate(1 / self.fleet.mean_run_s)
                    group.create_task(self._end_after(run_s, line, side, key))
            elif isinstance(message, m.Stop):
                key = message.task_id, message.start
                self.running.discard(key)
                await self._tell(line, side, key, "exited", signal=15)

    async def _end_after(self, run_s: float, line: Line, side: protocol.AgentSide, key: tuple[str, int]) -> None:
        await asyncio.sleep(run_s)
        if key in self.running:
            self.running.discard(key)
            await self._tell(line, side, key, "exited", exit_code=0)

    async def _tell(
        self, line: Line, side: protocol.AgentSide, key: tuple[str, int], state: m.State, **more: int
    ) -> None:
        told = m.TaskState(task_id=key[0], start=key[1], state=state, at_s=time.time())
        self.news[key] = msgspec.structs.replace(told, **more)
        await self._report(line, side)

    async def _report(self, line: Line, side: protocol.AgentSide) -> None:
        self.seq += 1
        tasks, self.news = tuple(self.news.values()), {}
        await line.send(
            side.send(
                m.Report(
                    seq=self.seq, at_s=time.time(), headroom_bytes=MEMORY_BYTES, psi=m.Psi(), gpus=self._gpus(),
                    tasks=tasks,
                )
            )
        )  # fmt: skip


def name_of(at: int) -> str:
    """The name of an agent by its number."""
    return f"n{at:05}"


async def _run(fleet: Fleet, tokens: dict[str, str]) -> None:
    joining = asyncio.Semaphore(JOINING_AT_ONCE)
    async with asyncio.TaskGroup() as group:
        for at in range(fleet.first, fleet.first + fleet.nodes):
            group.create_task(_Agent(fleet, name_of(at), tokens[name_of(at)]).run(joining))


def main(arguments: Sequence[str]) -> int:
    """Runs a fleet, told as JSON, until it is killed or the manager is gone."""
    fleet = msgspec.json.decode(arguments[0], type=Fleet)
    asyncio.run(_run(fleet, msgspec.json.decode(Path(fleet.tokens).read_bytes(), type=dict[str, str])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
