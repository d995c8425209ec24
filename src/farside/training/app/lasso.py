"""Linear regression with an L1 penalty: squared errors by twice the rows, and the penalty times the weights, by FISTA.

[harmony §V: Lasso]
"""

from typing import Any

import numpy as np

from farside.training.app import fista
from farside.training.app.dataset import Input
from farside.training.app.program import Options, Outcome, Watch, exact, found, goes_on_ended, nobody_watches, noted
from farside.training.loop.job import Job, begin

_NUMBERS = ("squares", "curvature", "last_squares", "ended")


def train_lasso(data: Input, options: Options, watch: Watch = nobody_watches) -> Outcome:
    """The weights, (columns,), of which many are zero.

    Raises:
        FarsideError: as of `farside.training.begin` and its job.
    """
    shape = (data.columns,)
    with begin(
        data.blocks, keys={"gradient": shape, **dict.fromkeys(_NUMBERS, ())}, iterations=options.iterations,
        fingerprint=f"lasso penalty {exact(options.penalty)} {data.fingerprint}",
    ) as job:  # fmt: skip
        model = job.model
        if job.is_new:
            fista.begin_at(model, np.zeros(shape))
            bound = sum(fista.curvature(block.data[0]) for block in job.blocks())
            job.push({"gradient": np.zeros(shape), **dict.fromkeys(_NUMBERS, 0.0), "curvature": bound})
        goes_on_ended(job, options.tolerance)
        while job.goes_on():
            total = job.pull()
            if "curvature" not in model:
                model["curvature"] = fista.check_curvature(job, total["curvature"])
            else:
                noted(job, _objective(total["squares"], model["at"], options, data), options.tolerance, watch)
                rate = data.rows / float(model["curvature"])

                def shrink(point: Any, by: float = rate * options.penalty) -> Any:
                    return np.sign(point) * np.maximum(np.abs(point) - by, 0)

                fista.step(model, total["gradient"] / data.rows, rate, shrink)
            job.push(_parts(job, model))
        total = job.pull()
        fista.check_ended(job, total)
        weights = model["x"]
        objective = found(job, _objective(total["last_squares"], weights, options, data))
        kept = float(np.count_nonzero(weights))
        return Outcome(
            objective=objective, iterations=job.iteration, model={"weights": weights}, figures={"non-zero": kept}
        )


def _parts(job: Job[Any], model: dict[str, Any]) -> dict[str, Any]:
    gradient, squares, last_squares = np.zeros(model["at"].shape), 0.0, 0.0
    for block in job.blocks():
        rows, targets = block.data
        errors = rows @ model["at"] - targets
        gradient += rows.T @ errors
        squares += float(errors @ errors)
        if job.is_last:
            errors = rows @ model["x"] - targets
            last_squares += float(errors @ errors)
    return {
        "gradient": gradient, "squares": squares, "curvature": 0.0, "last_squares": last_squares,
        "ended": float(job.is_last),
    }  # fmt: skip


def _objective(squares: Any, weights: Any, options: Options, data: Input) -> float:
    return float(squares) / (2 * data.rows) + options.penalty * float(np.abs(weights).sum())
