"""Input that is drawn: by a seed, block by block, so that it is never in memory as a whole.

The number of rows and columns sets how long a program computes, and how much it pushes, independently of each other.
"""

from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np

_TRUTH = 1 << 32
"""In place of a block's number: what the data were made from."""
_NOISE = 0.1


class DrawnBlocks(Sequence[Any]):
    """Blocks that are drawn when they are asked for, for programs that never write to them."""

    may_leave_memory = True

    def __init__(self, number: int, draw: Callable[[int], Any]) -> None:
        """``draw`` gets a block's number, from 0."""
        self._numbers = range(number)
        self._draw = draw

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, number: int) -> Any: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Any]: ...
    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self._draw(one) for one in self._numbers[number]]
        return self._draw(self._numbers[number])


def generator(seed: int, *numbers: int) -> Any:
    """The generator of one purpose: the numbers name it, so that no draw depends on what was drawn before."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence((seed, *numbers))))


def rows_of(block: int, blocks: int, rows: int) -> int:
    """How many rows a block has, of all."""
    return (block + 1) * rows // blocks - block * rows // blocks


def drawn_products(seed: int, blocks: int, rows: int, columns: int, rank: int) -> DrawnBlocks:
    """Blocks of a matrix of this rank without negative numbers, with noise."""
    right = generator(seed, _TRUTH).random((rank, columns))

    def draw(block: int) -> Any:
        draws = generator(seed, block)
        left = draws.random((rows_of(block, blocks, rows), rank))
        return left @ right / rank + _NOISE * draws.random((len(left), columns))

    return DrawnBlocks(blocks, draw)


def drawn_classes(seed: int, blocks: int, rows: int, columns: int, classes: int) -> DrawnBlocks:
    """Blocks of rows and labels: each class around a point of its own."""
    centres = generator(seed, _TRUTH).standard_normal((classes, columns))

    def draw(block: int) -> Any:
        draws = generator(seed, block)
        labels = draws.integers(0, classes, rows_of(block, blocks, rows))
        return centres[labels] + 2 * draws.standard_normal((len(labels), columns)), labels.astype(np.int64)

    return DrawnBlocks(blocks, draw)


def drawn_lines(seed: int, blocks: int, rows: int, columns: int) -> DrawnBlocks:
    """Blocks of rows and targets that depend on one column in 25, with noise."""
    draws = generator(seed, _TRUTH)
    true = np.zeros(columns)
    chosen = draws.choice(columns, max(1, columns // 25), replace=False)
    true[chosen] = 3 * draws.standard_normal(len(chosen))

    def draw(block: int) -> Any:
        draws = generator(seed, block)
        rows_here = draws.standard_normal((rows_of(block, blocks, rows), columns))
        return rows_here, rows_here @ true + _NOISE * draws.standard_normal(len(rows_here))

    return DrawnBlocks(blocks, draw)


def drawn_documents(seed: int, blocks: int, rows: int, columns: int, topics: int, alpha: float) -> DrawnBlocks:
    """Blocks of documents of 100 words each, drawn by topics: where each document begins, and the words."""
    words = generator(seed, _TRUTH).dirichlet(np.full(columns, 0.1), topics).cumsum(axis=1)

    def draw(block: int) -> Any:
        draws = generator(seed, block)
        count, length = rows_of(block, blocks, rows), 100
        mixes = draws.dirichlet(np.full(topics, max(alpha, 1e-3)), count).cumsum(axis=1)
        found = np.empty(count * length, np.int32)
        for document in range(count):
            chosen = np.minimum(mixes[document].searchsorted(draws.random(length)), topics - 1)
            for at, (topic, chance) in enumerate(zip(chosen, draws.random(length), strict=True)):
                found[document * length + at] = min(int(words[topic].searchsorted(chance)), columns - 1)
        return np.arange(count + 1, dtype=np.int64) * length, found

    return DrawnBlocks(blocks, draw)
