"""Long answers."""

import asyncio
from collections.abc import Mapping

import msgspec

from farside.scheduler.live.api.answer import SLICE, Rows


def shown(number: int) -> Mapping[str, object]:
    return {"number": number}


def test_a_long_list_is_whole_and_lets_others_have_their_turn() -> None:
    rows = Rows(shown)
    records = [(str(number), number) for number in range(10 * SLICE + 1)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def ask() -> bytes:
        beside = asyncio.ensure_future(others())
        answered = await rows.answer("numbers", records)
        beside.cancel()
        return bytes(answered.body)

    body = asyncio.run(ask())

    assert msgspec.json.decode(body) == {"numbers": [{"number": number} for number, _ in enumerate(records)]}
    assert turns >= 10


def test_an_empty_list_is_one() -> None:
    answered = asyncio.run(Rows(shown).answer("numbers", []))

    assert msgspec.json.decode(bytes(answered.body)) == {"numbers": []}
