"""Executors whose front is gone: a worker keeps them, loaded and warm, for the front that comes back.

A front that was killed lets go of its connections without a word. What it had asked for runs to its end, and nobody
gets the answer: the requests were lost with the front. Then the executor is handed over to the next connection that
asks for the same one.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from farside.agent.serving.handle import ExecutorHandle
from farside.agent.serving.life import PREPARE_S
from farside.agent.serving.wire import Open
from farside.log import get_log

# So long after a front has come back, or has lost one connection alone, an executor waits to be asked for.
KEPT_S = 30.0
# What the last front had asked for may take so long; an executor that takes longer is not handed over.
IDLE_S = 1.0
# Of a device, all that are kept: a front has the plan that runs, and one that it gets ready. Beyond it the oldest end.
KEPT_PCT_MAX = 200

_log = get_log("agent.serving")


@dataclass(slots=True, eq=False)
class _Kept:
    executor: ExecutorHandle
    wanted: Open
    # A front has come since: its time has begun, and no other front gives it more.
    is_offered: bool = False
    timer: asyncio.TimerHandle | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class KeptExecutors:
    """Those of one worker.

    Args:
        has_front: Whether a front is connected. Until one has come they are kept: the worker itself ends some time.
        kept_s: See KEPT_S.
    """

    def __init__(self, has_front: Callable[[], bool], *, kept_s: float = KEPT_S) -> None:
        self._has_front, self._kept_s = has_front, kept_s
        self._kept: list[_Kept] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._is_over = False

    def keep(self, executor: ExecutorHandle, wanted: Open) -> None:
        """Takes one whose front is gone; ``wanted``: what that had asked for. One that has ended is let go.

        Where those that are kept then have more than KEPT_PCT_MAX of the device, the oldest end.
        """
        if self._is_over or not executor.is_ready:
            self._close(executor)
            return
        one = _Kept(executor, wanted)
        self._kept.append(one)
        executor.hand_over(lambda _: self._look(one), lambda _: self._ended(one))
        self._look(one)
        self._arm(one)
        _log.info("an executor is kept for its front", pid=executor.pid)
        while len(self._kept) > 1 and sum(each.executor.part_pct for each in self._kept) > KEPT_PCT_MAX:
            oldest = self._kept[0]
            _log.info("more executors are kept than a front has; the oldest ends", pid=oldest.executor.pid)
            self._forget(oldest)
            self._close(oldest.executor)

    async def take(self, wanted: Open) -> ExecutorHandle | None:
        """One that is what ``wanted`` says, with nothing under way; None: there is none, a new one has to be started.

        The caller hands it over to whom it serves before it waits for anything.
        """
        while (one := next((one for one in self._kept if _is_same(one, wanted)), None)) is not None:
            self._forget(one)
            try:
                async with asyncio.timeout(IDLE_S):
                    await one.idle.wait()
            except TimeoutError:
                pass
            except BaseException:
                self._close(one.executor)
                raise
            if one.executor.is_ready and not one.executor.in_flight:
                return one.executor
            self._close(one.executor)
        return None

    def front_came(self) -> None:
        """The first front after a time without one: those that it is the first for are kept for ``kept_s`` from now."""
        for one in self._kept:
            if not one.is_offered:
                one.is_offered = True
                self._arm(one)

    async def end(self) -> None:
        """Ends all, and from now on each that comes."""
        self._is_over = True
        for one in list(self._kept):
            self._forget(one)
            self._close(one.executor)
        await asyncio.gather(*self._closing)

    def _look(self, one: _Kept) -> None:
        if not one.executor.in_flight:
            one.idle.set()

    def _ended(self, one: _Kept) -> None:
        one.idle.set()
        if one in self._kept:
            self._forget(one)

    def _forget(self, one: _Kept) -> None:
        one.stop_timer()
        self._kept.remove(one)

    def _arm(self, one: _Kept) -> None:
        one.stop_timer()
        one.timer = asyncio.get_running_loop().call_later(self._kept_s, self._is_due, one)

    def _is_due(self, one: _Kept) -> None:
        if not one.is_offered and not self._has_front():
            self._arm(one)
            return
        _log.info("no front has asked for an executor again; it ends", pid=one.executor.pid)
        self._forget(one)
        self._close(one.executor)

    def _close(self, executor: ExecutorHandle) -> None:
        task = asyncio.ensure_future(executor.close(0))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _is_same(one: _Kept, wanted: Open) -> bool:
    """Whether it has these models, of these files, on this part of this device; times are of no account."""
    has = msgspec.structs.replace(one.wanted, part_pct=one.executor.part_pct)
    found, asked = (
        msgspec.structs.replace(each, p99_s={}, prepare_pct=100, prepare_s=PREPARE_S) for each in (has, wanted)
    )
    return found == asked
