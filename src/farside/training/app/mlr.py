"""Multinomial logistic regression: mean cross entropy and half the penalty times the squared weights, by FISTA.

The bias is a column of ones, and penalised as all others are. [harmony §V: MLR]
"""

from typing import Any

import numpy as np

from farside.training.app import fista
from farside.training.app.dataset import Input
from farside.training.app.program import Options, Outcome, Watch, exact, found, goes_on_ended, nobody_watches, noted
from farside.training.loop.job import Job, begin

_NUMBERS = ("loss", "curvature", "last_loss", "last_right", "ended")


def train_mlr(data: Input, options: Options, watch: Watch = nobody_watches) -> Outcome:
    """The weights, (classes, columns), with the mean cross entropy and penalty as objective.

    Raises:
        FarsideError: as of `farside.training.begin` and its job.
    """
    shape = data.classes, data.columns
    with begin(
        data.blocks, keys={"gradient": shape, **dict.fromkeys(_NUMBERS, ())}, iterations=options.iterations,
        fingerprint=f"mlr penalty {exact(options.penalty)} {data.fingerprint}",
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
                # Softmax's own is at most 1/2.
                model["curvature"] = fista.check_curvature(job, total["curvature"])
            else:
                noted(job, _objective(total["loss"], model["at"], options, data), options.tolerance, watch)
                gradient = total["gradient"] / data.rows + options.penalty * model["at"]
                rate = 1 / (float(model["curvature"]) / (2 * data.rows) + options.penalty)
                fista.step(model, gradient, rate, _unchanged)
            job.push(_parts(job, model))
        total = job.pull()
        fista.check_ended(job, total)
        weights = model["x"]
        objective = found(job, _objective(total["last_loss"], weights, options, data))
        accuracy = float(total["last_right"]) / data.rows
        return Outcome(
            objective=objective, iterations=job.iteration, model={"weights": weights}, figures={"accuracy": accuracy}
        )


def _parts(job: Job[Any], model: dict[str, Any]) -> dict[str, Any]:
    gradient, loss, last_loss, last_right = np.zeros(model["at"].shape), 0.0, 0.0, 0.0
    for block in job.blocks():
        rows, labels = block.data
        scores, chosen = rows @ model["at"].T, (np.arange(len(labels)), labels)
        sums, own_loss = _exponentials(scores, chosen)
        loss += own_loss
        scores /= sums
        scores[chosen] -= 1
        gradient += scores.T @ rows
        if job.is_last:
            scores = rows @ model["x"].T
            last_right += float(np.count_nonzero(scores.argmax(axis=1) == labels))
            last_loss += _exponentials(scores, chosen)[1]
    return {
        "gradient": gradient, "loss": loss, "curvature": 0.0, "last_loss": last_loss, "last_right": last_right,
        "ended": float(job.is_last),
    }  # fmt: skip


def _exponentials(scores: Any, chosen: Any) -> tuple[Any, float]:
    """Scores become their exponentials, up to a factor a row; the sum of each row, and the loss of all."""
    scores -= scores.max(axis=1, keepdims=True)
    own = scores[chosen]
    np.exp(scores, out=scores)
    sums = scores.sum(axis=1, keepdims=True)
    return sums, float((np.log(sums[:, 0]) - own).sum())


def _objective(loss: Any, weights: Any, options: Options, data: Input) -> float:
    return float(loss) / data.rows + options.penalty / 2 * float(np.sum(weights**2))


def _unchanged(point: Any) -> Any:
    return point
