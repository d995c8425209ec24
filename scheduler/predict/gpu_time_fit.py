"""A fit of the GPU times' model as a pure function of ended jobs: it may run in another process. PURE. [helios §4.1]

What a fit needs is a `Lesson`, and what it finds is `Fitted`. The simulator calls `learned_from` where it stands; the
manager has it called in a process of its own (fit_process.py), and goes on deciding meanwhile.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from farside.scheduler.predict.choose_estimator import Judged
from farside.scheduler.predict.estimate_quality import Quality, quality
from farside.scheduler.predict.gbdt import Gbdt, fit_gbdt
from farside.scheduler.predict.job_features import FEATURES, USER
from farside.scheduler.predict.mean_correction import Spread
from farside.scheduler.predict.rolling_estimate import NOBODY_KNOWS_S
from farside.scheduler.table import Floats

HELD_SHARE = 0.2
FIRST_ROOM = 1024  # jobs for which there is memory at first; then twice as many, and so on
LAMBDAS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Ended jobs in the order of their ends, one place of each array a job.

    Attributes:
        rows: A row of `FEATURES` a job, as they were when it came.
        ran_s: How long it ran, from 1 s.
        gpus: How many it had.
        kinds: What was known of it (mean_correction.py).
        rolling_median_s, rolling_s: What the rolling estimate had expected as median and as mean, seconds.
        from_s: When the first of them was submitted.
        rolling_weight: Lambda; infinite: to be learned.
        is_first: No model has been judged before, so this one is by what is held back.
    """

    rows: Floats
    ran_s: Floats
    gpus: Floats
    kinds: Floats
    rolling_median_s: Floats
    rolling_s: Floats
    from_s: float
    rolling_weight: float
    is_first: bool


