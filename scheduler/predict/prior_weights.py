"""Weight of a wider group of past jobs against a narrower one, learned from each job that ends. PURE.

A group's average starts with the next wider group's, which counts as so many jobs. Right for that is the spread within
groups over the spread between them, and a cluster's log knows it: where users differ little, an own average of theirs
tells nothing; where a name's jobs run equally long, one of them tells nearly all. So when a job ends, what each number
of a grid would have made of it is held against what it took, level by level, in logarithms, before it is learned from.

Jobs are kept apart by their nearest group. What a user's other jobs took tells much of a job whose name recurs, as most
of them had that name, and may tell nothing of one whose name is new.
"""

GRID = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
_START = GRID.index(1.0)
# Errors fade: of a thousand jobs ago, 1/e counts.
_KEPT = 0.999
# So many jobs of a level must have ended before its number is changed.
LEAST_ENDED = 30


class Shrinkage:
    """The numbers, by a job's nearest group and by level. ``levels``: how many there are."""

    def __init__(self, levels: int) -> None:
        self._errors = [[[0.0] * len(GRID) for _ in range(levels)] for _ in range(levels)]
        self._ended = [[0] * levels for _ in range(levels)]
        self._best = [[_START] * levels for _ in range(levels)]

    def prior_jobs(self, nearest: int, level: int) -> float:
        """How many jobs the next wider group counts as."""
        return GRID[self._best[nearest][level]]

    def learn(self, at: tuple[int, int], mean: tuple[float, float], wider: float, value: float) -> None:
        """A job has ended.

        Args:
            at: Its nearest group's level, and the level that is learned.
            mean: The sum and the weight of its group of this level, before it.
            wider: What the next wider group expected.
            value: What it took.
        """
        nearest, level = at
        total, weight = mean
        errors = self._errors[nearest][level]
        for place, prior in enumerate(GRID):
            off = (total + prior * wider) / (weight + prior) - value
            errors[place] = errors[place] * _KEPT + off * off
        self._ended[nearest][level] += 1
        if self._ended[nearest][level] >= LEAST_ENDED:
            self._best[nearest][level] = min(range(len(GRID)), key=errors.__getitem__)

    def state(self) -> list[object]:
        """All that was learned, as numbers in lists."""
        return [self._errors, self._ended]

    def restore(self, state: list[list[list[float]]], ended: list[list[int]]) -> None:
        """Takes what `state` gave.

        Raises:
            ValueError: It is of other levels or another grid.
        """
        sizes = {(len(row), len(errors)) for row in state for errors in row}
        if sizes != {(len(self._errors), len(GRID))} or {len(row) for row in ended} != {len(self._errors)}:
            raise ValueError("of other levels")
        self._errors, self._ended = state, ended
        for best, row, counts in zip(self._best, state, ended, strict=True):
            for level, (errors, count) in enumerate(zip(row, counts, strict=True)):
                if count >= LEAST_ENDED:
                    best[level] = min(range(len(GRID)), key=errors.__getitem__)
