"""Record of how good the newest forecasts were, against the assumption that nothing changes (persistence). PURE."""

from collections import deque

import numpy as np

from farside.scheduler.energy.forecast import LEAST_PROOF, RECENT


class ForecastProof:
    """Losses of the newest forecasts whose horizons are over, up to `RECENT`."""

    def __init__(self) -> None:
        self._gains: deque[float] = deque(maxlen=RECENT)  # by how much the loss was below persistence's
        self._losses: deque[float] = deque(maxlen=RECENT)  # since trees were fitted last
        self._loss_then = np.nan

    def add(self, loss: float, persistence_loss: float) -> None:
        """One more horizon is over."""
        self._gains.append(persistence_loss - loss)
        self._losses.append(loss)

    def begin(self, loss: float) -> None:
        """New trees forecast from now on, whose loss was this when they were fitted; NaN: not known.

        Gains stay: they judge the forecast, whichever trees it had, so that new trees need not prove themselves for
        half a day.
        """
        self._loss_then = loss
        self._losses.clear()

    @property
    def judged(self) -> int:
        """How many horizons it knows of."""
        return len(self._gains)

    @property
    def is_better(self) -> bool:
        """Whether these forecasts were better than persistence."""
        return len(self._gains) >= LEAST_PROOF and sum(self._gains) > 0

    @property
    def drift(self) -> float:
        """Share by which the recent loss is greater than when the trees were fitted."""
        if len(self._losses) < RECENT or not self._loss_then > 0:
            return 0.0
        return float(np.mean(self._losses)) / self._loss_then - 1
