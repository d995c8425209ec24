"""Tasks of one device: all end with the device, and a fault in one is recorded and ends only that one."""

import asyncio
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Self

from farside.log import get_log

log = get_log("blockdev.task")


# Not asyncio.TaskGroup: there the first task that fails ends all the others, and with them the device.
class Tasks:
    """A scope for tasks; leaving it cancels those that still run and waits for them."""

    def __init__(self) -> None:
        # The event loop itself refers to tasks only weakly: one that nobody else holds may vanish before it has ended.
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Again and again: a task that is being cancelled may still start another.
        while self._running:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def spawn(self, work: Coroutine[object, object, None], *, name: str) -> asyncio.Task[None]:
        """Run ``work`` as a task of this scope; ``name`` is logged when it fails."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(_guarded(work, name), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, it was never awaited
        return task


async def _guarded(work: Coroutine[object, object, None], name: str) -> None:
    try:
        await work
    # The top of a task: the device goes on serving pages, whatever failed in one of its tasks.
    except Exception as error:
        log.error("a task failed", task=name, cause=error)


async def all_but_one(events: Iterable[asyncio.Event], *, limit_s: float, last_s: float) -> bool:
    """Wait for all events; return False if some have not come.

    Up to ``limit_s`` while two or more are missing, and no longer than ``last_s`` in all for the last one.
    """
    begin_s = asyncio.get_running_loop().time()
    waiting = {asyncio.ensure_future(event.wait()) for event in events}
    try:
        while waiting:
            left_s = (limit_s if len(waiting) > 1 else last_s) - (asyncio.get_running_loop().time() - begin_s)
            done, waiting = await asyncio.wait(waiting, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return False
        return True
    finally:
        for future in waiting:
            future.cancel()
