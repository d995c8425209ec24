"""Estimators for simulations: an oracle, or a service that learns as jobs end. PURE.

A learner is told of a job when it comes, without its run time, and again when it has ended: it knows what it would have
known in life, and at no time more.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.predict.estimate_quality import Quality, quality
from farside.scheduler.predict.estimator import Estimator
from farside.scheduler.predict.gpu_time import GpuTimeParams, GpuTimeService
from farside.scheduler.predict.job_history import Past, learned_rolling, tell_all
from farside.scheduler.predict.learned_times import primed, rolling_of
from farside.scheduler.predict.model_update import Orchestrator
from farside.scheduler.predict.rolling_estimate import RollingParams
from farside.scheduler.predict.rolling_state import without_memory
from farside.scheduler.predict.service import Expect, Fact, JobEnded, JobSubmitted, ModelRecord
from farside.scheduler.sim.oracle import Oracle
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Job

EstimatorName = Literal["oracle", "model", "rolling", "gpus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimation:
    """Accuracy of estimates, over all jobs that had one.

    Attributes:
        quality: Against the truth.
        sources: How many jobs each estimator was believed for.
        fits: How often a model was fitted.
        params: The learner's, as learned: similarity, decay, prior_jobs, lambda; empty of an oracle.
    """

    quality: Quality
    sources: dict[str, int]
    fits: int = 0
    params: dict[str, float] = field(default_factory=dict)


class Primer(Estimator, Protocol):
    """Estimator that may prepare a policy before the first job."""

    def primed(self, order: OrderPolicy) -> OrderPolicy:
        """The policy with what is known before the first job."""
        ...


class Judged(Primer, Protocol):
    """Estimator whose accuracy is measured."""

    def summary(self, jobs: Sequence[TraceJob]) -> Estimation:
        """How good it was, after the last of these jobs."""
        ...


class Foreknown:
    """Estimator with given estimates for each job of a trace, such as an oracle.

    Args:
        expected_gpu_s: What is expected of a job when it comes, GPU seconds.
        jobs: The trace.
    """

    def __init__(self, expected_gpu_s: Callable[[TraceJob], float], jobs: Iterable[TraceJob]) -> None:
        self._expected_gpu_s = expected_gpu_s
        self._traced = {traced.job.sequence: traced for traced in jobs}

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """What it was given."""
        return self._expected_gpu_s(self._traced[job.sequence])

    def remaining_s(self, job: Job, done_s: float) -> float:
        """The truth: a trace says how long its jobs run."""
        return self._traced[job.sequence].duration_s - done_s

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """Nothing new to it."""
        return {}

    def primed(self, order: OrderPolicy) -> OrderPolicy:
        """As it was."""
        return order

    def summary(self, jobs: Sequence[TraceJob]) -> Estimation:
        """Summary of the oracle's errors, computed again: they are equal at any time."""
        expected = {job.job.sequence: self._expected_gpu_s(job) for job in jobs}
        return Estimation(quality=_quality(jobs, expected), sources={"oracle": len(jobs)})


class Learner:
    """Estimator that learns from history, and then from every job that ends.

    Args:
        params: Of the service.
        rolling: Of its rolling estimate. Where it is the default it is learned from history.
        history: Past jobs by submit time, all of them ended.
        record: A model that was fitted earlier, used until the first fit.
    """

    def __init__(
        self,
        params: GpuTimeParams,
        rolling: RollingParams,
        history: Sequence[Past] = (),
        record: ModelRecord | None = None,
    ) -> None:
        if rolling == RollingParams():
            rolling = rolling_of(record) if record else learned_rolling(history, rolling)
        self.service = GpuTimeService(params, rolling)
        self.orchestrator = Orchestrator([self.service])
        self._expected: dict[int, float] = {}
        self._source_of: dict[int, str] = {}
        self._sources = Counter[str]()
        if record is not None:
            # With a history, the rolling estimate learns from that instead of the state in the file.
            self.service.use(replace(record, text=without_memory(record.text)) if history else record)
        if history:
            tell_all(self.orchestrator, history, is_fitting=record is None)
            # The numbers of history's jobs may be those of jobs in the trace.
            self.service.forget_pending()

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """An expectation from the job alone: nothing else of the trace is passed on."""
        if job.sequence not in self._expected:
            self._tell(JobSubmitted(at_s=now_s, job=job))
            self._sources[self._source_of.pop(job.sequence, "nobody")] += 1
        return self._expected.get(job.sequence, math.nan)

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is expected of it, without what is done."""
        predicted_gpu_s = self._expected.get(job.sequence, math.nan)
        return math.inf if math.isnan(predicted_gpu_s) else max(0.0, predicted_gpu_s / job.gpus - done_s)

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """Learns from it."""
        return self._tell(ended)

    def _tell(self, fact: Fact) -> Mapping[int, float]:
        told: dict[int, float] = {}
        for advice in self.orchestrator.tell(fact):
            if isinstance(advice, Expect):
                told[advice.sequence] = advice.gpu_s
                self._source_of[advice.sequence] = advice.source
        self._expected.update(told)
        return told

    def primed(self, order: OrderPolicy) -> OrderPolicy:
        """QSSF gets the cut that history gives."""
        return primed(order, self.service)

    def summary(self, jobs: Sequence[TraceJob]) -> Estimation:
        """How good its expectations were when the jobs came."""
        rolling = self.service.rolling.params
        return Estimation(
            quality=_quality(jobs, self._expected),
            sources=dict(self._sources.most_common()),
            fits=sum(update.record is not None for update in self.orchestrator.updates),
            params={
                "similarity": rolling.similarity, "decay": rolling.decay, "prior_jobs": rolling.prior_jobs,
                "lambda": self.service.weight,
            },
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorSpec:
    """Recipe for an estimator, made new for each run. ``name``: the value of ``--set estimator=``."""

    name: EstimatorName = "oracle"
    oracle: Oracle = field(default_factory=Oracle)
    gpu_time: GpuTimeParams = field(default_factory=GpuTimeParams)
    rolling: RollingParams = field(default_factory=RollingParams)
    history: tuple[Past, ...] = field(default=(), repr=False)
    record: ModelRecord | None = field(default=None, repr=False)

    @property
    def is_learning(self) -> bool:
        """Whether history is of use to it."""
        return self.name != "oracle"

    def make(self, jobs: Iterable[TraceJob]) -> Judged:
        """The estimator for a trace, having learned what there is to learn before the first job."""
        if self.name == "oracle":
            return Foreknown(self.oracle, jobs)
        params = replace(self.gpu_time, use="best" if self.name == "model" else self.name)
        return Learner(params, self.rolling, self.history, self.record)


def past_of(jobs: Sequence[TraceJob], until_s: float = math.inf) -> tuple[Past, ...]:
    """History from a trace: jobs that ended by a time, as far as the trace shows."""
    return tuple((job.job, job.duration_s) for job in jobs if job.job.submit_s + job.duration_s <= until_s)


def _quality(jobs: Sequence[TraceJob], expected: dict[int, float]) -> Quality:
    pairs = [(expected.get(job.job.sequence, math.nan), job.duration_s * job.job.gpus) for job in jobs]
    known = np.array([pair for pair in pairs if not math.isnan(pair[0])]).reshape(-1, 2)
    return quality(known[:, 0], known[:, 1])
