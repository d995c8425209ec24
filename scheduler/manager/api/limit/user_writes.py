"""Limits on what a user writes into the log at a time: entries and bytes that come at once, and at a steady rate.

How it works
  What a request writes takes its place when the request comes. The first of a user's are written at once, the others at
  a steady rate, and their answers wait for that. A request that would wait for longer than `PATIENCE_S` is refused, and
  is told so a moment later, as a client that asks again at once would cost the manager more than one that is served. Of
  one user's requests at most `WRITERS` write at the same time: those of others do not queue behind all of them. [M5]

  A cancellation is never refused, so it may owe bytes, but no more than come back within `PATIENCE_S`: whoever has
  cancelled ten thousand jobs submits again as soon as one who has submitted too much. What is not paid is bounded all
  the same, as each job was submitted, and is cancelled once.

  This bounds a minute. The queue and an hour have limits of their own, which follow the log (queue_quota.py).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from farside.scheduler.manager.auth.caller import Caller
from farside.scheduler.manager.model.submit_rate import TooMany
from farside.scheduler.manager.token_bucket import TokenBucket
from farside.units import format_seconds

BURST_BYTES = 1 << 20
"""Two submissions with the longest arguments, or two hundred with a usual environment."""
BYTES_PER_S = 16384.0
BURST_ENTRIES = 100
ENTRIES_PER_S = 20.0
"""Three times what a user submits within an hour (`max_hourly_jobs_per_user`), if that goes on. Each costs a cycle of
the scheduler process and a commit of the database, for which others wait."""
ENTRY_BYTES = 512
"""What an entry takes in the database beside what was asked: its cause, checksum, index and what follows."""
PATIENCE_S = 20.0
"""A third of the time that a client waits for an answer."""
REFUSAL_S = 1.0
WRITERS = 1


class WriteBudget:
    """Entries and bytes that one user may write."""

    def __init__(self, now_s: float) -> None:
        self._bytes = TokenBucket(BURST_BYTES, BYTES_PER_S, now_s)
        self._entries = TokenBucket(BURST_ENTRIES, ENTRIES_PER_S, now_s)

    def wait_s(self, entries: int, size_bytes: int, now_s: float) -> float:
        """How long so much would wait if it came now."""
        return max(self._bytes.wait_s(size_bytes, now_s), self._entries.wait_s(entries, now_s))

    def take(self, entries: int, size_bytes: int, now_s: float) -> None:
        """Counts so much as written, now or when its wait is over."""
        self._bytes.take(size_bytes, now_s)
        self._entries.take(entries, now_s)

    def take_cancel(self, now_s: float) -> None:
        """Counts a cancellation, as far as what is owed then comes back within `PATIENCE_S`."""
        self._bytes.take(min(ENTRY_BYTES, self._bytes.left(now_s) + PATIENCE_S * BYTES_PER_S), now_s)


@dataclass(slots=True)
class _User:
    budget: WriteBudget
    writing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(WRITERS))


class UserWrites:
    """The budgets of all users. Operators have none.

    ``is_on``: False: nobody waits.
    """

    def __init__(
        self,
        now_s: Callable[[], float],
        *,
        is_on: bool,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._now_s, self._is_on, self._sleep = now_s, is_on, sleep
        self._users: dict[str, _User] = {}

    @asynccontextmanager
    async def turn(self, caller: Caller, size_bytes: int = 0) -> AsyncIterator[None]:
        """Enters the block when the caller may write one more entry, with so much that was asked.

        Raises:
            TooMany: That would take too long; nothing was counted.
        """
        if not self._is_on or caller.is_operator:
            yield
            return
        self.expect(caller, size_bytes)
        user = self._user(caller)
        wait_s = user.budget.wait_s(1, ENTRY_BYTES + size_bytes, self._now_s())
        user.budget.take(1, ENTRY_BYTES + size_bytes, self._now_s())
        await self._wait(wait_s)
        async with user.writing:
            yield

    def expect(self, caller: Caller, size_bytes: int) -> None:
        """Refuses a request that `turn` would refuse, before its body is looked into, which costs most.

        A body may be longer than what is written of it, and so counts as what may be written at once, at most.

        Raises:
            TooMany: What it would write would take too long; nothing was counted.
        """
        if not self._is_on or caller.is_operator:
            return
        size_bytes = min(ENTRY_BYTES + size_bytes, BURST_BYTES)
        wait_s = self._user(caller).budget.wait_s(1, size_bytes, self._now_s())
        if wait_s > PATIENCE_S:
            raise too_much(caller.name, wait_s - PATIENCE_S)

    @asynccontextmanager
    async def cancelling(self, caller: Caller) -> AsyncIterator[None]:
        """Enters the block when the caller may cancel one more job, after `PATIENCE_S` at the latest.

        A job is cancelled once, so what these write is bounded by what was submitted, and all may be cancelled quickly.
        Nor does the user's next submission wait longer for it, see `WriteBudget.take_cancel`.
        """
        if not self._is_on or caller.is_operator:
            yield
            return
        user = self._user(caller)
        wait_s = user.budget.wait_s(0, ENTRY_BYTES, self._now_s())
        user.budget.take_cancel(self._now_s())
        await self._wait(min(wait_s, PATIENCE_S))
        async with user.writing:
            yield

    async def before_refusal(self) -> None:
        """Waits until a request that asked for too much may be refused."""
        await self._wait(REFUSAL_S if self._is_on else 0.0)

    async def _wait(self, wait_s: float) -> None:
        if wait_s:
            await self._sleep(wait_s)

    def _user(self, caller: Caller) -> _User:
        if caller.name not in self._users:
            self._users[caller.name] = _User(WriteBudget(self._now_s()))
        return self._users[caller.name]


def too_much(user: str, after_s: float) -> TooMany:
    """The refusal of a request that would wait too long."""
    return TooMany(
        f"{user} asks for more than the manager writes down at a time",
        hint=f"come again in {format_seconds(after_s)}; an array is one entry, however many tasks it has, "
        "and long arguments and variables belong into files",
        after_s=after_s,
        noted="more than the manager writes down at a time",
    )
