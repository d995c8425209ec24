"""Answers: JSON by msgspec. The framework's own encoder takes far longer for a long list of jobs."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec
from fastapi import Response

from farside.scheduler.live.view import Shown

# So many records are put into an answer before others have their turn: about a millisecond.
SLICE = 500

Record = TypeVar("Record")
_ENCODER = msgspec.json.Encoder()


def answer(value: object, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(_ENCODER.encode(value), status_code=status, media_type="application/json")


class Rows(Generic[Record]):
    """Jobs or nodes as JSON, kept: ten thousand wait, and few of them are others than a moment ago."""

    def __init__(self, show: Callable[[Record], Shown]) -> None:
        self._show = show
        self._kept: dict[str, tuple[Record, msgspec.Raw]] = {}

    def row(self, name: str, record: Record) -> msgspec.Raw:
        """A record as shown, to be put into an `answer`. It never changes: what is the same object is the same."""
        kept = self._kept.get(name)
        if kept is None or (kept[0] is not record and kept[0] != record):
            kept = self._kept[name] = record, msgspec.Raw(_ENCODER.encode(self._show(record)))
        return kept[1]

    async def answer(self, what: str, records: Sequence[tuple[str, Record]]) -> Response:
        """``{what: [...]}`` of these records by their names. A list of ten thousand does not keep others waiting."""
        parts: list[bytes] = []
        for begin in range(0, len(records), SLICE):
            if parts:
                await asyncio.sleep(0)
            rows = [self.row(name, record) for name, record in records[begin : begin + SLICE]]
            parts.append(_ENCODER.encode(rows)[1:-1])
        body = b'{"%b":[%b]}' % (what.encode(), b",".join(parts))
        return Response(body, media_type="application/json")
