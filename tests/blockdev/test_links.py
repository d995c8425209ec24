"""How long a server that takes a device up waits for its donors."""

import asyncio
from collections.abc import Callable

from farside.blockdev.task import all_but_one

NEVER_S = 3600.0  # pytest's own limit ends a test that waits so long


async def waited(
    *, came: int, missing: int, limit_s: float, last_s: float, meanwhile: Callable[[list[asyncio.Event]], None]
) -> bool:
    events = [asyncio.Event() for _ in range(came + missing)]
    for event in events[:came]:
        event.set()
    asyncio.get_running_loop().call_soon(meanwhile, events)
    return await all_but_one(events, limit_s=limit_s, last_s=last_s)


def nothing(_: list[asyncio.Event]) -> None:
    pass


def comes(*numbers: int) -> Callable[[list[asyncio.Event]], None]:
    def come(events: list[asyncio.Event]) -> None:
        for number in numbers:
            events[number].set()

    return come


def test_none_to_wait_for_is_all() -> None:
    assert asyncio.run(all_but_one([], limit_s=NEVER_S, last_s=NEVER_S))


def test_all_that_come_are_waited_for() -> None:
    assert asyncio.run(waited(came=1, missing=2, limit_s=NEVER_S, last_s=NEVER_S, meanwhile=comes(1, 2)))


def test_the_last_one_is_not_waited_for_long() -> None:
    assert not asyncio.run(waited(came=1, missing=1, limit_s=NEVER_S, last_s=0.01, meanwhile=nothing))


def test_one_that_is_the_last_by_then_is_not_either() -> None:
    assert not asyncio.run(waited(came=0, missing=2, limit_s=NEVER_S, last_s=0.01, meanwhile=comes(0)))


def test_two_are_waited_for_beyond_what_one_is_worth() -> None:
    def later(events: list[asyncio.Event]) -> None:
        # The last one's time is over long before; with both there at once nobody is missing.
        asyncio.get_running_loop().call_later(0.05, comes(0, 1), events)

    assert asyncio.run(waited(came=0, missing=2, limit_s=NEVER_S, last_s=0.0, meanwhile=later))


def test_nobody_is_waited_for_beyond_the_limit() -> None:
    assert not asyncio.run(waited(came=0, missing=2, limit_s=0.01, last_s=NEVER_S, meanwhile=nothing))
