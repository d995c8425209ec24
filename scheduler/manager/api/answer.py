"""JSON answers, encoded by msgspec: much faster than the framework's own encoder for long lists of jobs."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Protocol, TypeVar

import msgspec
from fastapi import Header, Response
from starlette.types import Receive, Scope, Send

# So long a listing is renewed before others have their turn.
SLICE_S = 0.002
# What a client has of a listing, if it has one, as it was told by `ETag`.
Known = Annotated[str, Header(alias="If-None-Match", description="The `ETag` of an earlier answer, or `*`")]

_ENCODER = msgspec.json.Encoder()
# Marks are of this process; another one counts anew.
_PROCESS = secrets.token_hex(6)


def answer(value: object, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(_ENCODER.encode(value), status_code=status, media_type="application/json")


class Renewable(Protocol):
    """What is brought up to date in steps."""

    def renew(self) -> bool:
        """Takes one step; False: it is up to date."""
        ...


Listing = TypeVar("Listing", bound=Renewable)


async def up_to_date(look: Callable[[], Listing]) -> Listing:
    """A listing that shows all as it is at this moment. ``look`` takes in what there is, at the first and each turn."""
    while True:
        listing, end_s = look(), time.perf_counter() + SLICE_S
        while listing.renew():
            if time.perf_counter() >= end_s:
                break
        else:
            return listing
        await asyncio.sleep(0)


def listed(mark: str, pieces: Callable[[], Sequence[bytes]], known: str) -> Response:
    """A listing that its mark names in this process, or 304 for who knows it; see `Known`."""
    tag = f'"{_PROCESS}-{mark}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}  # a browser's next user may be another one
    if {one.strip().removeprefix("W/") for one in known.split(",")} & {tag, "*"}:
        return Response(status_code=304, headers=headers)
    return _Pieces(pieces(), headers)


class _Pieces(Response):
    """A long JSON answer: each piece goes out when the reader has taken the one before, and none of them is copied."""

    media_type = "application/json"

    def __init__(self, pieces: Sequence[bytes], headers: dict[str, str]) -> None:
        super().__init__(headers={**headers, "Content-Length": str(sum(map(len, pieces)))})
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends it."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)  # one who has gone is noticed, and asyncio has no line to say of each piece
        await send({"type": "http.response.body", "body": b"", "more_body": False})
