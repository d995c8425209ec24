"""Submit rate: what each user has submitted, held and released within the last hour, and its limit. PURE.

How it works
  The log grows by every submission, and a job that is over is known for `keep_history_s`, so what a user has in the
  queue (queued.py) bounds neither. Jobs are counted by steps of `STEP_S`, each of which counts until the youngest job
  that may be among its own is an hour old: so no hour has more than the limit, whenever it begins. Holding a job and
  releasing it count as a job each, and long arguments as several, as they make the log grow as well.
  [M5] The counts follow the log, and the store's snapshot has them, so that a restart forgets none.
"""

from collections.abc import Mapping

from farside.errors import FarsideError
from farside.units import format_bytes, format_moment, format_seconds

STEP_S, WINDOW_S = 300.0, 3600.0

BYTES_A_JOB = 16 * 1024
"""Each such part that a submission's arguments and variables begin, after the first, counts as one more job. [M5]"""

Step = tuple[float, int]
"""When it began, and how many jobs came in it."""


class TooMany(FarsideError):
    """More than one may ask for now; in ``after_s`` there is room. ``noted``: the audit's words, without times."""

    def __init__(
        self, message: str, *, hint: str, after_s: float, noted: str = "more than max_hourly_jobs_per_user"
    ) -> None:
        super().__init__(message, hint=hint)
        self.after_s, self.noted = after_s, noted


def jobs_of(count: int, size_bytes: int) -> int:
    """As how many jobs a submission counts: those that it has, and more where what the log keeps of it is long."""
    return count + max(0, size_bytes - 1) // BYTES_A_JOB


class SubmitRates:
    """Jobs that were submitted within the last hour, by user; the oldest step first."""

    def __init__(self, steps: Mapping[str, tuple[Step, ...]] | None = None) -> None:
        self._steps = {user: list(told) for user, told in (steps or {}).items()}
        self._newest_s = max((told[-1][0] for told in self._steps.values()), default=0.0)

    @property
    def steps(self) -> Mapping[str, tuple[Step, ...]]:
        """All that it knows."""
        return {user: tuple(told) for user, told in self._steps.items()}

    def come(self, user: str, jobs: int, now_s: float) -> None:
        """Counts more submitted jobs; ``now_s`` never goes back."""
        begin_s = now_s - now_s % STEP_S
        if begin_s > self._newest_s:
            self._newest_s = begin_s
            self._forget(now_s)
        own = self._steps.setdefault(user, [])
        if own and own[-1][0] == begin_s:
            own[-1] = begin_s, own[-1][1] + jobs
        else:
            own.append((begin_s, jobs))

    def _forget(self, now_s: float) -> None:
        kept = {user: [one for one in told if _counts(one, now_s)] for user, told in self._steps.items()}
        self._steps = {user: told for user, told in kept.items() if told}

    def of(self, user: str, now_s: float) -> int:
        """Number of jobs that a user has submitted."""
        return sum(one[1] for one in self._steps.get(user, ()) if _counts(one, now_s))

    def check(self, user: str, jobs: int, *, beside: int, limit: int, now_s: float) -> None:
        """Does nothing if a user may submit this many. ``beside``: jobs of the user that are on their way into the log.

        Raises:
            TooMany: He has submitted too many, and may come again.
        """
        has = self.of(user, now_s) + beside
        if has + jobs <= limit:
            return
        at_s = self._room_at_s(user, has + jobs - limit, now_s)
        raise TooMany(
            f"{user} has submitted {has:,} jobs within the hour, of at most {limit:,} (max_hourly_jobs_per_user)",
            hint=f"there is room for {jobs:,} more in {format_seconds(at_s - now_s)}, at {format_moment(at_s)}; "
            f"a hold or a release counts as one, and so does each {format_bytes(BYTES_A_JOB)} of arguments",
            after_s=at_s - now_s,
        )

    def _room_at_s(self, user: str, over: int, now_s: float) -> float:
        """The time when enough of them have left the hour; jobs on their way count as if they had come now."""
        for one in self._steps.get(user, ()):
            if _counts(one, now_s):
                over -= one[1]
                if over <= 0:
                    return one[0] + STEP_S + WINDOW_S
        return now_s + STEP_S + WINDOW_S


def _counts(step: Step, now_s: float) -> bool:
    return now_s < step[0] + STEP_S + WINDOW_S
