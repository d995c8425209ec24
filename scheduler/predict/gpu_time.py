"""GPU time service: expected GPU time of a job, for QSSF. PURE. [helios §4.2.2, Algorithm 1]

How it works
  Of each job that comes, N x (lambda x rolling estimate + (1 - lambda) x boosted trees) is expected. Lambda is
  learned on what is held back at each fit, the newest fifth of all jobs that have ended. That is a median; what has
  been seen of errors makes a mean of it (mean_correction.py).

  Nothing of that is believed because it was computed: `Judge` has the last word, and without a model that ranks
  better the rolling estimate or the number of GPUs stands in. So a cluster whose log has neither users nor names,
  where a model ranks jobs no better than their GPUs do, goes by GPUs.

  A job's features are taken when it comes, and kept until it ends: what was not known then can't get into them.

  Facts that make no sense are counted and not learned from: a run time that is negative or no number. A clock that
  jumps does no harm: a job's features and its run time are its own.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from farside.errors import ConfigError
from farside.scheduler.predict.choose_estimator import LEAST_JUDGED, Judge, Judged, Source
from farside.scheduler.predict.estimate_quality import Quality, quality
from farside.scheduler.predict.gbdt import Gbdt, fit_gbdt, gbdt_from_text
from farside.scheduler.predict.job_features import CATEGORIES, FEATURES, Codes, feature_row
from farside.scheduler.predict.mean_correction import Spread, kind_of
from farside.scheduler.predict.rolling_estimate import (
    NOBODY_KNOWS_S,
    RollingEstimate,
    RollingEstimator,
    RollingParams,
    bounded_s,
)
from farside.scheduler.predict.rolling_state import recall, with_memory, without_memory
from farside.scheduler.predict.service import Advice, Expect, Fact, JobEnded, JobSubmitted, ModelRecord, UpdateRule
from farside.scheduler.state import Job
from farside.scheduler.table import Floats

NAME = "qssf"
Choice = Literal["best", "rolling", "gpus"]

HELD_SHARE = 0.2
LEAST_FIT = 200  # jobs, below which trees know nothing
BASELINES: tuple[Source, ...] = ("rolling", "gpus")
LAMBDAS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimeParams:
    """Settings of the service.

    Attributes:
        use: ``best``: whatever has ranked best; ``rolling`` or ``gpus``: that alone.
        margin: By how much of `queue_saving` an estimator must be better than the number of GPUs.
        judged_jobs: The newest ended jobs by which estimators are judged.
        window_jobs: The newest ended jobs to which the trees are fitted.
        update_every_s: How long a model is used before it is fitted anew; `UpdateRule` has what else does that.
        drift: See there.
        rolling_weight: Lambda, what the rolling estimate counts in the model; infinite: learned at each fit.
    """

    use: Choice = "best"
    margin: float = 0.03
    judged_jobs: int = 2000
    window_jobs: int = 200_000
    update_every_s: float = 7 * 86400.0
    drift: float = 0.5
    rolling_weight: float = math.inf

    def __post_init__(self) -> None:
        """Refuses windows in which nothing can be seen."""
        for name, least in (("judged_jobs", LEAST_JUDGED), ("window_jobs", LEAST_FIT)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: must be at least {least}, is {getattr(self, name)}")
        if 1 < self.rolling_weight < math.inf:
            raise ValueError(f"rolling_weight: must be at most 1, or inf, is {self.rolling_weight:g}")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A job when it came: its features, its kind, and the seconds that each estimator had as median and as mean; NaN
    where there was no model.
    """

    row: Floats
    submit_s: float
    gpus: int
    kind: int
    model_median_s: float
    model_s: float
    rolling_median_s: float
    rolling_s: float

    def gpu_s(self, source: Source) -> float:
        """What one of them expects in the mean, GPU seconds. By GPUs alone every job runs equally long."""
        seconds = {"model": self.model_s, "rolling": self.rolling_s, "gpus": NOBODY_KNOWS_S, "nobody": math.nan}
        return seconds[source] * self.gpus


