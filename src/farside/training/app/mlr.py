"""Multinomial logistic regression: mean cross entropy and half the penalty times the squared weights, by FISTA.

The bias is a column of ones, and penalised as all others are. [harmony §V: MLR]
"""

from typing import Any

import numpy as np

from farside.training.app import fista
from farside.training.app.dataset import Input
from farside.training.app.program import Options, Outcome, Watch, nobody_watches, noted
from farside.training.loop.job import Job, begin


def train_mlr(data: Input, options: Options, watch: Watch = nobody_watches) -> Outcome:
    """The weights, (classes, columns), with the mean cross entropy and penalty as objective.

    Raises:
        FarsideError: as of `farside.training.begin` and its job.
    """
    shape = data.classes, data.columns
    keys = {"gradient": shape, "loss": (), "curvature": (), "right": ()}
    with begin(
        data.blocks, keys=keys, iterations=options.iterations,
        fingerprint=f"mlr penalty {options.penalty:g} {data.fingerprint}",
    ) as job:  # fmt: skip
        model = job.model
        if job.is_new:
            fista.begin_at(model, np.zeros(shape))
            bound = sum(fista.curvature(block.data[0]) for block in job.blocks())
            job.push({"gradient": np.zeros(shape), "loss": 0.0, "curvature": bound, "right": 0.0})
        while job.goes_on():
            total = job.pull()
            if "curvature" not in model:
                model["curvature"] = total["curvature"]  # softmax's own is at most 1/2
            else:
                noted(job, _objective(total, model, options, data), options.tolerance, watch)
                gradient = total["gradient"] / data.rows + options.penalty * model["at"]
                rate = 1 / (float(model["curvature"]) / (2 * data.rows) + options.penalty)
                fista.step(model, gradient, rate, _unchanged, is_last=job.is_last)
            job.push(_parts(job, model["at"]))
        total = job.pull()
        objective = _objective(total, model, options, data)
        accuracy = float(total["right"]) / data.rows
        return Outcome(
            objective=objective, iterations=job.iteration, model={"weights": model["at"]},
            figures={"accuracy": accuracy},
        )  # fmt: skip


def _parts(job: Job[Any], weights: Any) -> dict[str, Any]:
    gradient, loss, right = np.zeros(weights.shape), 0.0, 0.0
    for block in job.blocks():
        rows, labels = block.data
        scores = rows @ weights.T
        scores -= scores.max(axis=1, keepdims=True)
        chosen = np.arange(len(labels)), labels
        right += float(np.count_nonzero(scores.argmax(axis=1) == labels))
        own = scores[chosen]
        np.exp(scores, out=scores)
        sums = scores.sum(axis=1, keepdims=True)
        loss += float((np.log(sums[:, 0]) - own).sum())
        scores /= sums
        scores[chosen] -= 1
        gradient += scores.T @ rows
    return {"gradient": gradient, "loss": loss, "curvature": 0.0, "right": right}


def _objective(total: dict[str, Any], model: dict[str, Any], options: Options, data: Input) -> float:
    return float(total["loss"]) / data.rows + options.penalty / 2 * float(np.sum(model["at"] ** 2))


def _unchanged(point: Any) -> Any:
    return point
