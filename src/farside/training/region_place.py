"""Where each tensor's gradients and results are in a member's region.

A tensor's pieces lie one behind the other there, also where it is cut into several chunks: each of these but the last
fills whole cache lines. So a tensor has one place, and is copied by one call.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from farside.agent.aggregator.layout import ITEM_BYTES, Layout

Place: TypeAlias = Any  # an array of ctypes: a writable buffer at an address, which owns nothing


class Member(Protocol):
    """What is used of the engine's `Member`."""

    def gradient(self, chunk: int, iteration: int) -> Any:
        """Buffer of a chunk's gradient."""

    def result(self, chunk: int) -> Any:
        """Buffer of a chunk's result."""


class RegionPlaces:
    """Places of all tensors of a layout. They must not be touched any more once the member is closed."""

    def __init__(self, layout: Layout, member: Member) -> None:
        self._even = _places(layout, lambda chunk: member.gradient(chunk, 0))
        self._odd = _places(layout, lambda chunk: member.gradient(chunk, 1))
        self._results = _places(layout, member.result)

    def gradients(self, iteration: int) -> tuple[Place, ...]:
        """Where the gradients of an iteration go, by tensor; its parity decides."""
        return self._odd if iteration & 1 else self._even

    @property
    def results(self) -> tuple[Place, ...]:
        """Where results are, by tensor."""
        return self._results


def _places(layout: Layout, buffer_of: Callable[[int], Any]) -> tuple[Place, ...]:
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for chunk, pieces in enumerate(layout.chunks):
        at = ctypes.addressof(ctypes.c_char.from_buffer(buffer_of(chunk)))
        for piece in pieces:
            starts.setdefault(piece.tensor, at)
            assert ends.get(piece.tensor, at) == at, "the pieces of a tensor lie one behind the other"
            at += piece.count * ITEM_BYTES[layout.tensors[piece.tensor].dtype]
            ends[piece.tensor] = at
    return tuple(
        (ctypes.c_char * (ends[tensor] - starts[tensor])).from_address(starts[tensor])
        for tensor in range(len(layout.tensors))
    )
