"""The virtual clock wakes sleepers in order, and only when told."""

import asyncio

from farside.clock import RealClock
from tests.support.virtual_clock import VirtualClock


async def three_sleepers() -> list[str]:
    clock = VirtualClock()
    seen: list[str] = []

    async def sleeper(name: str, when_s: float) -> None:
        await clock.sleep_until_s(when_s)
        seen.append(f"{name}@{clock.now_s():g}")

    async with asyncio.TaskGroup() as tasks:
        for name, when_s in (("late", 5.0), ("early", 1.0), ("twin", 1.0)):
            tasks.create_task(sleeper(name, when_s))
        await clock.advance(2.0)
        seen.append(f"now@{clock.now_s():g}")
        await clock.advance(3.0)
    return seen


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    assert asyncio.run(three_sleepers()) == ["early@1", "twin@1", "now@2", "late@5"]


def test_a_time_that_is_past_does_not_wait() -> None:
    asyncio.run(VirtualClock(start_s=10.0).sleep_until_s(3.0))
    asyncio.run(RealClock().sleep_until_s(0.0))
