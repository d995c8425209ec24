"""The API's side of the log: what is known from it so far, and many small writes made into few large ones."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from farside.log import get_log
from farside.scheduler.live.brain import API_WAKE, WAKE
from farside.scheduler.live.event import Event
from farside.scheduler.live.live_state import LiveState
from farside.scheduler.live.store.event_store import PAGE, Draft, EventStore
from farside.scheduler.live.transition import apply
from farside.scheduler.live.wake import LOOK_PERIOD_S, sleeping_at, wake
from farside.scheduler.live.wall_clock import WallClock

# Entries written in one transaction; a larger one would keep the brain waiting.
BATCH = 2000

_log = get_log("manager.api")


class LiveLog:
    """One state that follows the log, and one writer. All of it in one event loop, the database in threads."""

    def __init__(self, store: EventStore, folder: Path) -> None:
        self.state = LiveState()
        self.clock = WallClock()
        self._store = store
        self._folder = folder
        self._reading = asyncio.Lock()
        self._pending: list[tuple[Sequence[Draft], asyncio.Future[range]]] = []
        self._is_pending = asyncio.Event()
        self._watchers: set[asyncio.Event] = set()

    @property
    def store(self) -> EventStore:
        """The database; its calls block, so they belong into threads."""
        return self._store

    def now_s(self) -> float:
        """The time, never before that of the last entry."""
        return max(self.clock.now_s(), self.state.at_s)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Reads and writes until it is cancelled; ``on_ready`` is called once all of the log is read."""
        with sleeping_at(self._folder / API_WAKE) as sleeper:
            await self.catch_up()
            on_ready()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_writing())
                while True:
                    await self.catch_up()
                    await sleeper.sleep(LOOK_PERIOD_S)

    async def catch_up(self) -> None:
        """Reads on to the end of the log."""
        async with self._reading:
            while True:
                entries = await asyncio.to_thread(self._store.read, self.state.seq)
                for entry in entries:
                    apply(self.state, entry)
                if entries:
                    for watcher in self._watchers:
                        watcher.set()
                if len(entries) < PAGE:
                    return

    def watch(self, watcher: asyncio.Event) -> None:
        """``watcher`` is set whenever there is something new, until `unwatch`."""
        self._watchers.add(watcher)

    def unwatch(self, watcher: asyncio.Event) -> None:
        """It is set no more."""
        self._watchers.discard(watcher)

    async def write(self, events: Sequence[Event], cause: str) -> range:
        """Writes events, all or none, and returns when they are in the log and in `state`: their places.

        Raises:
            StoreError: The store could not do it; nothing was written.
        """
        if not events:
            return range(0)
        done: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._pending.append(([Draft(event=event, cause=cause) for event in events], done))
        self._is_pending.set()
        return await done

    async def _keep_writing(self) -> None:
        while True:
            await self._is_pending.wait()
            batch, count = [], 0
            while self._pending and count < BATCH:
                batch.append(self._pending.pop(0))
                count += len(batch[-1][0])
            if not self._pending:
                self._is_pending.clear()
            await self._write_batch(batch)

    async def _write_batch(self, batch: list[tuple[Sequence[Draft], asyncio.Future[range]]]) -> None:
        drafts = [draft for part, _ in batch for draft in part]
        try:
            places = await asyncio.to_thread(self._store.append, drafts, self.clock.now_s())
            wake(self._folder / WAKE)
            await self.catch_up()
        except Exception as error:  # each writer gets it: the store is full, or gone
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        first = places.start
        for part, done in batch:
            if not done.done():
                done.set_result(range(first, first + len(part)))
            first += len(part)
