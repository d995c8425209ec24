"""What a live job is expected to take, in words and for the API. PURE."""

import math

from farside.scheduler.explain import expectation_lines
from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.view.view import NOTHING_EXPECTED, Expected
from farside.scheduler.predict.learned_times import LearnedTimes


def expected_of(times: LearnedTimes | None, job: LiveJob) -> Expected:
    """What is expected of a job, or was if it is over."""
    known = None if times is None else times.expectation(job.sequence)
    if known is None:
        return NOTHING_EXPECTED
    error = None if math.isnan(known.error) else known.error
    return Expected(expected_s=known.run_s, expected_error=error, expected_from_jobs=known.from_jobs)


def expected_lines(times: LearnedTimes | None, job: LiveJob) -> tuple[str, ...]:
    """What a job is expected to take, in words; none where the policy does not ask how long jobs run."""
    if times is None or job.spec.colocate:
        return ()
    return expectation_lines(times.expectation(job.sequence), job.limit_s)