class GpuTimeService:
    """Service that estimates GPU times of new jobs, and learns from ended ones."""

    name = NAME

    def __init__(self, params: GpuTimeParams, rolling: RollingParams) -> None:
        self.params = params
        self.rolling = RollingEstimator(rolling)
        self.judge = Judge(margin=params.margin, jobs=params.judged_jobs)
        self.weight = 0.5  # lambda: what the rolling estimate counts
        self.refused = 0  # facts that made no sense
        self._spread = {"model": Spread(), "rolling": Spread()}
        self._codes = {name: Codes() for name in CATEGORIES[:2]}
        self._trees: Gbdt | None = None
        self._pending: dict[int, _Seen] = {}
        self._ended: deque[tuple[_Seen, float]] = deque(maxlen=params.window_jobs)  # with its seconds
        self._learned = 0
        self._told_by: Source = self.source

    # ------------------------------------------------------------------ what a service is

    @property
    def rule(self) -> UpdateRule:
        """Rule for training, from the settings."""
        return UpdateRule(every_s=self.params.update_every_s, drift=self.params.drift)

    @property
    def source(self) -> Source:
        """Name of the estimator in use."""
        return self.judge.source if self.params.use == "best" else self.params.use

    @property
    def learnable(self) -> int:
        """Jobs that have ended; 0 when no model is wanted."""
        return self._learned if self.params.use == "best" else 0

    @property
    def drift(self) -> float:
        """Drift of the model's median error, in logarithms."""
        return self.judge.drift

    def observe(self, fact: Fact) -> tuple[Advice, ...]:
        """Estimate for a new job; new estimates for all waiting jobs when another estimator takes over."""
        if isinstance(fact, JobSubmitted):
            return (*self._anew(), self._expect(fact.job))
        if isinstance(fact, JobEnded):
            self._learn(fact)
        return self._anew()

    def _anew(self) -> tuple[Advice, ...]:
        """For jobs that wait: expectations of two estimators don't compare."""
        if self.source == self._told_by:
            return ()
        self._told_by = self.source
        return tuple(self._told(sequence, seen) for sequence, seen in self._pending.items())

    def forget_pending(self) -> None:
        """Forget all pending jobs, before another log."""
        self._pending.clear()

    # ------------------------------------------------------------------ expecting

    def _expect(self, job: Job) -> Expect:
        rolling = self.rolling.expect(job)
        row = np.array(feature_row(job, rolling, self._codes_of(job, rolling)))
        kind, median_s = kind_of(rolling), math.nan
        if self._trees is not None and self.params.use == "best":
            trees_s = self._trees.duration_s(row.reshape(1, -1)).item()
            median_s = bounded_s(self.weight * rolling.duration_s + (1 - self.weight) * trees_s)
        seen = _Seen(
            row=row,
            submit_s=job.submit_s,
            gpus=job.gpus,
            kind=kind,
            model_median_s=median_s,
            model_s=median_s * self._spread["model"].factor(kind),
            rolling_median_s=rolling.duration_s,
            rolling_s=rolling.duration_s * self._spread["rolling"].factor(kind),
        )
        self._pending[job.sequence] = seen
        return self._told(job.sequence, seen)

    def _told(self, sequence: int, seen: _Seen) -> Expect:
        """Estimate by the estimator in use; a job older than the model gets the rolling estimate instead."""
        source = self.source
        if source == "model" and math.isnan(seen.model_s):
            source = "rolling"
        return Expect(sequence=sequence, gpu_s=seen.gpu_s(source), source=source)

    def _codes_of(self, job: Job, rolling: RollingEstimate) -> tuple[float, float, float]:
        bucket = math.nan if rolling.bucket < 0 else float(rolling.bucket)
        return self._codes["user"].add(job.user), self._codes["vc"].add(job.vc), bucket

    # ------------------------------------------------------------------ learning

    def _learn(self, fact: JobEnded) -> None:
        seen = self._pending.pop(fact.job.sequence, None)
        if not 0 <= fact.ran_s < math.inf:
            self.refused += 1
            return
        ran_s = bounded_s(fact.ran_s)
        self.rolling.add(fact.job, ran_s)
        if seen is None:  # it came before this service was made
            return
        self._learned += 1
        self._ended.append((seen, ran_s))
        # By the estimates of its submission: what was learned since was not known then.
        self._spread["rolling"].add(seen.kind, math.log(ran_s / seen.rolling_median_s))
        if not math.isnan(seen.model_median_s):
            self._spread["model"].add(seen.kind, math.log(ran_s / seen.model_median_s))
        judged = Judged(seen.gpu_s("model"), seen.gpu_s("rolling"), seen.gpu_s("gpus"), ran_s * seen.gpus)
        self.judge.add(judged, has_model=self._trees is not None)

    def fit(self, now_s: float) -> ModelRecord | None:
        """Train trees on the older part, learn lambda on the newer, then train on all."""
        if self.params.use != "best" or len(self._ended) < LEAST_FIT:
            return None
        rows = np.array([seen.row for seen, _ in self._ended])
        ran_s = np.array([seconds for _, seconds in self._ended])
        # 1. Trees of the older part; the newer part says how many are enough.
        cut = int(len(rows) * (1 - HELD_SHARE))
        trial = fit_gbdt(rows[:cut], ran_s[:cut], held=(rows[cut:], ran_s[cut:]))
        before, held = [seen for seen, _ in self._ended][:cut], [seen for seen, _ in self._ended][cut:]
        of_rolling = Spread()  # until the model's own errors are seen, those of what it stands on
        for seen, seconds in zip(before, ran_s.tolist(), strict=False):
            of_rolling.add(seen.kind, math.log(seconds / seen.rolling_median_s))
        # 2. Lambda by the newer part, to which these trees are not fitted.
        found = self._learn_weight(held, trial.duration_s(rows[cut:]), ran_s[cut:], of_rolling)
        # 3. As many trees of all jobs.
        self._trees = fit_gbdt(rows, ran_s, rounds=max(1, trial.trees))
        self.judge.expect_error(found.log_error)
        self.judge.judge(has_model=True)
        return self._record(now_s, found)

    def _learn_weight(self, held: list[_Seen], trees_s: Floats, ran_s: Floats, of_rolling: Spread) -> Quality:
        """The lambda by which run times of the older half of what was held back are met best.

        By the square of the error in logarithms; of those that can't be told from it, the one that leaves most to the
        rolling estimate. Trees that only seem better by chance would add noise to what is known.

        By the newer half the model is judged, and so are the others, if none was judged before: what something was
        chosen by can't tell how good it is.
        """
        gpus = np.array([float(seen.gpus) for seen in held])
        rolling, by_gpus = (np.array([seen.gpu_s(source) for seen in held]) for source in BASELINES)
        medians_s = np.array([seen.rolling_median_s for seen in held])
        true, half = ran_s * gpus, len(held) // 2
        kinds = [seen.kind for seen in held]
        trials: dict[float, tuple[Floats, Spread]] = {}
        errors: dict[float, Floats] = {}
        for weight in LAMBDAS if self.params.rolling_weight == math.inf else (self.params.rolling_weight,):
            median_s = weight * medians_s + (1 - weight) * trees_s
            spread, off = of_rolling.copy(), np.log(ran_s / median_s)
            errors[weight] = off[:half] ** 2
            for kind, error in zip(kinds[:half], off.tolist(), strict=False):
                spread.add(kind, error)
            trials[weight] = median_s * gpus * np.array([spread.factor(kind) for kind in kinds]), spread
        self.weight = _most_cautious(errors)
        model, spread = trials[self.weight]
        if not self.judge.has_judged_model:
            columns = (one[half:].tolist() for one in (model, rolling, by_gpus, true))
            self.judge.begin(Judged(*values) for values in zip(*columns, strict=True))
            self._spread["model"] = spread
        return quality(model[half:], true[half:])

    # ------------------------------------------------------------------ as files

    def _record(self, now_s: float, found: Quality) -> ModelRecord:
        trees = self._trees
        assert trees is not None
        names = {"bucket": self.rolling.buckets.firsts, **{kind: codes.names for kind, codes in self._codes.items()}}
        rolling = self.rolling.params
        return ModelRecord(
            service=NAME,
            text=with_memory(trees.text, self.rolling, self._spread),
            features=FEATURES,
            trained_from_s=min(seen.submit_s for seen, _ in self._ended),
            trained_to_s=now_s,
            trained_on=len(self._ended),
            params={
                "lambda": self.weight, "similarity": rolling.similarity, "decay": rolling.decay,
                "prior_jobs": rolling.prior_jobs,
            },
            tables={
                kind: {names[kind][number]: category for number, category in table.items()}
                for kind, table in trees.tables.items()
            },
            metrics={
                "log_error": found.log_error, "spearman": found.spearman, "within_2": found.within_2,
                **{f"saving_{name}": value for name, value in self.judge.savings.items()},
                **{f"error_{name}": value for name, value in self.judge.errors.items()},
            },
        )  # fmt: skip

    def use(self, record: ModelRecord) -> None:
        """Use a model from a file, with its state of past jobs, in place of the present one.

        Until enough jobs have ended, its own figures decide whether it is believed.
        """
        if record.service != NAME:
            raise ConfigError(f"the model is of service '{record.service}', not {NAME}")
        tables = {kind: self._table(kind, record.tables) for kind in CATEGORIES}
        self._trees = gbdt_from_text(without_memory(record.text), tables, record.features)
        recall(record.text, self.rolling, self._spread)
        self.weight = record.params.get("lambda", self.weight)
        self.judge.expect_error(record.metrics.get("log_error", math.nan))
        savings, errors = (
            {name: record.metrics.get(f"{kind}_{name}", math.nan) for name in ("model", "rolling", "gpus")}
            for kind in ("saving", "error")
        )
        self.judge.believe(savings, errors, has_model=True)

    def _table(self, kind: str, tables: Mapping[str, Mapping[str, int]]) -> Mapping[int, int]:
        if kind not in tables:
            raise ConfigError(f"the model lacks the table of its category {kind}", hint="fit it again")
        add = self.rolling.buckets.add if kind == "bucket" else self._codes[kind].add
        return {int(add(name)): category for name, category in tables[kind].items() if name}


def _most_cautious(errors: Mapping[float, Floats]) -> float:
    """The greatest lambda whose errors are within a standard error of the best one's, job by job."""
    best = min(errors, key=lambda weight: float(errors[weight].mean()))
    for weight in sorted(errors, reverse=True):
        more = errors[weight] - errors[best]
        if more.mean() <= more.std() / math.sqrt(len(more)):
            return weight
    return best
