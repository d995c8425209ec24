"""The brain beside its store: what it writes at once, and whom it keeps waiting."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.event import listen

from farside import admin
from farside.scheduler.live.brain import ASK, WAKE, Brain
from farside.scheduler.live.event import (
    CancelRequested,
    Event,
    Gpu,
    JobEnded,
    JobPlaced,
    JobStarted,
    JobSubmitted,
    NodeJoined,
    TaskChanged,
    TaskPhase,
)
from farside.scheduler.live.spec import JobSpec
from farside.scheduler.live.store.event_store import EventStore
from farside.scheduler.live.store.migrate import upgrade
from farside.scheduler.live.store.turn import Draft
from farside.scheduler.live.wake import wake
from tests.live.world import rules

DEADLINE_S = 30.0
NODE = NodeJoined(
    node="n0", boot_id="b", address="h", cpus=8, memory_bytes=1 << 36, headroom_bytes=1 << 36,
    gpus=(Gpu(index=0, model="H200"),),
)  # fmt: skip
JOB = JobSubmitted(spec=JobSpec(argv=("true",), gpus=1), user="ann")


class Led:
    """A store that a brain of this process leads."""

    def __init__(self, store: EventStore, folder: Path) -> None:
        self.store = store
        self.folder = folder

    def tell(self, *events: Event) -> None:
        self.store.append([Draft(event=event, cause="test") for event in events], 0.0)
        wake(self.folder / WAKE)

    def events(self) -> list[Event]:
        return [entry.event for entry in self.store.read_all()]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_so():
                await asyncio.sleep(0.01)

    def has(self, kind: type[Event], job_id: str) -> bool:
        return any(isinstance(event, kind) and getattr(event, "job_id", "") == job_id for event in self.events())

    async def ask(self, command: str, **more: object) -> Any:
        return await admin.ask(self.folder / ASK, command, timeout_s=DEADLINE_S, **more)

    async def until_it_wants_to_write(self) -> None:
        """It decides as soon as it has read."""
        while (await self.ask("status"))["seq"] < self.store.extent().last_seq:
            await asyncio.sleep(0.01)


@asynccontextmanager
async def led(folder: Path) -> AsyncIterator[Led]:
    store = EventStore(f"sqlite:///{folder}/manager.db")
    upgrade(store)
    running = asyncio.ensure_future(Brain(store, rules(), folder, "test").run())
    try:
        yield Led(store, folder)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        store.close()


def play(story: Callable[[Led], Awaitable[None]], folder: Path) -> None:
    async def main() -> None:
        async with led(folder) as one:
            await story(one)

    asyncio.run(main())


EXITED = TaskChanged(node="n0", job_id="1", start=1, rank=0, phase=TaskPhase.EXITED, exit_code=0)


def test_the_place_of_a_job_and_its_start_are_one_commit(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        one.tell(NODE, JOB, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))
        commits: list[object] = []
        listen(one.store.engine, "commit", commits.append)

        one.tell(EXITED)
        await one.until(lambda: one.has(JobStarted, "2"))

        assert [type(event) for event in one.events()[-3:]] == [JobEnded, JobPlaced, JobStarted]
        assert len(commits) == 3  # what was told, what followed, and what the cycle gave

    play(story, tmp_path)


def test_what_others_wrote_meanwhile_stands_before_a_decision_and_is_known_to_what_follows(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        one.tell(NODE, JOB, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))
        one.tell(EXITED)
        with one.store.turn() as turn:
            await one.until_it_wants_to_write()
            turn.add([Draft(event=CancelRequested(job_id="2", by="ann"), cause="test")], 0.0)
        await one.until(lambda: one.has(JobEnded, "2"))

        assert [type(event) for event in one.events()[-3:]] == [CancelRequested, JobEnded, JobEnded]
        assert not one.has(JobStarted, "2")

    play(story, tmp_path)


def test_who_asks_why_a_job_waits_is_answered_while_another_writer_has_the_store(tmp_path: Path) -> None:
    async def story(one: Led) -> None:
        one.tell(NODE, JOB, JOB)
        await one.until(lambda: one.has(JobStarted, "1"))
        one.tell(EXITED)
        with one.store.turn():
            await one.until_it_wants_to_write()

            lines = await one.ask("explain", job_id="2")

        assert lines["lines"]
        await one.until(lambda: one.has(JobStarted, "2"))

    play(story, tmp_path)