class EndedJobs:
    """The newest jobs that have ended, in the order of their ends, as one array, of which a `Lesson` is a copy.

    Gathered from one object a job, a lesson of 100,000 jobs took a fifth of a second, in which nothing was decided.
    """

    def __init__(self, most: int) -> None:
        """``most``: how many are kept."""
        self._most, self._count = most, 0
        self._jobs = np.empty((min(most, FIRST_ROOM), len(FEATURES) + 6))

    def __len__(self) -> int:
        return min(self._count, self._most)

    def add(
        self, row: Floats, *, ran_s: float, gpus: int, kind: int, rolling_median_s: float, rolling_s: float,
        submit_s: float,
    ) -> None:  # fmt: skip
        """One more, with what `Lesson` has of a job; the oldest goes where there are as many as are kept."""
        if self._count == len(self._jobs) < self._most:
            more = np.empty((min(self._most, 2 * self._count) - self._count, self._jobs.shape[1]))
            self._jobs = np.concatenate([self._jobs, more])
        place = self._jobs[self._count % self._most]
        place[: len(FEATURES)] = row
        place[len(FEATURES) :] = ran_s, gpus, kind, rolling_median_s, rolling_s, submit_s
        self._count += 1

    def lesson(self, *, rolling_weight: float, is_first: bool) -> Lesson:
        """All of them; there must be one."""
        oldest = self._count % self._most if self._count > self._most else 0
        jobs = np.concatenate([self._jobs[oldest : len(self)], self._jobs[:oldest]])
        ran_s, gpus, kinds, rolling_median_s, rolling_s, submit_s = jobs[:, len(FEATURES) :].T.copy()
        return Lesson(
            rows=jobs[:, : len(FEATURES)].copy(), ran_s=ran_s, gpus=gpus, kinds=kinds,
            rolling_median_s=rolling_median_s, rolling_s=rolling_s, from_s=float(submit_s.min()),
            rolling_weight=rolling_weight, is_first=is_first,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What a fit found.

    Attributes:
        trees: Of all jobs of the lesson.
        weight: Lambda, what the rolling estimate counts beside them.
        found: The blend's quality on the newest tenth, to which nothing was fitted.
        judged: The estimates of that tenth; empty unless the lesson ``is_first``.
        spread: How far the blend was off there, by kind of job; None: as ``judged``.
        trained_on: Jobs of the lesson.
        from_s: See `Lesson`.
    """

    trees: Gbdt
    weight: float
    found: Quality
    judged: tuple[Judged, ...]
    spread: Spread | None
    trained_on: int
    from_s: float


def learned_from(lesson: Lesson) -> Fitted:
    """Train trees on the older part, learn lambda on the newer, then train on all."""
    # 1. Trees of the older part; the newer part says how many are enough.
    rows, ran_s = lesson.rows, lesson.ran_s
    cut = int(len(rows) * (1 - HELD_SHARE))
    trial = fit_gbdt(rows[:cut], ran_s[:cut], held=(rows[cut:], ran_s[cut:]))
    # 2. Lambda by the newer part, to which these trees are not fitted.
    weight, model_gpu_s, spread = _learned_weight(lesson, cut, trial.duration_s(rows[cut:]))
    # 3. As many trees of all jobs.
    trees = fit_gbdt(rows, ran_s, rounds=max(1, trial.trees))
    gpus = lesson.gpus[cut:]
    true, half = ran_s[cut:] * gpus, len(gpus) // 2
    judged: tuple[Judged, ...] = ()
    if lesson.is_first:
        columns = (model_gpu_s, lesson.rolling_s[cut:] * gpus, NOBODY_KNOWS_S * gpus, true, rows[cut:, USER])
        judged = tuple(Judged(*one) for one in zip(*(column[half:].tolist() for column in columns), strict=True))
    return Fitted(
        trees=trees, weight=weight, found=quality(model_gpu_s[half:], true[half:]), judged=judged,
        spread=spread if lesson.is_first else None, trained_on=len(rows), from_s=lesson.from_s,
    )  # fmt: skip


def _learned_weight(lesson: Lesson, cut: int, trees_s: Floats) -> tuple[float, Floats, Spread]:
    """The lambda by which run times of the older half of what was held back are met best; its estimates, their errors.

    By the square of the error in logarithms; of those that can't be told from it, the one that leaves most to the
    rolling estimate. Trees that only seem better by chance would add noise to what is known.

    By the newer half the model is judged, and so are the others, if none was judged before: what something was
    chosen by can't tell how good it is.
    """
    of_rolling = Spread()  # until the model's own errors are seen, those of what it stands on
    before = (column[:cut].tolist() for column in (lesson.kinds, lesson.ran_s, lesson.rolling_median_s))
    for kind, ran, median in zip(*before, strict=True):
        of_rolling.add(int(kind), math.log(ran / median))
    medians_s, ran_s, gpus = (of[cut:] for of in (lesson.rolling_median_s, lesson.ran_s, lesson.gpus))
    kinds, half = [int(kind) for kind in lesson.kinds[cut:].tolist()], (len(lesson.rows) - cut) // 2
    trials: dict[float, tuple[Floats, Spread]] = {}
    errors: dict[float, Floats] = {}
    for weight in LAMBDAS if lesson.rolling_weight == math.inf else (lesson.rolling_weight,):
        median_s = weight * medians_s + (1 - weight) * trees_s
        spread, off = of_rolling.copy(), np.log(ran_s / median_s)
        errors[weight] = off[:half] ** 2
        for kind, error in zip(kinds[:half], off.tolist(), strict=False):
            spread.add(kind, error)
        trials[weight] = median_s * gpus * np.array([spread.factor(kind) for kind in kinds]), spread
    chosen = _most_cautious(errors)
    return chosen, *trials[chosen]


def _most_cautious(errors: Mapping[float, Floats]) -> float:
    """The greatest lambda whose errors are within a standard error of the best one's, job by job."""
    best = min(errors, key=lambda weight: float(errors[weight].mean()))
    for weight in sorted(errors, reverse=True):
        more = errors[weight] - errors[best]
        if more.mean() <= more.std() / math.sqrt(len(more)):
            return weight
    return best
