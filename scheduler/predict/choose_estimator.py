"""Choice of the estimator whose job order would have saved most waiting time recently. PURE.

When a job ends, what each estimator had expected of it at its submission is held against the truth. Over the newest of
those (`queue_saving`) the choice falls on

* the model, if it is better than the number of GPUs alone by ``margin``, and not by accident;
* otherwise the rolling estimate, if that is;
* otherwise the number of GPUs, which needs no history;
* no estimator, so that jobs go in order of arrival, if even the number of GPUs is worse than chance, and not by
  accident.

What is an accident the spread says: the newest jobs are cut into `BLOCKS`, one after the other, and a difference counts
when its mean over the blocks is more than `SURE` of its standard errors. GPU times count by their square root here:
otherwise a handful of the longest jobs would decide what an order is worth, and the difference between any two would be
an accident.

The estimator in use needs to be better by half of that only; otherwise two would take turns.

At most a quarter of the jobs that are looked at are one user's: thousands of jobs that somebody runs for 1 s or 100 s,
by chance, would turn estimates off for all others. Jobs of which nothing was known are not looked at.
"""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from farside.scheduler.predict.estimate_quality import quality, queue_saving
from farside.scheduler.predict.newest_by_user import NewestByUser
from farside.scheduler.table import Floats

Source = Literal["model", "rolling", "gpus", "nobody"]

LEAST_JUDGED = 300  # jobs, below which a figure of quality is chance
JUDGED_EVERY = 50  # ended jobs
RECENT = 500  # jobs, whose errors tell of drift
BLOCKS = 10
SURE = 2.5
# Of GPU times, where estimators are compared.
POWER = 0.5
# At most this share of the judged jobs is one user's; never fewer than can be judged, as there may be but one user.
OF_ONE_USER = 0.25


@dataclass(frozen=True, slots=True)
class Judged:
    """Estimates of an ended job at its submission, and its true GPU seconds; NaN without a model.

    ``user``: the number of whose job it was; NaN: nobody's.
    """

    model: float
    rolling: float
    gpus: float
    true: float
    user: float


def worth(expected: Floats, true: Floats) -> float:
    """`queue_saving`, of square roots."""
    return queue_saving(expected**POWER, true**POWER)


class Judge:
    """Score of the estimators, and the choice between them.

    Attributes:
        source: The estimator that is believed.
        savings: `queue_saving` of each estimator's square roots, as far as known: the mean of blocks.
        errors: The standard error of each one's difference from the number of GPUs; of ``gpus``, from chance.
        drift: By what share the model's recent median error is greater than when it was fitted.
    """

    def __init__(self, *, margin: float, jobs: int, first: Source = "gpus") -> None:
        """``first``: what is believed until enough jobs have ended to judge."""
        self.margin = margin
        self.source: Source = first
        self.savings: Mapping[str, float] = {}
        self.errors: Mapping[str, float] = {}
        self.drift = 0.0
        self.judged = NewestByUser[Judged](jobs, max(LEAST_JUDGED, int(jobs * OF_ONE_USER)), _user_of)
        self._log_error = math.nan
        self._new = 0

    @property
    def has_judged_model(self) -> bool:
        """Whether any job has ended that a model knew."""
        return any(not math.isnan(one.model) for one in self.judged)

    def add(self, judged: Judged, *, has_model: bool) -> None:
        """A job has ended. ``has_model``: whether there is one to choose."""
        self.judged.add(judged)
        self._new += 1
        if self._new >= JUDGED_EVERY:
            self.judge(has_model=has_model)

    def begin(self, judged: Iterable[Judged]) -> None:
        """Replace all scores by these jobs."""
        self.judged.clear()
        for one in judged:
            self.judged.add(one)

    def expect_error(self, log_error: float) -> None:
        """A new model's median error, against which later ones are drift."""
        self._log_error, self.drift = log_error, 0.0

    def judge(self, *, has_model: bool) -> None:
        """Compare the estimators and choose one, if enough jobs have ended."""
        self._new = 0
        if len(self.judged) < LEAST_JUDGED:
            return
        model, rolling, gpus, true = np.array([(one.model, one.rolling, one.gpus, one.true) for one in self.judged]).T
        known = ~np.isnan(model)
        columns = {"rolling": rolling, "gpus": gpus}
        if known.sum() >= LEAST_JUDGED:  # all are judged by the same jobs
            columns["model"] = model
            columns = {name: column[known] for name, column in columns.items()}
            true = true[known]
            recent = quality(columns["model"][-RECENT:], true[-RECENT:]).log_error
            self.drift = recent / self._log_error - 1 if self._log_error > 0 else 0.0
        blocks = np.array_split(np.arange(len(true)), BLOCKS)
        by_block = {
            name: np.array([worth(column[block], true[block]) for block in blocks]) for name, column in columns.items()
        }
        self.savings = {name: float(values.mean()) for name, values in by_block.items()}
        # The number of GPUs is compared with chance, whose saving is 0; the others with the number of GPUs.
        chance = {"gpus": np.zeros(BLOCKS)}
        self.errors = {
            name: float(np.std(values - chance.get(name, by_block["gpus"]), ddof=1)) / math.sqrt(BLOCKS)
            for name, values in by_block.items()
        }
        self.choose(has_model=has_model)

    def believe(self, savings: Mapping[str, float], errors: Mapping[str, float], *, has_model: bool) -> None:
        """Use this choice until enough jobs have ended here."""
        self.savings, self.errors = savings, errors
        self.choose(has_model=has_model)

    def choose(self, *, has_model: bool) -> None:
        """Choose by the savings."""
        model, rolling = (self._lead(name) for name in ("model", "rolling"))
        by_gpus, error = self.savings.get("gpus", 0.0), self.errors.get("gpus", math.inf)
        # The model contains the rolling estimate: it is believed unless it is worse than that by the margin.
        if has_model and model >= 0 and model + self.margin >= rolling:
            self.source = "model"
        elif rolling >= 0:
            self.source = "rolling"
        else:
            self.source = "nobody" if by_gpus < -max(self.margin, SURE * error) else "gpus"

    def _lead(self, name: str) -> float:
        """By how much it is better than it must be; negative: it isn't good enough."""
        needed = max(self.margin, SURE * self.errors.get(name, math.inf)) * (0.5 if name == self.source else 1.0)
        # Where nothing is known the comparisons are with NaN, and the answer is: not good enough.
        lead = self.savings.get(name, math.nan) - self.savings.get("gpus", math.nan) - needed
        return -math.inf if math.isnan(lead) else lead


def _user_of(judged: Judged) -> Hashable:
    return None if math.isnan(judged.user) else judged.user
