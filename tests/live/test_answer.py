"""Long answers."""

import asyncio
from collections.abc import Sequence

import pytest
from starlette.types import Message

from farside.scheduler.manager.api import answer as module
from farside.scheduler.manager.api.answer import listed, up_to_date


class Slow:
    """A listing each step of which takes as long as there is before others have their turn."""

    def __init__(self, steps: int) -> None:
        self.steps, self.looks = steps, 0

    def look(self) -> "Slow":
        self.looks += 1
        return self

    def renew(self) -> bool:
        self.steps -= 1
        return self.steps >= 0


def test_a_long_list_lets_others_have_their_turn_and_looks_again_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    listing, turns = Slow(steps=10), 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def ask() -> None:
        beside = asyncio.ensure_future(others())
        await up_to_date(listing.look)
        beside.cancel()

    asyncio.run(ask())

    assert listing.steps == -1
    assert turns >= 10
    assert listing.looks >= turns


def sent(mark: str, pieces: Sequence[bytes], known: str = "") -> list[Message]:
    found: list[Message] = []

    async def send(message: Message) -> None:
        found.append(message)

    async def receive() -> Message:
        raise AssertionError("it asks for nothing")

    asyncio.run(listed(mark, lambda: pieces, known)({"type": "http"}, receive, send))
    return found


def test_the_pieces_of_an_answer_go_out_as_they_are_and_their_length_before_them() -> None:
    pieces = [b'{"jobs":[', b"1", b"]}"]

    start, *bodies = sent("1-1", pieces)

    assert dict(start["headers"])[b"content-length"] == b"12"
    assert [message["body"] for message in bodies] == [*pieces, b""]
    assert all(message["body"] is piece for message, piece in zip(bodies, pieces, strict=False))
    assert [message["more_body"] for message in bodies] == [True, True, True, False]


def test_who_knows_an_answer_is_not_sent_it_again() -> None:
    tag = dict(sent("1-1", [b"{}"])[0]["headers"])[b"etag"].decode()

    for known in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        start, *_ = sent("1-1", [b"{}"], known)
        assert start["status"] == 304
        assert dict(start["headers"])[b"etag"].decode() == tag
    assert [sent("1-2", [b"{}"], known)[0]["status"] for known in (tag, "", "\x00")] == [200] * 3


def test_no_cache_gives_one_persons_answer_to_another_unasked() -> None:
    start, *_ = sent("1-1", [b"{}"])

    assert dict(start["headers"])[b"cache-control"] == b"private, no-cache"
