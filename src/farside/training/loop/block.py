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
        self._held: dict[int, Block[T]] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[Block[T]]:
        for number in self.numbers:
            yield self.block(number)

    def block(self, number: int) -> Block[T]:
        """A block of this worker's; it is asked of the source once."""
        held = self._held.get(number)
        if held is None:
            held = self._held[number] = Block(number=number, data=self._source[number])
        return held

    def held(self) -> list[Block[T]]:
        """Those that were asked for."""
        return [self._held[number] for number in sorted(self._held)]
