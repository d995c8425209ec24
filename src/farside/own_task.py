"""Awaiting work in tasks of its own: so that no failure hides a cancellation, until the first of several ends, and on
whatever it raises.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

ResultT = TypeVar("ResultT")
AGAIN_S = 1.0


async def in_own_task(work: Coroutine[object, object, ResultT]) -> ResultT:
    """Awaits ``work`` in a task of its own: for a loop that survives failures, and must end when cancelled.

    In the caller's own task two things go wrong. A TaskGroup whose child fails leaves its task "being cancelled" in
    Python 3.11, and timeouts in it then end as cancellations (python/cpython issue 116720). And a cancellation that
    arrives while the work is failing is lost, since the work ends with its failure: here the cancellation wins.
    """
    caller = asyncio.current_task()
    try:
        return await asyncio.get_running_loop().create_task(work)
    except Exception:
        if caller is not None and caller.cancelling():
            raise asyncio.CancelledError from None
        raise


@asynccontextmanager
async def beside(
    work: Callable[[], Coroutine[object, object, None]], on_failure: Callable[[Exception], None]
) -> AsyncIterator[None]:
    """Runs ``work`` while the body runs. If it raises, ``on_failure`` is called, and it begins anew after AGAIN_S."""

    async def kept_up() -> None:
        while True:
            try:
                await in_own_task(work())
                return
            except Exception as error:  # the top of this task: whatever it is, the body needs the work
                on_failure(error)
            await asyncio.sleep(AGAIN_S)

    task = asyncio.ensure_future(kept_up())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def wait_first(*works: Coroutine[object, object, object]) -> None:
    """Return when one of these has ended; the others are cancelled, and all are when the caller is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
