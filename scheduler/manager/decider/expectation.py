"""What a live job is expected to take, in words and for the API. PURE."""

import math

from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.view.view import NOTHING_EXPECTED, Expected
from farside.scheduler.predict.gpu_time import Expectation
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.units import format_count, format_seconds

# By the case of an estimate (rolling_estimate.CASES), whose jobs it comes from.
_OF = {
    "new user": "of all users",
    "no similar name": "of this user",
    "similar name": "of this user with a similar name",
}


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
    known, limit_s = times.expectation(job.sequence), job.spec.time_limit_s
    if known is None and limit_s:
        return (f"how long it runs is not known, as no job had ended when it came; its time limit of "
                f"{format_seconds(limit_s)} counts",)  # fmt: skip
    if known is None:
        return ("how long it runs is not known, as no job had ended when it came; its number of GPUs counts",)
    return (_words(known), *_not_believed(known))


def _words(known: Expectation) -> str:
    jobs = f"{format_count(known.from_jobs, 'job')} {_OF[known.case]}"
    error = (
        "" if math.isnan(known.error) else f"; half of such estimates were off by a factor of {known.error:.2g} or less"
    )
    return f"is expected to run {format_seconds(known.run_s)} in all, from {jobs}{error}"


def _not_believed(known: Expectation) -> tuple[str, ...]:
    if known.source == "gpus":
        return ("estimates order jobs no better than their number of GPUs lately, so that is what counts",)
    if known.source == "nobody":
        return ("neither estimates nor numbers of GPUs order jobs well lately, so jobs go in the order of arrival",)
    return ()
