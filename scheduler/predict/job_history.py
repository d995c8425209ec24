"""History of past jobs as events in time order, and estimates learned from it. PURE."""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from farside.scheduler.predict.estimate_quality import queue_saving
from farside.scheduler.predict.model_update import Orchestrator
from farside.scheduler.predict.rolling_estimate import RollingEstimator, RollingParams, bounded_s
from farside.scheduler.predict.service import JobEnded, JobSubmitted
from farside.scheduler.state import Job

# A past job and the seconds that it ran.
Past = tuple[Job, float]

# What is tried, each from the default of the others; on the newest jobs only, the first half of which is learned from.
SIMILARITIES, DECAYS = (0.8, 0.9, 1.0), (0.7, 0.9, 0.97, 1.0)
TRIED_JOBS = 20_000
LEAST_TRIED = 200
REFIT_SHARE = 1 / 3  # of what is known then


def replay(past: Iterable[Past]) -> Iterator[JobSubmitted | JobEnded]:
    """The facts of past jobs. A log's jobs ended at the earliest when they had come and run: how long they waited it
    may not say. At one instant jobs end before others come.

    Args:
        past: By submit time.
    """
    running: list[tuple[float, int, Job, float]] = []
    for at, (job, ran_s) in enumerate(past):
        while running and running[0][0] <= job.submit_s:
            yield _ended(heapq.heappop(running))
        yield JobSubmitted(at_s=job.submit_s, job=job)
        end_s = job.submit_s + ran_s
        # A run time that is negative or NaN ends the job at once; services count such an end as refused.
        heapq.heappush(running, (end_s if end_s >= job.submit_s else job.submit_s, at, job, ran_s))
    while running:
        yield _ended(heapq.heappop(running))


def _ended(entry: tuple[float, int, Job, float]) -> JobEnded:
    end_s, _, job, ran_s = entry
    return JobEnded(at_s=end_s, job=job, ran_s=ran_s)


def tell_all(orchestrator: Orchestrator, past: Sequence[Past], *, is_fitting: bool = True) -> None:
    """Services learn from all of it, and have a model afterwards, if it was enough for one, or not ``is_fitting``.

    Models are fitted on the way as well, whenever there is half as much again to fit them to: so each has been judged
    by jobs that it did not know, as in life.
    """
    end_s = 0.0
    fitted_on = dict.fromkeys(orchestrator.engines, 0)
    for fact in replay(past):
        end_s = fact.at_s
        for engine in orchestrator.engines:
            engine.service.observe(fact)
            known = engine.service.learnable
            if is_fitting and known - fitted_on[engine] >= max(engine.service.rule.new_facts, known * REFIT_SHARE):
                engine.update(end_s, "history is read")
                fitted_on[engine] = known
    for engine in orchestrator.engines if is_fitting else ():
        engine.update(end_s, "history was read")


def learned_rolling(past: Sequence[Past], start: RollingParams) -> RollingParams:
    """Similarity and decay by which run times of the newer half of these jobs would have been met best, by the square
    of the error in logarithms, learning as they end.

    One after the other, each with what was found before; the defaults where there is too little to tell. What an order
    would have been worth is decided by the few longest jobs, and so mostly by chance: it does not choose here.
    """
    tried = past[-TRIED_JOBS:]
    if len(tried) < LEAST_TRIED or not any(job.name and job.user for job, _ in tried):
        return start
    best, least = start, rolling_trial(tried, start).square_error
    for name, values in (("similarity", SIMILARITIES), ("decay", DECAYS)):
        for value in values:
            params = replace(best, **{name: value})
            if params == best:
                continue
            error = rolling_trial(tried, params).square_error
            if error < least:
                best, least = params, error
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a rolling estimate was worth to the newer half of some jobs: `queue_saving`, and the mean square of its
    errors in logarithms.
    """

    saving: float
    square_error: float


def rolling_trial(past: Sequence[Past], params: RollingParams) -> Trial:
    """The rolling estimate for the newer half of these jobs, learning as they end."""
    estimator = RollingEstimator(params)
    expected: dict[int, float] = {}
    pairs: list[tuple[float, float, int]] = []
    half_s = past[len(past) // 2][0].submit_s
    for fact in replay(past):
        job = fact.job
        if isinstance(fact, JobSubmitted):
            if job.submit_s >= half_s:
                expected[job.sequence] = estimator.expect(job).duration_s
            continue
        if not fact.ran_s >= 0:
            continue
        estimator.add(job, fact.ran_s)
        if job.sequence in expected:
            pairs.append((expected.pop(job.sequence), bounded_s(fact.ran_s), job.gpus))
    if len(pairs) < 2:
        return Trial(saving=0.0, square_error=math.inf)
    told, ran_s, gpus = np.array(pairs).T
    return Trial(saving=queue_saving(told * gpus, ran_s * gpus), square_error=float(np.mean(np.log(told / ran_s) ** 2)))
