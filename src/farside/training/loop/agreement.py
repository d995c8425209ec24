"""What workers agree on: numbers that are summed like all that they push, so that all read the same ones.

Nobody commands: whoever wants to stop says so with its next push, and all of them, itself too, stop after the pull that
brings the sum. So no worker stops in an iteration that another one has begun.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_COUNTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What one worker says with a push.

    Attributes:
        stops: It wants all to stop.
        keeps: It wants all to make a checkpoint.
        failed: Its program has raised an error.
        run: Rank 0's random number of this start, at least 1; others say 0.
        resumed: The iteration of the checkpoint that it goes on from; None: of none.
        model: Check sum of its model; None: it says nothing of that this time.
    """

    stops: bool = False
    keeps: bool = False
    failed: bool = False
    run: int = 0
    resumed: int | None = None
    model: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What all workers have said together.

    Attributes:
        stops: Some worker wants to stop.
        keeps: Some worker wants a checkpoint.
        failed: Ranks whose program has raised an error.
        run: The number of this start.
        resumed: By rank; the iteration, None without a checkpoint.
        models: By rank; check sums, None where nothing was said.
    """

    stops: bool
    keeps: bool
    failed: tuple[int, ...]
    run: int
    resumed: tuple[int | None, ...]
    models: tuple[int | None, ...]


def size_of(workers: int) -> int:
    """How many numbers there are."""
    return _COUNTS + 3 * workers


def numbers_of(word: Word, rank: int, workers: int) -> list[int]:
    """A worker's word as numbers, of which each has a place that nobody else writes, or is a count."""
    numbers = [0] * size_of(workers)
    numbers[:_COUNTS] = [int(word.stops), int(word.keeps), word.run]
    numbers[_COUNTS + rank] = int(word.failed)
    numbers[_COUNTS + workers + rank] = 0 if word.resumed is None else word.resumed + 1
    numbers[_COUNTS + 2 * workers + rank] = 0 if word.model is None else word.model + 1
    return numbers


def agreed(numbers: Sequence[int], workers: int) -> Agreed:
    """What the sums of all workers' numbers say."""
    failed, resumed, models = (
        [int(one) for one in numbers[_COUNTS + part * workers : _COUNTS + (part + 1) * workers]] for part in range(3)
    )
    return Agreed(
        stops=numbers[0] > 0,
        keeps=numbers[1] > 0,
        failed=tuple(rank for rank, flag in enumerate(failed) if flag),
        run=int(numbers[2]),
        resumed=tuple(one - 1 if one else None for one in resumed),
        models=tuple(one - 1 if one else None for one in models),
    )
