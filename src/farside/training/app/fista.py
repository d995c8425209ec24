"""Accelerated proximal gradient descent, with a restart where momentum leads uphill.

Beck and Teboulle's FISTA, with the gradient restart of O'Donoghue and Candes (2015). All workers take the same step
from the same sums, so nothing of it is pushed.

Gradients are wanted at ``at``, which momentum has carried on, and the result is ``x``. So in the last iteration blocks
are looked at in both places: the result's objective is known, and a job that goes on from there with more iterations
has the gradient that it would have had.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from farside.errors import ConfigError
from farside.training.loop.block import Arrays
from farside.training.loop.job import Job


def begin_at(model: Arrays, start: Any) -> None:
    """Puts the first point into the model."""
    model["x"], model["at"], model["t"] = start.copy(), start.copy(), np.ones(())


def step(model: Arrays, gradient: Any, rate: float, shrink: Callable[[Any], Any]) -> None:
    """One step: ``x`` is the new point, ``at`` where the next gradient is wanted.

    Args:
        model: Has ``x``, ``at`` and ``t``.
        gradient: Of the smooth part at ``at``.
        rate: Length of the step: one by the largest curvature.
        shrink: The proximal step of the other part.
    """
    before, at = model["x"], model["at"]
    x = shrink(at - rate * gradient)
    t = float(model["t"])
    if np.sum((at - x) * (x - before)) > 0:
        t = 1.0
    after = (1 + (1 + 4 * t * t) ** 0.5) / 2
    model["x"], model["t"] = x, np.array(after)
    model["at"] = x + (t - 1) / after * (x - before)


def curvature(rows: Any) -> float:
    """The largest eigenvalue of rows' product with themselves: summed over blocks never less than that of all rows.

    Infinite where that product is too large a number.
    """
    product = rows @ rows.T if rows.shape[0] < rows.shape[1] else rows.T @ rows
    return float(np.linalg.eigvalsh(product)[-1]) if np.isfinite(product).all() else np.inf


def check_curvature(job: Job[Any], value: Any) -> Any:
    """The sum of curvatures.

    Raises:
        Diverged: it is not finite.
    """
    if not np.isfinite(value):
        job.diverged("the sum of the input's squares", float(value))
    return value


def check_ended(job: Job[Any], total: Arrays) -> None:
    """Raises ConfigError where the sums, with key ``ended``, are not those of a last iteration.

    So it is where the iterations of a longer job that was stopped are as many as this one is to make.
    """
    if not float(total["ended"]):
        raise ConfigError(
            f"iterations: checkpoint i-{job.iteration} is from the middle of a job of more iterations",
            hint=f"ask for {job.iteration + 1} or more, or name another checkpoint folder",
        )
