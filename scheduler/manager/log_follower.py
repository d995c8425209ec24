"""Log follower: reads the event log to keep the API's state up to date, and writes the API's entries in groups."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from farside.scheduler.manager.decider.scheduler_process import API_WAKE, WAKE
from farside.scheduler.manager.log_wakeup import LOOK_PERIOD_S, sleeping_at, wake
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.event import Entry, Event, SchedulerTookLead
from farside.scheduler.manager.model.state import LiveState, keyed_request_of
from farside.scheduler.manager.store.event_store import AskedBefore, EventStore
from farside.scheduler.manager.store.load import first_state
from farside.scheduler.manager.store.transaction import PAGE, Draft
from farside.scheduler.manager.wall_clock import WallClock

# Entries written in one transaction; a larger one would keep the scheduler process waiting.
BATCH = 2000
# So long a page of entries is applied before others have their turn.
SLICE_S = 0.005
ALL = ""

_Part: TypeAlias = tuple[Sequence[Draft], asyncio.Future[range]]
"""What one writer wants to write, and who waits for it."""


class LiveLog:
    """One state that follows the log, and one writer. All of it in one event loop.

    The calls of ``store``, the database, block, so they belong into threads.
    """

    def __init__(self, store: EventStore, folder: Path) -> None:
        self.state = LiveState()
        self.clock = WallClock(folder)
        self.store = store
        self._folder = folder
        # Two tasks move the state on: the loop that reads and the writer. Without the lock both could apply the same
        # entries, as each waits for a thread between reading its place and applying.
        self._reading = asyncio.Lock()
        self._pending: list[_Part] = []
        self._is_pending = asyncio.Event()
        self._watchers: dict[str, set[asyncio.Event]] = {}  # by node; who watches all is under ALL

    def now_s(self) -> float:
        """The time, never before that of the last entry."""
        return max(self.clock.now_s(), self.state.at_s)

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Reads and writes until it is cancelled; ``on_ready`` is called once all of the log is read."""
        # The socket is there before the first read, so an entry that is written during the read wakes the loop.
        with sleeping_at(self._folder / API_WAKE) as sleeper:
            self.state = await asyncio.to_thread(first_state, self.store)
            await self.catch_up()
            # The clock of this machine may be behind that of the machine which wrote the last entry.
            self.clock.not_before(self.state.at_s)
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
                entries = await asyncio.to_thread(self.store.read, self.state.seq)
                await self._follow(entries)
                # Fewer than a page means that the log ended there; an empty read is saved.
                if len(entries) < PAGE:
                    return

    async def _catch_up_with(self, written: Sequence[Entry]) -> None:
        """Follows the log when its last entries are known: only earlier entries of other writers are read."""
        async with self._reading:
            # The entries just written need not be read again; this holds only if no other writer came in between.
            if written and self.state.seq == written[0].seq - 1:
                await self._follow(written)
                return
        await self.catch_up()

    async def _follow(self, entries: Sequence[Entry]) -> None:
        """Applies entries, and lets others have the loop now and then: a page of them takes a tenth of a second."""
        since_s = time.perf_counter()
        for entry in entries:
            version = self.state.aggregation.version
            touched = apply(self.state, entry)
            concerned = self._concerned(entry.event, touched)
            if self.state.aggregation.version != version:
                concerned = {*concerned, *self._aggregating()}
            for node in concerned:
                for watcher in self._watchers.get(node, ()):
                    watcher.set()
            if time.perf_counter() - since_s > SLICE_S:
                # A request that is answered here sees the state between two entries of a page, which is a state that
                # the log had.
                await asyncio.sleep(0)
                since_s = time.perf_counter()

    def _concerned(self, event: Event, touched: Iterable[str]) -> Iterable[str]:
        """The nodes that may need other commands now; commands have the generation of the leader."""
        if isinstance(event, SchedulerTookLead):
            return self._watchers
        jobs = self.state.jobs
        return {ALL, getattr(event, "node", ALL), *(task.node for job_id in touched for task in jobs[job_id].tasks)}

    def _aggregating(self) -> Iterable[str]:
        """The nodes that have part in shared aggregation, or had a moment ago."""
        state = self.state
        members = (task.node for job_id in state.aggregation.jobs for task in state.jobs[job_id].tasks)
        return (*state.aggregation.numbers, *members)

    def watch(self, watcher: asyncio.Event, node: str = ALL) -> None:
        """Sets ``watcher`` whenever there is something new (about the commands of a node), until `unwatch`."""
        self._watchers.setdefault(node, set()).add(watcher)

    def unwatch(self, watcher: asyncio.Event, node: str = ALL) -> None:
        """Stops setting ``watcher``."""
        self._watchers[node].discard(watcher)
        if not self._watchers[node]:
            del self._watchers[node]

    async def write(self, events: Sequence[Event], cause: str) -> range:
        """Writes events, all or none, and returns when they are in the log and in `state`: their places.

        Raises:
            AskedBefore: One is a request with a key that the log has already; none of these was written.
            StoreError: The store could not do it; nothing was written.
        """
        if not events:
            return range(0)
        # All waiting writers share one transaction: a commit syncs the disk, and costs the same for one entry and for
        # many.
        done: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        self._pending.append(([Draft(event=event, cause=cause) for event in events], done))
        self._is_pending.set()
        return await done

    async def _keep_writing(self) -> None:
        while True:
            await self._is_pending.wait()
            batch, count = [], 0
            while self._pending and count < BATCH:
                # A writer's events are never split: they are all in one transaction, even where it exceeds BATCH.
                batch.append(self._pending.pop(0))
                count += len(batch[-1][0])
            if not self._pending:
                self._is_pending.clear()
            await self._write_batch(batch)

    async def _write_batch(self, batch: list[_Part]) -> None:
        try:
            batch, entries = await self._append(batch)
            # The scheduler process is woken before this state is moved on, so both work at the same time.
            wake(self._folder / WAKE)
            await self._catch_up_with(entries)
        except Exception as error:  # each writer gets it: the store is full, or gone
            for _, done in batch:
                if not done.done():
                    done.set_exception(error)
            return
        first = entries[0].seq if entries else 0
        for part, done in batch:
            # A writer whose request was cancelled no longer waits; its entries are in the log all the same.
            if not done.done():
                done.set_result(range(first, first + len(part)))
            first += len(part)

    async def _append(self, batch: list[_Part]) -> tuple[list[_Part], list[Entry]]:
        """The entries that a batch has become; requests that the log has already get `AskedBefore`."""
        while True:
            # Each round removes those that the log has by now, so the loop ends.
            batch = [part for part in batch if not self._is_repeat(part)]
            drafts = [draft for part, _ in batch for draft in part]
            # Only requests with a key can be repeats; for all others the store is not asked to read anything.
            read_to = self.state.seq if any(keyed_request_of(draft.event) for draft in drafts) else None
            try:
                return batch, await asyncio.to_thread(self.store.append, drafts, self.clock.now_s(), read_to=read_to)
            except AskedBefore:  # it came to another manager as well, a moment ago
                await self.catch_up()

    def _is_repeat(self, part: _Part) -> bool:
        drafts, done = part
        is_known = any(keyed_request_of(draft.event) in self.state.requests for draft in drafts)
        if is_known and not done.done():
            done.set_exception(AskedBefore("the log has this request already"))
        return is_known
