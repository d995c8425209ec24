"""Run times as the jobs that have ended teach them, for a scheduler of real jobs. PURE.

The service behind QSSF (gpu_time.py) as an `Estimator`. It hears of each job when it is submitted and when it ends, in
this order, and of nothing else: the simulator and the manager that tell it the same get the same answers. Fits are
asked for (`lesson`) and taken (`take`) by its owner, who has them made elsewhere meanwhile.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.qssf import Cut, Qssf, short_up_to_gpu_s
from farside.scheduler.predict.estimator import left_s
from farside.scheduler.predict.gpu_time import Expectation, GpuTimeParams, GpuTimeService
from farside.scheduler.predict.gpu_time_fit import Fitted, Lesson, learned_from
from farside.scheduler.predict.job_history import Past, replay
from farside.scheduler.predict.model_update import MUCH_IS_NEW, due
from farside.scheduler.predict.rolling_estimate import RollingParams
from farside.scheduler.predict.rolling_state import without_memory
from farside.scheduler.predict.service import Advice, Expect, JobEnded, JobSubmitted, ModelRecord
from farside.scheduler.state import Job

# Of the past the newest are replayed one by one, a fifth of a millisecond each; the others count in averages alone.
REPLAYED_JOBS = 50_000
# A scheduler of real jobs has few at first, and orders them by what it has.
LIVE = GpuTimeParams(first="rolling")


class LearnedTimes:
    """Estimator that learns from every job that ends.

    Args:
        params: Of the service.
        history: Jobs that ended before, by submit time.
        record: A model that was fitted earlier.
        fits_at_once: Models are fitted here, whenever that is due; otherwise the owner has them fitted.

    Raises:
        ConfigError: The model is of another version, or damaged.
    """

    def __init__(
        self,
        params: GpuTimeParams = LIVE,
        *,
        history: Sequence[Past] = (),
        record: ModelRecord | None = None,
        fits_at_once: bool = False,
    ) -> None:
        self.service = GpuTimeService(params, RollingParams() if record is None else rolling_of(record))
        self._expected_gpu_s: dict[int, float] = {}  # by sequence, of each job that has not ended
        self._fits_at_once = fits_at_once
        self._fitted_on = 0
        self._fitted_s = math.nan
        if record is not None:
            # With a history, the rolling estimate learns from that instead of the state in the file.
            self.service.use(replace(record, text=without_memory(record.text)) if history else record)
        self._trained_on = 0 if record is None else record.trained_on
        for job, ran_s in history[:-REPLAYED_JOBS]:
            self.remember(job, ran_s)
        for fact in replay(history[-REPLAYED_JOBS:]):
            self.service.observe(fact)
        # The numbers of history's jobs may be those of jobs that come.
        self.service.forget_pending()

    # ------------------------------------------------------------------ what an estimator is

    def predicted_gpu_s(self, job: Job, now_s: float) -> float:
        """What was expected of it when it was first asked about, or since another estimator has taken over."""
        if job.sequence not in self._expected_gpu_s:
            self._note(self.service.observe(JobSubmitted(at_s=now_s, job=job)))
        return self._expected_gpu_s[job.sequence]

    def remaining_s(self, job: Job, done_s: float) -> float:
        """What is left of its time limit; without one, of what is expected of it; infinite where nothing is known."""
        known = self.service.expectation(job.sequence)
        return left_s(job, done_s, expected_s=math.inf if known is None else known.run_s)

    def learn(self, ended: JobEnded) -> Mapping[int, float]:
        """Learns from it."""
        # From the first end in the log, so that a scheduler that is started again counts the week on.
        if math.isnan(self._fitted_s):
            self._fitted_s = ended.at_s
        told = self._note(self.service.observe(ended))
        self._expected_gpu_s.pop(ended.job.sequence, None)
        if self._fits_at_once and (lesson := self.lesson(ended.at_s)) is not None:
            told = {**told, **self.take(learned_from(lesson))}
        return told

    def drop(self, sequence: int) -> None:
        """Forget a job that is over and never ran."""
        self.service.drop(sequence)
        self._expected_gpu_s.pop(sequence, None)

    def expect_alike(self, sequence: int, other: int) -> bool:
        """Expect of a job what is expected of another one, with which it was submitted; False: nothing is of that."""
        told = self._note(self.service.expect_alike(sequence, other))
        return sequence in told

    def remember(self, job: Job, ran_s: float) -> None:
        """Add a job that ended long ago to the averages of its kind; no model is fitted to it."""
        self.service.remember(job, ran_s)

    def _note(self, advice: Sequence[Advice]) -> Mapping[int, float]:
        told = {one.sequence: one.gpu_s for one in advice if isinstance(one, Expect)}
        self._expected_gpu_s.update(told)
        return told

    # ------------------------------------------------------------------ for people

    @property
    def knows_nothing(self) -> bool:
        """Whether no job has ended yet, nor is known from history or a model."""
        return self.service.rolling.is_empty

    def expectation(self, sequence: int) -> Expectation | None:
        """What a job is, or was, expected to take; None: nothing was known of it, or it ended long ago."""
        return self.service.expectation(sequence)

    # ------------------------------------------------------------------ fits

    def lesson(self, now_s: float) -> Lesson | None:
        """What to fit a model to, if that is due; then it counts as fitted. [helios §4.1]"""
        if math.isnan(self._fitted_s):
            self._fitted_s = now_s
        reason = due(
            self.service.rule, known=self.service.learnable, fitted_on=self._fitted_on,
            since_fit_s=now_s - self._fitted_s, drift=self.service.drift,
        )  # fmt: skip
        # A model from a file knows more than the first few hundred jobs that end here.
        is_known_better = reason == MUCH_IS_NEW and self.service.learnable < self._trained_on
        if not reason or is_known_better:
            return None
        self._fitted_s, self._fitted_on = now_s, self.service.learnable
        return self.service.lesson()

    def take(self, fitted: Fitted) -> Mapping[int, float]:
        """Use a model; returns new estimates of jobs that came before it, by sequence."""
        self.service.take(fitted)
        return self._note((*self.service.look_again(), *self.service.anew()))

    def primed(self, order: OrderPolicy) -> OrderPolicy:
        """QSSF with the cut that history gives."""
        return primed(order, self.service)


def primed(order: OrderPolicy, service: GpuTimeService) -> OrderPolicy:
    """QSSF with the cut that the judged jobs of a service give; any other policy as it is."""
    judged = service.judge.judged
    if not isinstance(order, Qssf) or not judged:
        return order
    believed = service.source if service.source != "nobody" else "gpus"
    expected = np.array([getattr(one, believed) for one in judged])
    true = np.array([one.true for one in judged])
    return replace(order, cut=Cut(short_up_to_gpu_s(expected, true, order.overtaking_share)))


def rolling_of(record: ModelRecord) -> RollingParams:
    """Settings of the rolling estimate that a model was fitted with."""
    names = ("similarity", "decay", "prior_jobs")
    return RollingParams(**{name: record.params[name] for name in names if name in record.params})
