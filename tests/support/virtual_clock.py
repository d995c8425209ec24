"""A clock that tests move."""

import asyncio
import heapq


class VirtualClock:
    """A clock that stands still until a test moves it with `advance`."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s
        self._sequence = 0
        # (when, order of arrival, what is woken): the order makes equal times deterministic.
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now_s(self) -> float:
        """The time that the last `advance` reached."""
        return self._now_s

    async def sleep_until_s(self, when_s: float) -> None:
        """Returns once `advance` has reached ``when_s``."""
        if when_s <= self._now_s:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sequence += 1
        heapq.heappush(self._sleepers, (when_s, self._sequence, future))
        await future

    async def advance(self, seconds: float) -> None:
        """Moves time on, waking sleepers in order and letting each run until it waits again."""
        target_s = self._now_s + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= target_s:
            when_s, _, future = heapq.heappop(self._sleepers)
            self._now_s = max(self._now_s, when_s)
            if not future.done():
                future.set_result(None)
            await self._settle()
        self._now_s = target_s

    async def _settle(self) -> None:
        # Tasks that woke may wake others; a handful of turns lets a short chain run to its next wait.
        for _ in range(10):
            await asyncio.sleep(0)
