"""Awaiting work in tasks of its own: one whose failure hides no cancellation, or the first of several to end."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

ResultT = TypeVar("ResultT")


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


async def wait_first(*works: Coroutine[object, object, object]) -> None:
    """Return when one of these has ended; the others are cancelled, and all are when the caller is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
