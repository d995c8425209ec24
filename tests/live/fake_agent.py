"""A node for tests: a real WebSocket, real messages, and processes that a test ends when it likes.

What it runs outlives its connection, as an agent's tasks do: `FakeNode` is the machine, `connected` one session of it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec
from websockets.exceptions import ConnectionClosed

from farside.agent import messages as m
from farside.agent import protocol
from farside.agent.line import Line, open_proved_line

Key = tuple[str, int]


@dataclass
class FakeNode:
    name: str
    gpus: int = 4
    boot_id: str = "boot-1"
    agent: str = ""  # which agent; empty: an older one, which does not say
    is_honest: bool = True  # else a task that is told to stop goes on
    loans: tuple[m.Loan, ...] = ()
    donor: m.Donor | None = None
    swap: m.Swap | None = None
    executor: m.ExecutorFacts | None = None
    power_w: float | None = None  # of each GPU
    extends_limits: bool = False
    limits: dict[Key, float] = field(default_factory=dict)  # to which tasks were extended
    ends_after_s: float | None = None  # each task ends well after so long; None: when a test says so
    tasks: dict[Key, m.TaskState] = field(default_factory=dict)
    specs: dict[Key, m.TaskSpec] = field(default_factory=dict)
    starts: list[Key] = field(default_factory=list)  # all that was ever started, in order
    seq: int = 0
    generation: int = 0
    news: set[Key] = field(default_factory=set)
    has_news: asyncio.Event = field(default_factory=asyncio.Event)

    def set(self, key: Key, state: m.State, **more: object) -> None:
        before = self.tasks.get(key, m.TaskState(task_id=key[0], start=key[1], state="starting", at_s=0.0))
        self.tasks[key] = msgspec.structs.replace(before, state=state, at_s=time.time(), **more)

    def run(self, key: Key, spec: m.TaskSpec) -> None:
        if key in self.tasks:
            return
        busy = {gpu for other, known in self.specs.items() if self.is_running(other) for gpu in known.gpus}
        assert not busy & set(spec.gpus), f"{self.name}: a GPU is given to two"
        self.specs[key] = spec
        self.starts.append(key)
        self.set(key, "running")

    def is_running(self, key: Key) -> bool:
        return key in self.tasks and self.tasks[key].state not in ("exited", "lost")

    @property
    def running(self) -> list[Key]:
        return [key for key in self.tasks if self.is_running(key)]

    def exit(self, key: Key, code: int = 0) -> None:
        self.set(key, "exited", exit_code=code, cause="" if not code else f"exit code {code}")

    def end(self, key: Key) -> None:
        """It ends by itself, whether or not anybody is connected."""
        if self.is_running(key):
            self.exit(key)
            self.news.add(key)
            self.has_news.set()

    # ---- one session

    @asynccontextmanager
    async def connected(self, url: str, token: str) -> AsyncIterator["FakeSession"]:
        async with open_proved_line(url, token) as line:
            session = FakeSession(self, line)
            await session.begin()
            async with asyncio.TaskGroup() as group:
                listening = group.create_task(session.listen())
                telling = group.create_task(session.tell_news())
                try:
                    yield session
                finally:
                    listening.cancel()
                    telling.cancel()

    def hello(self) -> m.Hello:
        return m.Hello(
            node=self.name, boot_id=self.boot_id, incarnation="one", version="0", cpus=16, memory_bytes=1 << 36,
            gpus=self.declared(), headroom_bytes=1 << 36, tasks=tuple(self.tasks.values()), donor=self.donor,
            swap=self.swap, agent=self.agent, services=self.services(), extends_limits=self.extends_limits,
        )  # fmt: skip

    def services(self) -> dict[str, msgspec.Raw]:
        said = {m.EXECUTOR: self.executor}
        return {name: msgspec.Raw(msgspec.json.encode(facts)) for name, facts in said.items() if facts is not None}

    def declared(self) -> tuple[m.Gpu, ...]:
        return tuple(m.Gpu(index=at, model="H200", healthy=True, power_w=self.power_w) for at in range(self.gpus))


class FakeSession:
    def __init__(self, node: FakeNode, line: Line) -> None:
        self.node = node
        self.line = line
        self.side = protocol.AgentSide(seen_generation=node.generation)
        self.acked = 0
        self.over = asyncio.Event()  # the manager has ended it

    async def begin(self) -> None:
        await self.line.send(self.side.send(self.node.hello()))
        welcome = self.side.receive(await self.line.receive())
        assert isinstance(welcome, m.Welcome)
        self.node.generation = welcome.generation

    async def listen(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                message = self.side.receive(await self.line.receive())
                if isinstance(message, m.Ack):
                    self.acked = message.seq
                    continue
                changed = self.obey(message)
                if changed is not None:
                    await self.report(changed)
                    if self.node.ends_after_s is not None and self.node.is_running(changed):
                        asyncio.get_running_loop().call_later(self.node.ends_after_s, self.node.end, changed)
        self.over.set()

    async def tell_news(self) -> None:
        """What ended while nobody was connected stood in HELLO."""
        self.node.news.clear()
        with suppress(ConnectionClosed):
            while True:
                await self.node.has_news.wait()
                self.node.has_news.clear()
                news, self.node.news = self.node.news, set()
                await self.report(*news)

    def obey(self, message: m.ManagerMessage) -> Key | None:
        node = self.node
        match message:
            case m.Start(task_id=task, start=start, spec=spec):
                node.run((task, start), spec)
                return task, start
            case m.Stop(task_id=task, start=start, cause=cause):
                key = task, start
                if key not in node.tasks:
                    node.set(key, "lost", cause="not known here")
                elif node.is_running(key) and node.is_honest:
                    node.set(key, "exited", signal=15, cause=cause)
                return key
            case m.Extend(task_id=task, start=start, time_limit_s=limit_s):
                node.limits[task, start] = limit_s
            case m.Forget(task_id=task, start=start):
                node.tasks.pop((task, start), None)
            case _:
                pass
        return None

    async def report(self, *keys: Key) -> None:
        node = self.node
        node.seq += 1
        tasks = tuple(node.tasks[key] for key in keys if key in node.tasks)
        report = m.Report(
            seq=node.seq, at_s=time.time(), headroom_bytes=1 << 36, psi=m.Psi(), gpus=node.declared(), tasks=tasks,
            loans=node.loans, donor=node.donor, swap=node.swap, services=node.services(),
        )  # fmt: skip
        await self.line.send(self.side.send(report))

    async def exit(self, key: Key, code: int = 0) -> None:
        self.node.exit(key, code)
        await self.report(key)
