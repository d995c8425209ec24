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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from farside.errors import ConfigError
from farside.scheduler.predict.choose_estimator import LEAST_JUDGED, Judge, Judged, Source
from farside.scheduler.predict.gbdt import Gbdt, gbdt_from_text
from farside.scheduler.predict.gpu_time_fit import EndedJobs, Fitted, Lesson, learned_from
from farside.scheduler.predict.job_features import CATEGORIES, FEATURES, USER, Codes, feature_row
from farside.scheduler.predict.mean_correction import RecentErrors, Spread, kind_of
from farside.scheduler.predict.rolling_estimate import (
    CASES,
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

REMEMBERED = 10_000  # ended jobs of which what was expected is still told
LEAST_FIT = 200  # jobs, below which trees know nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTimeParams:
    """Settings of the service.

    Attributes:
        use: ``best``: whatever has ranked best; ``rolling`` or ``gpus``: that alone.
        first: What is believed until enough jobs have ended to judge: number of ``gpus`` or ``rolling`` estimate.
        margin: By how much of `queue_saving` an estimator must be better than the number of GPUs.
        judged_jobs: The newest ended jobs by which estimators are judged.
        window_jobs: The newest ended jobs to which the trees are fitted.
        update_every_s: How long a model is used before it is fitted anew; `UpdateRule` has what else does that.
        drift: See there.
        rolling_weight: Lambda, what the rolling estimate counts in the model; infinite: learned at each fit.
    """

    use: Choice = "best"
    first: Literal["gpus", "rolling"] = "gpus"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What one job is expected to take, for people.

    Attributes:
        run_s: The median, seconds in all; never more than its time limit.
        error: Of the last estimates from as near jobs half were off by no more than this factor; NaN: none has ended.
        from_jobs: Ended jobs that were most like it.
        case: How near they are, one of `CASES`.
        source: The estimator.
    """

    run_s: float
    error: float
    from_jobs: int
    case: str
    source: str


@dataclass(frozen=True, slots=True)
class _Seen:
    """A job when it came: its features, its kind, and the seconds that each estimator had as median and as mean; NaN
    where there was no model. ``nearest`` and ``jobs`` are those of its rolling estimate.
    """

    row: Floats
    submit_s: float
    gpus: int
    kind: int
    model_median_s: float
    model_s: float
    rolling_median_s: float
    rolling_s: float
    nearest: int
    jobs: int
    limit_s: float

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
        self.judge = Judge(margin=params.margin, jobs=params.judged_jobs, first=params.first)
        self.weight = 0.5  # lambda: what the rolling estimate counts
        self.refused = 0  # facts that made no sense
        self._spread = {"model": Spread(), "rolling": Spread()}
        self._codes = {name: Codes() for name in CATEGORIES[:2]}
        self._trees: Gbdt | None = None
        self._pending: dict[int, _Seen] = {}
        self._ended = EndedJobs(params.window_jobs)
        self._learned = 0
        self._errors = RecentErrors()
        self._over: dict[int, Expectation] = {}  # of jobs that have ended, the oldest first
        self._alike: tuple[tuple[object, ...], _Seen] | None = None  # the last that came, if nothing was learned since
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
            return (*self.anew(), self._expect(fact.job))
        if isinstance(fact, JobEnded):
            self._learn(fact)
        return self.anew()

    def anew(self) -> tuple[Advice, ...]:
        """New estimates of all jobs, once after another estimator took over: those of two don't compare."""
        if self.source == self._told_by:
            return ()
        self._told_by = self.source
        return tuple(self._told(sequence, seen) for sequence, seen in self._pending.items())

    def forget_pending(self) -> None:
        """Forget all pending jobs, before another log."""
        self._pending.clear()
        self._over.clear()

    def remember(self, job: Job, ran_s: float) -> None:
        """Add an ended job to the averages of its kind alone."""
        if 0 <= ran_s < math.inf:
            self.rolling.add(job, bounded_s(ran_s))

    def drop(self, sequence: int) -> None:
        """Forget a job that is over and never ran: it says nothing about how long jobs of its kind run."""
        self._pending.pop(sequence, None)

    def expect_alike(self, sequence: int, other: int) -> tuple[Advice, ...]:
        """Estimate for a job that came together with another one, which is pending; none where that is not."""
        seen = self._pending.get(other)
        if seen is None:
            return ()
        self._pending[sequence] = seen
        return (self._told(sequence, seen),)

    # ------------------------------------------------------------------ expecting

    def _expect(self, job: Job) -> Expect:
        # Tasks of an array come by the thousand, and are one to everything that is looked at here.
        key = (job.user, job.name, job.gpus, job.cpus_per_gpu, job.vc, job.limit_s, job.submit_s)
        seen = self._alike[1] if self._alike is not None and self._alike[0] == key else self._look_at(job)
        self._alike = key, seen
        self._pending[job.sequence] = seen
        return self._told(job.sequence, seen)

    def _look_at(self, job: Job) -> _Seen:
        rolling = self.rolling.expect(job)
        row = np.array(feature_row(job, rolling, self._codes_of(job, rolling)))
        kind, median_s = kind_of(rolling), math.nan
        if self._trees is not None and self.params.use == "best":
            trees_s = self._trees.duration_s(row.reshape(1, -1)).item()
            median_s = bounded_s(self.weight * rolling.duration_s + (1 - self.weight) * trees_s)
        return _Seen(
            row=row,
            submit_s=job.submit_s,
            gpus=job.gpus,
            kind=kind,
            model_median_s=median_s,
            model_s=median_s * self._spread["model"].factor(kind),
            rolling_median_s=rolling.duration_s,
            rolling_s=rolling.duration_s * self._spread["rolling"].factor(kind),
            nearest=rolling.nearest,
            jobs=rolling.jobs,
            limit_s=job.limit_s,
        )

    def look_again(self) -> tuple[Advice, ...]:
        """Estimates by the model for jobs that came before it did, in one go: as after a restart."""
        older = [(at, seen) for at, seen in self._pending.items() if math.isnan(seen.model_median_s)]
        if self._trees is None or not older:
            return ()
        trees_s = self._trees.duration_s(np.array([seen.row for _, seen in older])).tolist()
        for (at, seen), seconds in zip(older, trees_s, strict=True):
            median_s = bounded_s(self.weight * seen.rolling_median_s + (1 - self.weight) * seconds)
            mean_s = median_s * self._spread["model"].factor(seen.kind)
            self._pending[at] = replace(seen, model_median_s=median_s, model_s=mean_s)
        return tuple(self._told(at, self._pending[at]) for at, _ in older)

    def _source_of(self, seen: _Seen) -> Source:
        """The estimator in use; a job older than the model has the rolling estimate instead."""
        source = self.source
        return "rolling" if source == "model" and math.isnan(seen.model_s) else source

    def _told(self, sequence: int, seen: _Seen) -> Expect:
        """Estimate by the estimator in use, at most the time limit; where no job has ended yet, that limit."""
        source = self._source_of(seen)
        gpu_s, limit_gpu_s = seen.gpu_s(source), seen.limit_s * seen.gpus
        if limit_gpu_s < math.inf and source not in ("gpus", "nobody"):
            gpu_s = min(gpu_s, limit_gpu_s) if seen.nearest else limit_gpu_s
        return Expect(sequence=sequence, gpu_s=gpu_s, source=source)

    def expectation(self, sequence: int) -> Expectation | None:
        """What was expected of a job, one that waits, runs or has ended; None: nothing was known of it."""
        seen = self._pending.get(sequence)
        return self._over.get(sequence) if seen is None else self._expectation(seen)

    def _expectation(self, seen: _Seen) -> Expectation | None:
        if not seen.nearest:
            return None
        source = self._source_of(seen)
        run_s = seen.model_median_s if source == "model" else seen.rolling_median_s
        return Expectation(
            run_s=min(run_s, seen.limit_s), error=self._errors.factor(seen.nearest), from_jobs=seen.jobs,
            case=CASES[seen.nearest], source=source,
        )  # fmt: skip

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
        self._alike = None
        # It came before this service was made, or before any job had ended: of a guess that is no estimate, nothing can
        # be learned about estimates.
        if seen is None or not seen.nearest:
            return
        self._keep(fact.job.sequence, seen, ran_s)
        self._learned += 1
        self._ended.add(
            seen.row, ran_s=ran_s, gpus=seen.gpus, kind=seen.kind, rolling_median_s=seen.rolling_median_s,
            rolling_s=seen.rolling_s, submit_s=seen.submit_s,
        )  # fmt: skip
        # By the estimates of its submission: what was learned since was not known then.
        self._spread["rolling"].add(seen.kind, math.log(ran_s / seen.rolling_median_s))
        if not math.isnan(seen.model_median_s):
            self._spread["model"].add(seen.kind, math.log(ran_s / seen.model_median_s))
        judged = Judged(
            seen.gpu_s("model"), seen.gpu_s("rolling"), seen.gpu_s("gpus"), ran_s * seen.gpus, float(seen.row[USER])
        )
        self.judge.add(judged, has_model=self._trees is not None)

    def _keep(self, sequence: int, seen: _Seen, ran_s: float) -> None:
        expectation = self._expectation(seen)
        if expectation is None:
            return
        self._errors.add(seen.nearest, math.log(ran_s / expectation.run_s))
        self._over[sequence] = expectation
        if len(self._over) > REMEMBERED:
            del self._over[next(iter(self._over))]

    def lesson(self) -> Lesson | None:
        """All that a fit needs; None: no model is wanted, or too few jobs have ended."""
        if self.params.use != "best" or len(self._ended) < LEAST_FIT:
            return None
        return self._ended.lesson(rolling_weight=self.params.rolling_weight, is_first=not self.judge.has_judged_model)

    def take(self, fitted: Fitted) -> None:
        """Use what a fit found; jobs that come from now on are expected by it."""
        self.weight, self._trees = fitted.weight, fitted.trees
        if fitted.spread is not None and not self.judge.has_judged_model:
            self.judge.begin(fitted.judged)
            self._spread["model"] = fitted.spread
        self.judge.expect_error(fitted.found.log_error)
        self.judge.judge(has_model=True)
        self._alike = None

    def fit(self, now_s: float) -> ModelRecord | None:
        """Fit here and now, and use it; the model as text."""
        lesson = self.lesson()
        if lesson is None:
            return None
        fitted = learned_from(lesson)
        self.take(fitted)
        return self.record(now_s, fitted)

    # ------------------------------------------------------------------ as files

    def record(self, now_s: float, fitted: Fitted) -> ModelRecord:
        """The model of a fit that was taken, and what past jobs have taught, as text."""
        trees, found = fitted.trees, fitted.found
        names = {"bucket": self.rolling.buckets.firsts, **{kind: codes.names for kind, codes in self._codes.items()}}
        rolling = self.rolling.params
        return ModelRecord(
            service=NAME,
            text=with_memory(trees.text, self.rolling, self._spread),
            features=FEATURES,
            trained_from_s=fitted.from_s,
            trained_to_s=now_s,
            trained_on=fitted.trained_on,
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
