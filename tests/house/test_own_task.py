"""A loop that outlives failures, and ends when it is told."""

import asyncio

import pytest

from farside.own_task import in_own_task


async def _fail() -> None:
    raise OSError("gone")


async def _fail_when_cancelled() -> None:
    try:
        await asyncio.Event().wait()
    finally:
        raise OSError("gone")


async def _cancelled_while_it_waits() -> None:
    task = asyncio.create_task(in_own_task(_fail_when_cancelled()))
    for _ in range(3):  # until the work waits
        await asyncio.sleep(0)
    task.cancel()
    await task


def test_a_failure_is_the_callers() -> None:
    with pytest.raises(OSError, match="gone"):
        asyncio.run(in_own_task(_fail()))


def test_a_cancellation_that_meets_a_failure_wins() -> None:
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(_cancelled_while_it_waits())
