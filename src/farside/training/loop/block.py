"""Input blocks: numbered over the whole input, so that any number of workers can go on with a job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Arrays = dict[str, Any]  # NumPy arrays by name


@dataclass(slots=True, kw_only=True)
class Block(Generic[T]):
    """One block of the input at the worker that has it.

    Attributes:
        number: Its place in the whole input, from 0.
        data: What the program gave as this block.
        state: Arrays of the program's that belong to this block; checkpoints have them.
    """

    number: int
    data: T
    state: Arrays = field(default_factory=dict)


def blocks_of(rank: int, workers: int, blocks: int) -> range:
    """The blocks of a worker, which differ in number by at most one between workers."""
    return range(rank * blocks // workers, (rank + 1) * blocks // workers)


class OwnBlocks(Generic[T]):
    """The blocks of one worker (``numbers``), always in the same order: so sums have the same bits each time."""

    def __init__(self, source: Sequence[T], numbers: range) -> None:
        self._source = source
        self.numbers = numbers
        self._held: dict[int, T] = {}
        self._states: dict[int, Arrays] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Block[T]]:
        for number in self.numbers:
            if number not in self._held:
                self._held[number] = self._source[number]  # once
            yield Block(number=number, data=self._held[number], state=self.state_of(number))

    def state_of(self, number: int) -> Arrays:
        """The program's arrays that belong to a block of this worker's."""
        return self._states.setdefault(number, {})

    def states(self) -> dict[int, Arrays]:
        """Those of all blocks that have been worked on."""
        return dict(sorted(self._states.items()))

    def close(self) -> None:
        """No block is asked for any more."""
