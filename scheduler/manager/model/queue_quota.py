"""Queue quota: how many jobs and bytes each user has in the queue, and may have. PURE.

Jobs that are not over count, those that run too. Jobs of one submission share what was asked for; it counts once, until
the last of them is over. The counts follow the log, so that nobody has to look at all jobs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from farside.errors import ConfigError
from farside.scheduler.manager.model.event import JobSubmitted
from farside.scheduler.manager.model.submit_rate import SubmitRates, jobs_of
from farside.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """The most that one user may have in the queue, and submit within an hour; 0: any number. Operators may more."""

    jobs: int = 0
    size_bytes: int = 0
    hourly_jobs: int = 0


@dataclass(slots=True)
class _Submission:
    user: str
    jobs: int
    size_bytes: int


@dataclass(slots=True)
class QueueCounts:
    """Jobs that are not over, and the bytes of what was asked for, by user."""

    jobs: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)
    _open: dict[int, _Submission] = field(default_factory=dict)  # by the entry that submitted them

    def come(self, at: int, user: str, jobs: int, size_bytes: int) -> None:
        """Adds the jobs of one submission to the queue."""
        self._open[at] = _Submission(user, jobs, size_bytes)
        _add(self.jobs, user, jobs)
        _add(self.size_bytes, user, size_bytes)

    def leave(self, at: int) -> None:
        """One of them is over."""
        one = self._open[at]
        one.jobs -= 1
        _add(self.jobs, one.user, -1)
        if not one.jobs:
            del self._open[at]
            _add(self.size_bytes, one.user, -one.size_bytes)


class QueueGate:
    """Lets submissions into the log that keep to the limits, those counted that are on their way there."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._jobs: dict[str, int] = {}
        self._hourly: dict[str, int] = {}  # as they count for the hour, holds and releases included
        self._size_bytes: dict[str, int] = {}

    @contextmanager
    def passing(
        self, event: JobSubmitted, queued: QueueCounts, hourly: SubmitRates, now_s: float, *, is_free: bool
    ) -> Iterator[None]:
        """Reserves room while these jobs are written. ``is_free``: their user has no limit.

        Raises:
            ConfigError: They are more than the user may have.
            TooMany: They are more than the user may submit now.
        """
        user, jobs, size_bytes = event.user, event.count, event.spec.size_bytes
        has = queued.jobs.get(user, 0) + self._jobs.get(user, 0)
        has_bytes = queued.size_bytes.get(user, 0) + self._size_bytes.get(user, 0)
        if not is_free:
            self._check(user, (has, jobs), (has_bytes, size_bytes))
            self._check_hour(event, hourly, now_s)
        _add(self._jobs, user, jobs)
        _add(self._size_bytes, user, size_bytes)
        _add(self._hourly, user, jobs_of(jobs, size_bytes))
        try:
            yield
        finally:
            _add(self._hourly, user, -jobs_of(jobs, size_bytes))
            _add(self._jobs, user, -jobs)
            _add(self._size_bytes, user, -size_bytes)

    @contextmanager
    def asking(self, user: str, hourly: SubmitRates, now_s: float, *, is_free: bool) -> Iterator[None]:
        """Reserves room while a hold or a release is written, which counts as one more job of the hour.

        Raises:
            TooMany: It is more than the user may ask now.
        """
        if self._limits.hourly_jobs and not is_free:
            beside = self._hourly.get(user, 0)
            hourly.check(user, 1, beside=beside, limit=self._limits.hourly_jobs, now_s=now_s)
        _add(self._hourly, user, 1)
        try:
            yield
        finally:
            _add(self._hourly, user, -1)

    def _check_hour(self, event: JobSubmitted, hourly: SubmitRates, now_s: float) -> None:
        user, jobs, limit = event.user, event.count, self._limits.hourly_jobs
        size_bytes = event.spec.size_bytes
        counted = jobs_of(jobs, size_bytes)
        if limit and jobs > limit:
            raise ConfigError(
                f"count: asks for {jobs:,}, and a user submits at most {limit:,} jobs within an hour "
                "(max_hourly_jobs_per_user)", hint="ask for fewer",
            )  # fmt: skip
        if limit and counted > limit:
            raise ConfigError(
                f"env, argv: take {format_bytes(size_bytes)}, so that this counts as {counted:,} jobs, and a user "
                f"submits at most {limit:,} within an hour (max_hourly_jobs_per_user)", hint="put it into files",
            )  # fmt: skip
        if limit:
            hourly.check(user, counted, beside=self._hourly.get(user, 0), limit=limit, now_s=now_s)

    def _check(self, user: str, jobs: tuple[int, int], size_bytes: tuple[int, int]) -> None:
        limits, then = self._limits, "wait until some are over, or cancel some"
        if limits.jobs and sum(jobs) > limits.jobs:
            raise ConfigError(
                f"count: asks for {jobs[1]:,}, and {user} has {jobs[0]:,} of at most {limits.jobs:,} jobs that "
                f"are not over (max_queued_jobs_per_user)", hint=then
            )  # fmt: skip
        if limits.size_bytes and sum(size_bytes) > limits.size_bytes:
            raise ConfigError(
                f"env, argv: take {format_bytes(size_bytes[1])}, and those of {user}'s jobs that are not over "
                f"{format_bytes(size_bytes[0])}, of at most {format_bytes(limits.size_bytes)} "
                "(max_queued_bytes_per_user)", hint=f"{then}, or put it into files"
            )  # fmt: skip


def _add(counts: dict[str, int], user: str, more: int) -> None:
    counts[user] = counts.get(user, 0) + more
    if not counts[user]:
        del counts[user]
