"""A loop that outlives failures, and ends when it is told."""

import asyncio

import pytest

from farside import own_task
from farside.own_task import in_own_task
from tests.support.waiting import DEADLINE_S


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


def test_work_beside_a_body_is_told_of_when_it_fails_and_goes_on_until_the_body_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_task, "AGAIN_S", 0.0)
    failures, ends = list[str](), list[str]()

    async def test() -> None:
        goes_on = asyncio.Event()

        async def work() -> None:
            if not failures:
                raise ValueError("a fault of ours")
            goes_on.set()
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("cancelled")

        async with own_task.beside(work, lambda error: failures.append(str(error))):
            await goes_on.wait()
            assert ends == []

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))

    assert (failures, ends) == (["a fault of ours"], ["cancelled"])
