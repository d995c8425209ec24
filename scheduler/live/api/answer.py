"""Answers: JSON by msgspec. The framework's own encoder takes far longer for a long list of jobs."""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from fastapi import Response

from farside.scheduler.live.view import Shown

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
        """A record as it is shown, to be put into an `answer`. It never changes: another one is another object."""
        kept = self._kept.get(name)
        if kept is None or kept[0] is not record:
            kept = self._kept[name] = record, msgspec.Raw(_ENCODER.encode(self._show(record)))
        return kept[1]
