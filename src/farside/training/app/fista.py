"""Accelerated proximal gradient descent, with a restart where momentum leads uphill.

Beck and Teboulle's FISTA, with the gradient restart of O'Donoghue and Candes (2015). All workers take the same step
from the same sums, so nothing of it is pushed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from farside.training.loop.block import Arrays


def begin_at(model: Arrays, start: Any) -> None:
    """Puts the first point into the model."""
    model["x"], model["at"], model["t"] = start.copy(), start.copy(), np.ones(())


def step(model: Arrays, gradient: Any, rate: float, shrink: Callable[[Any], Any], *, is_last: bool) -> None:
    """One step: ``x`` is the new point, ``at`` where the next gradient is wanted; they are the same in the last step.

    Args:
        model: Has ``x``, ``at`` and ``t``.
        gradient: Of the smooth part at ``at``.
        rate: Length of the step: one by the largest curvature.
        shrink: The proximal step of the other part.
        is_last: No step follows.
    """
    before, at = model["x"], model["at"]
    x = shrink(at - rate * gradient)
    t = float(model["t"])
    if np.sum((at - x) * (x - before)) > 0:
        t = 1.0
    after = (1 + (1 + 4 * t * t) ** 0.5) / 2
    model["x"], model["t"] = x, np.array(after)
    model["at"] = x.copy() if is_last else x + (t - 1) / after * (x - before)


def curvature(rows: Any) -> float:
    """The largest eigenvalue of rows' product with themselves: summed over blocks never less than that of all rows."""
    product = rows @ rows.T if rows.shape[0] < rows.shape[1] else rows.T @ rows
    return float(np.linalg.eigvalsh(product)[-1])
