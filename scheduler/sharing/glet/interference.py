"""How much slower a batch is beside a neighbour, from coefficients or tables of each side's share. PURE."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from farside.scheduler.sharing.glet.fit import CoRun, Fitted, Floats, Pair
from farside.scheduler.sharing.glet.profile import WHOLE_PCT, Load
from farside.scheduler.sharing.glet.size import make_room

# By model and part, a value for each batch from 1 on.
Shares = Mapping[tuple[str, int], Sequence[float]]


class Separable:
    """Interference as F = own + other, or e to that: a share of the slowed batch and one of the neighbour [glet §4.4].

    ``own`` is of the batch that is slowed, ``other`` of the neighbour's. Below 1 counts as 1.
    """

    def __init__(self, own: Shares, other: Shares, *, is_log: bool, safety: float = 1.0) -> None:
        self._own, self._other, self._is_log, self._safety = own, other, is_log, safety

    def pressure(self, part_pct: int, loads: Sequence[Load]) -> object:
        """The largest share of a neighbour's models; None: it has none."""
        if not loads:
            return None
        other = self._other
        if len(loads) == 1:
            ((model, batch),) = loads
            return other[model, part_pct][batch - 1]
        return max(other[model, part_pct][batch - 1] for model, batch in loads)

    def factors(self, model: str, part_pct: int, pressure: object) -> Sequence[float]:
        """Factor of each batch."""
        assert isinstance(pressure, float)
        own, safety = self._own[model, part_pct], self._safety
        if self._is_log:
            return [max(1.0, safety * math.exp(one + pressure)) for one in own]
        return [max(1.0, safety * (one + pressure)) for one in own]

    def least(self, model: str, part_pct: int, batches: int) -> Sequence[float]:
        """Factors beside the neighbour that presses least."""
        beside = WHOLE_PCT - part_pct
        least = min(min(own) for (_, part), own in self._other.items() if part == beside)
        return self.factors(model, part_pct, least)[:batches]


class Tabled:
    """F from a grid of both sides' batches for each model, part and neighbour; linear between the grid's batches.

    ``cells`` has a row for each of ``own_batches`` and a column for each of ``other_batches``.
    """

    def __init__(
        self,
        cells: Mapping[tuple[str, int, str], Floats],
        batches: Mapping[str, Sequence[int]],
    ) -> None:
        self._cells, self._batches = cells, batches
        self._columns: dict[tuple[str, int, str, int], Sequence[float]] = {}

    def pressure(self, part_pct: int, loads: Sequence[Load]) -> object:
        """The neighbour's models and batches themselves; None: it has none."""
        return tuple(sorted(loads)) or None

    def factors(self, model: str, part_pct: int, pressure: object) -> Sequence[float]:
        """The worst factor of each batch over the neighbour's models."""
        assert isinstance(pressure, tuple)
        columns = [self._column(model, part_pct, other, batch) for other, batch in pressure]
        return columns[0] if len(columns) == 1 else [max(each) for each in zip(*columns, strict=True)]

    def least(self, model: str, part_pct: int, batches: int) -> Sequence[float]:
        """The least factor of each batch over all neighbours; linear between the grid's batches, so never above it."""
        rows = [
            np.min(grid, axis=1) for (one, part, _), grid in self._cells.items() if (one, part) == (model, part_pct)
        ]
        every = np.interp(range(1, batches + 1), self._batches[model], np.min(rows, axis=0))
        return tuple(max(1.0, float(one)) for one in every)

    def _column(self, model: str, part_pct: int, other: str, other_batch: int) -> Sequence[float]:
        key = (model, part_pct, other, other_batch)
        found = self._columns.get(key)
        if found is None:
            grid, own, others = self._cells[model, part_pct, other], self._batches[model], self._batches[other]
            make_room(self._columns, own[-1])
            at_batch = [float(np.interp(other_batch, others, row)) for row in grid]
            every = np.interp(np.arange(1, own[-1] + 1), own, at_batch)
            found = self._columns[key] = np.maximum(every, 1.0).tolist()
        return found


def tabled(
    fitted: Fitted, co_runs: Sequence[CoRun], parts: Sequence[int], batches: Mapping[str, Sequence[int]]
) -> Tabled:
    """Interference of all models of ``batches`` on all parts: a measured co-run goes before what is predicted.

    What is predicted has the fit's safety on top.
    """
    measured = {one.pair: one.factor for one in co_runs}
    keys = [
        (model, part, other)
        for model in batches
        for part in parts
        for other in batches
        if part < WHOLE_PCT and WHOLE_PCT - part in parts
    ]
    pairs = [
        Pair(model, part, batch, other, WHOLE_PCT - part, other_batch)
        for model, part, other in keys
        for batch in batches[model]
        for other_batch in batches[other]
    ]
    predicted = fitted.predict(pairs) * fitted.safety if pairs else np.ones(0)
    values = np.array(
        [measured.get(pair, guess) for pair, guess in zip(pairs, predicted.tolist(), strict=True)], dtype=float
    )
    cells: dict[tuple[str, int, str], Floats] = {}
    at = 0
    for model, part, other in keys:
        shape = (len(batches[model]), len(batches[other]))
        cells[model, part, other] = values[at : at + shape[0] * shape[1]].reshape(shape)
        at += shape[0] * shape[1]
    return Tabled(cells, batches)
