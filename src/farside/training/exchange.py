"""One member's iterations: which gradients are in place, what is pushed and when, which tensors are behind.

How it works
  An iteration begins with the first gradient. Before that is put into the region, every result of the iteration before
  is there: that is the rule on which all of `kmod_shim/engine/chunk.h` rests.
  Tensors are filled in any order and by several threads. A chunk is complete when every tensor with a piece in it is
  filled. Complete chunks are pushed in descending order alone, the same on all members, so that an Aggregator reads
  their streams in step; as many as are complete go with one call of the engine.
  Results arrive in the region by themselves. A tensor is behind until its result has been copied to where it is used;
  the caller copies, and says so.
  [autops §4.3.1: push and pull of the Agent]
"""

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from farside.agent.aggregator.layout import Layout


class Session(Protocol):
    """What is used of a `MemberSession`: its calls end with one line if the job can't go on."""

    @property
    def layout(self) -> Layout:
        """The model, cut into chunks."""
        ...

    def push(self, first: int, count: int, iteration: int, *, absent: bool) -> None:
        """Push the gradients of these chunks; ``absent``: this member has none, and zeros are in their place."""

    def wait(self, first: int, count: int, version: int) -> None:
        """Block until these chunks have a version."""


class Refilled(Exception):
    """A gradient came for a tensor whose gradient of this iteration is there already."""

    def __init__(self, tensor: int) -> None:
        super().__init__(tensor)
        self.tensor = tensor


class Exchange:
    """Iterations of one member. ``version``: how many are complete; a tensor that is up to date has that version."""

    def __init__(self, session: Session, *, version: int, begins: Callable[[int], None] | None = None) -> None:
        """``begins`` is called with the iteration's number, all results before it being there, before it is pushed.

        It has to copy what is behind: a result's place is written again once this iteration has been pushed.
        """
        self.version = version
        self._session, self._begins = session, begins
        layout = session.layout
        self._pieces = [len(pieces) for pieces in layout.chunks]
        chunks_of: list[list[int]] = [[] for _tensor in layout.tensors]
        for chunk, pieces in enumerate(layout.chunks):
            for piece in pieces:
                chunks_of[piece.tensor].append(chunk)
        self._chunks_of = [tuple(chunks) for chunks in chunks_of]
        self._tensors_of = [frozenset(piece.tensor for piece in pieces) for pieces in layout.chunks]
        self._held = [version] * len(layout.tensors)
        self._behind = 0
        self._lock = threading.Lock()
        self._has_begun = False
        self._reset()

    def _reset(self) -> None:
        self._left = list(self._pieces)
        self._is_filled = [False] * len(self._chunks_of)
        self._is_absent = [True] * len(self._left)  # no gradient of a chunk has come
        self._next = len(self._left) - 1  # chunks above it have been pushed

    # Pushing

    @property
    def iteration(self) -> int:
        """The iteration whose gradients are gathered."""
        return self.version + 1

    @property
    def has_begun(self) -> bool:
        """Whether a gradient of this iteration has come."""
        return self._has_begun

    def is_filled(self, tensor: int) -> bool:
        """Whether its gradient of this iteration is in place."""
        return self._is_filled[tensor]

    def begin(self, tensor: int) -> None:
        """Before a gradient is put in its place: waits for what has to be held first.

        Raises:
            Refilled: it is there already; nothing may be written to its place.
        """
        with self._lock:
            if self._is_filled[tensor]:
                raise Refilled(tensor)
            if not self._has_begun:
                self._session.wait(0, len(self._pieces), self.version)
                if self._begins is not None:
                    self._begins(self.iteration)
                self._has_begun = True

    def fill(self, tensor: int, *, is_absent: bool = False) -> None:
        """The gradient is in place; pushes what is complete and has its turn.

        ``is_absent``: there is none, and zeros are in place. A chunk of which that is true of all tensors is pushed so.
        """
        with self._lock:
            if self._is_filled[tensor]:
                raise Refilled(tensor)
            self._is_filled[tensor] = True
            for chunk in self._chunks_of[tensor]:
                self._left[chunk] -= 1
                self._is_absent[chunk] &= is_absent
            self._push_complete()

    def _push_complete(self) -> None:
        # Under the lock: pushes of two threads keep their order. The calls do not wait for the other end.
        while self._next >= 0 and not self._left[self._next]:
            last, is_absent = self._next, self._is_absent[self._next]
            while self._next >= 0 and not self._left[self._next] and self._is_absent[self._next] == is_absent:
                self._next -= 1
            self._session.push(self._next + 1, last - self._next, self.iteration, absent=is_absent)

    def missing(self) -> list[int]:
        """Tensors whose gradients of this iteration have not come."""
        return [tensor for tensor, is_filled in enumerate(self._is_filled) if not is_filled]

    def sharing(self, tensors: Iterable[int]) -> list[int]:
        """Those of them that share a chunk with a tensor that is none of them."""
        chosen = set(tensors)
        return [
            one for one in sorted(chosen) if any(self._tensors_of[chunk] - chosen for chunk in self._chunks_of[one])
        ]

    def finish(self) -> None:
        """The iteration is over: all of it has been pushed, and from now on every tensor is behind."""
        assert self._next < 0, "the iteration is not complete"
        self._has_begun = False
        self.version += 1
        self._behind = len(self._held)
        self._reset()

    # Results

    @property
    def has_stale(self) -> bool:
        """Whether a tensor is behind."""
        return self._behind > 0

    def stale(self, tensors: Iterable[int]) -> list[int]:
        """Those of them that are behind."""
        held, version = self._held, self.version
        return [tensor for tensor in tensors if held[tensor] < version]

    def all_stale(self) -> list[int]:
        """Every tensor that is behind."""
        return self.stale(range(len(self._held))) if self._behind else []

    def wait(self, tensors: Iterable[int], version: int | None = None) -> None:
        """Block until the results of these tensors are in the region; of ``version``, or of the last iteration."""
        wanted = self.version if version is None else version
        for first, count in runs_of({chunk for tensor in tensors for chunk in self._chunks_of[tensor]}):
            self._session.wait(first, count, wanted)

    def arrived(self, tensors: Iterable[int]) -> None:
        """The results of these tensors have been copied to where they are used."""
        for tensor in tensors:
            if self._held[tensor] < self.version:
                self._held[tensor] = self.version
                self._behind -= 1


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Numbers as runs of (first, count), descending: what was pushed first comes back first."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers, reverse=True):
        if runs and runs[-1][0] == number + 1:
            runs[-1] = (number, runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    return runs
