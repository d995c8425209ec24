"""Garbage in a process of the manager: what stays is not looked at again and again, what nobody needs goes."""

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest

from farside.scheduler.manager import garbage_collection as garbage

DEADLINE_S = 90.0


class Circle:
    """Refers to itself, so that only a look at it finds that nobody else does."""

    def __init__(self) -> None:
        self.me = self


def while_aside(story: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        keeping = asyncio.ensure_future(garbage.keep_aside())
        await asyncio.sleep(0)
        try:
            await story()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(main())


def is_looked_at(one: object) -> bool:
    return any(other is one for other in gc.get_objects())


def test_what_a_look_found_in_use_is_looked_at_no_more() -> None:
    async def story() -> None:
        kept = Circle()
        was_looked_at = is_looked_at(kept)

        gc.collect()

        assert was_looked_at
        assert not is_looked_at(kept)

    while_aside(story)


def test_what_nobody_needs_when_it_is_looked_at_goes() -> None:
    async def story() -> None:
        gone = weakref.ref(Circle())

        gc.collect()

        assert gone() is None

    while_aside(story)


def test_what_was_put_aside_and_is_not_needed_any_more_goes_when_all_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> None:
        kept = Circle()
        gone = weakref.ref(kept)
        gc.collect()
        del kept

        async with asyncio.timeout(DEADLINE_S):
            while gone() is not None:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(garbage, "THOROUGH_PERIOD_S", 0.05)
    while_aside(story)


def test_all_is_as_it_was_when_the_process_is_about_to_end() -> None:
    async def story() -> None:
        gc.collect()

    while_aside(story)

    assert gc.get_freeze_count() == 0
