"""What the four programs have in common: options, what is shown while they run, when they stop, and their result."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from farside.training.loop.block import Arrays
from farside.training.loop.job import Job

AppName = Literal["nmf", "lda", "mlr", "lasso"]
LOOK_BACK = 5
"""Iterations over which the objective is compared."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a program; those that its kind does not have are not used.

    Attributes:
        app: Which program.
        data: Name of a data set, or a file.
        iterations: How many, at most.
        seed: Of everything that is drawn.
        blocks: Number of input blocks; 0: 32, or as many as there are rows.
        rows, columns, classes: Of ``synthetic`` data.
        components: NMF's rank, LDA's topics.
        penalty: MLR's L2, Lasso's L1.
        alpha, eta: LDA's priors of topics in documents and of words in topics.
        frozen: LDA samples each block against the counts of the last pull alone.
        tolerance: Ends when the objective's relative change over 5 iterations is less; 0: never.
        out: A file for the model; empty: none.
    """

    app: AppName
    data: str
    iterations: int = 100
    seed: int = 0
    blocks: int = 0
    rows: int = 2000
    columns: int = 200
    classes: int = 10
    components: int = 16
    penalty: float = 0.001
    alpha: float = 0.1
    eta: float = 0.01
    frozen: bool = False
    tolerance: float = 0.0
    out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a program has found. ``figures``: more numbers about it, by name."""

    objective: float
    iterations: int
    model: Arrays
    figures: dict[str, float] = field(default_factory=dict)


Watch = Callable[[int, float], None]
"""Called with an iteration and the objective before it."""


def nobody_watches(_iteration: int, _objective: float) -> None:
    """For callers that want the outcome alone."""


def exact(number: float) -> str:
    """A number with all of its digits, such that two different ones have different texts."""
    return repr(number).removesuffix(".0")


def noted(job: Job[Any], objective: float, tolerance: float, watch: Watch) -> None:
    """Shows an objective, and ends the job where it is not finite or no longer changes.

    Raises:
        Diverged: it is not finite.
    """
    watch(job.iteration, found(job, objective))
    # In the model, so that a job that goes on from a checkpoint ends where it would have ended.
    seen = np.append(job.model.get("objectives", np.empty(0)), objective)[-LOOK_BACK - 1 :]
    job.model["objectives"] = seen
    if _is_settled(seen, tolerance):
        job.finish()


def goes_on_ended(job: Job[Any], tolerance: float) -> None:
    """A job that `noted` had ended goes on, before its first iteration, if it would not be ended there now."""
    if job.is_finished and not _is_settled(job.model["objectives"], tolerance):
        job.reopen()


def _is_settled(seen: Any, tolerance: float) -> bool:
    return bool(tolerance > 0 and len(seen) > LOOK_BACK and abs(seen[0] - seen[-1]) <= tolerance * abs(seen[-1]))


def found(job: Job[Any], objective: float) -> float:
    """An objective.

    Raises:
        Diverged: it is not finite.
    """
    if not np.isfinite(objective):
        job.diverged("the objective", objective)
    return objective
