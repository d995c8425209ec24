"""Linear regression with an L1 penalty: squared errors by twice the rows, and the penalty times the weights, by FISTA.

[harmony §V: Lasso]
"""

from typing import Any

import numpy as np

from farside.training.app import fista
from farside.training.app.dataset import Input
from farside.training.app.program import Options, Outcome, Watch, nobody_watches, noted
from farside.training.loop.job import begin


def train_lasso(data: Input, options: Options, watch: Watch = nobody_watches) -> Outcome:
    """The weights, (columns,), of which many are zero.

    Raises:
        FarsideError: as of `farside.training.begin` and its job.
    """
    shape = (data.columns,)
    with begin(
        data.blocks, keys={"gradient": shape, "squares": (), "curvature": ()}, iterations=options.iterations,
        fingerprint=f"lasso penalty {options.penalty:g} {data.fingerprint}",
    ) as job:  # fmt: skip
        model = job.model
        if job.is_new:
            fista.begin_at(model, np.zeros(shape))
            bound = sum(fista.curvature(block.data[0]) for block in job.blocks())
            job.push({"gradient": np.zeros(shape), "squares": 0.0, "curvature": bound})
        while job.goes_on():
            total = job.pull()
            if "curvature" not in model:
                model["curvature"] = total["curvature"]
            else:
                noted(job, _objective(total, model, options, data), options.tolerance, watch)
                rate = data.rows / float(model["curvature"])

                def shrink(point: Any, by: float = rate * options.penalty) -> Any:
                    return np.sign(point) * np.maximum(np.abs(point) - by, 0)

                fista.step(model, total["gradient"] / data.rows, rate, shrink, is_last=job.is_last)
            gradient, squares = np.zeros(shape), 0.0
            for block in job.blocks():
                rows, targets = block.data
                errors = rows @ model["at"] - targets
                gradient += rows.T @ errors
                squares += float(errors @ errors)
            job.push({"gradient": gradient, "squares": squares, "curvature": 0.0})
        objective = _objective(job.pull(), model, options, data)
        kept = float(np.count_nonzero(model["at"]))
        return Outcome(
            objective=objective, iterations=job.iteration, model={"weights": model["at"]}, figures={"non-zero": kept}
        )


def _objective(total: dict[str, Any], model: dict[str, Any], options: Options, data: Input) -> float:
    return float(total["squares"]) / (2 * data.rows) + options.penalty * float(np.abs(model["at"]).sum())
