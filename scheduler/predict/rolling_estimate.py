"""Rolling estimate of run times: averages of similar past jobs. PURE. [helios §4.2.2, Algorithm 1]

How it works
  Three cases, by what is known of the job's user:

  1. nothing: the average of all jobs with as many GPUs;
  2. jobs, but none of a similar name: the average of that user's jobs with as many GPUs;
  3. jobs of a similar name: their average, in which each further job back counts ``decay`` times as much as the one
     after it.

  A similar name is one of the same bucket (job_names.py). Jobs without a user are case 1.

  These groups lie one within the other: all jobs, those with as many GPUs, the user's, the user's with as many GPUs,
  the user's of a similar name, the user's of the very same form. A group's average starts with the next wider one's,
  which counts as ``prior_jobs`` jobs. So a name that came once before doesn't decide alone, and one that came a
  hundred times does. How many that should be differs by level, and is learned as jobs end (prior_weights.py). With
  ``prior_jobs`` 0 it is the paper's rule, and the nearest group that is not empty decides.

  Averages are of logarithms. Run times differ by factors, not by amounts: the plain average of a group is whatever its
  one longest job took.

  A group is three numbers, so an end costs the same whatever the length of the history. Groups by name are as many as
  names: of those the ones that were added to most recently are kept.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from farside.scheduler.predict.job_names import UNKNOWN, NameBuckets, form_of
from farside.scheduler.predict.prior_weights import Shrinkage
from farside.scheduler.state import Job

LEAST_S = 1.0  # what is shorter counts as this: of 0 there is no logarithm
MOST_S = 100 * 365 * 86400.0  # a century
# Before any job has ended. Every job gets the same, so that GPUs alone decide.
NOBODY_KNOWS_S = 3600.0
MOST_NAMED = 500_000  # groups by user and name
LEARNED = -1.0
_Mean = tuple[float, float, int]  # sum of logarithms, weight, jobs

# Groups from the widest to the nearest. The case that an estimate is, by its nearest group that is not empty.
LEVELS = ("all", "gpus", "user", "user_gpus", "bucket", "form")
CASES = ("nothing", "new user", "new user", "no similar name", "no similar name", "similar name", "similar name")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingParams:
    """Settings: how names and past jobs count.

    Attributes:
        similarity: Of two forms of names in one bucket, from 0 to 1.
        decay: What a job counts by one that came after it, from 0 to 1; for jobs of a similar name.
        prior_jobs: How many jobs the next wider group counts as; below 0: learned, level by level, as jobs end.
    """

    similarity: float = 0.9
    decay: float = 0.9
    prior_jobs: float = LEARNED

    def __post_init__(self) -> None:
        for name in ("similarity", "decay"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: must be above 0 and at most 1, is {getattr(self, name):g}")
        if not self.prior_jobs < math.inf:
            raise ValueError(f"prior_jobs: must be a number of jobs, or below 0, is {self.prior_jobs:g}")


@dataclass(frozen=True, slots=True)
class RollingEstimate:
    """Estimate from similar jobs.

    Attributes:
        duration_s: Seconds that it is expected to run, always above 0.
        nearest: How many groups are not empty: 0 none, `CASES` in words.
        jobs: How many jobs are in the nearest one.
        bucket: Of its name; below 0 none.
        log_means: Of each group of `LEVELS` the mean of logarithms; NaN where it is empty.
    """

    duration_s: float
    nearest: int
    jobs: int
    bucket: int
    log_means: tuple[float, ...]

    @property
    def case(self) -> str:
        """In the paper's words."""
        return CASES[self.nearest]


class RollingEstimator:
    """Rolling averages of all groups of past jobs."""

    def __init__(self, params: RollingParams) -> None:
        self.params = params
        self.buckets = NameBuckets(params.similarity)
        self.shrinkage = Shrinkage(len(LEVELS))
        self._means: dict[Hashable, _Mean] = {}  # sum of logarithms, weight, jobs
        self._named: dict[Hashable, _Mean] = {}  # the same by user and name, oldest first

    @property
    def is_empty(self) -> bool:
        """Whether no job has ended yet."""
        return not self._means

    def expect(self, job: Job) -> RollingEstimate:
        """Estimate a job from similar jobs that ended."""
        form = form_of(job.name)
        bucket = self.buckets.find(form)
        expected, nearest, jobs = math.log(NOBODY_KNOWS_S), 0, 0
        log_means: list[float] = []
        means = self._group_means(_keys(job, form, bucket))
        last = _last(means)
        for at, mean in enumerate(means):
            if mean is None:
                log_means.append(math.nan)
                continue
            total, weight, count = mean
            log_means.append(total / weight)
            # The widest group has no wider one to start from.
            prior = self._prior_jobs(last, at) if nearest else 0.0
            expected = (total + prior * expected) / (weight + prior)
            nearest, jobs = at + 1, count
        duration_s = bounded_s(math.exp(expected)) if nearest else NOBODY_KNOWS_S
        return RollingEstimate(duration_s, nearest, jobs, bucket, tuple(log_means))

    def _group_means(self, keys: tuple[Hashable | None, ...]) -> list[_Mean | None]:
        """Sum of logarithms, weight and jobs of each group; None: it is empty."""
        return [
            # The first four levels are not by name.
            None if key is None else (self._means if level < 4 else self._named).get(key)
            for level, key in enumerate(keys)
        ]

    def _prior_jobs(self, last: int, level: int) -> float:
        return self.params.prior_jobs if self.params.prior_jobs >= 0 else self.shrinkage.prior_jobs(last, level)

    def _learn_priors(self, means: list[_Mean | None], value: float) -> None:
        """By a job that has ended, before its groups know of it: what they would have made of it."""
        expected, last = math.nan, _last(means)
        for level, mean in enumerate(means):
            if mean is None:
                continue
            total, weight, _ = mean
            if math.isnan(expected):
                expected = total / weight
                continue
            self.shrinkage.learn((last, level), (total, weight), expected, value)
            prior = self._prior_jobs(last, level)
            expected = (total + prior * expected) / (weight + prior)

    def add(self, job: Job, ran_s: float) -> None:
        """Add a job that ended after it ran ``ran_s`` seconds."""
        value, decay = math.log(bounded_s(ran_s)), self.params.decay
        form = form_of(job.name)
        keys = _keys(job, form, self.buckets.add(form))
        if self.params.prior_jobs < 0:
            self._learn_priors(self._group_means(keys), value)
        for at, key in enumerate(keys):
            if key is None:
                continue
            # Groups by name decay, and are as many as names: they are kept apart, in the order of their last job. A
            # group is taken out and put in again for that, as a dict keeps the order of insertion.
            if at < 4:
                total, weight, count = self._means.get(key, (0.0, 0.0, 0))
                self._means[key] = (total + value, weight + 1.0, count + 1)
            else:
                total, weight, count = self._named.pop(key, (0.0, 0.0, 0))
                self._named[key] = (total * decay + value, weight * decay + 1.0, count + 1)
        if len(self._named) > MOST_NAMED:
            # Two, as many as a job can add: its bucket and its form.
            del self._named[next(iter(self._named))], self._named[next(iter(self._named))]

    def groups(self, most_named: int) -> tuple[list[list[object]], list[list[object]]]:
        """All groups, and the newest of those by name, for a file. A bucket is named by its first form."""
        wide = [[list(key) if isinstance(key, tuple) else [], *mean] for key, mean in self._means.items()]
        named: list[list[object]] = []
        for key, mean in list(self._named.items())[-most_named:]:
            assert isinstance(key, tuple)
            user, what, mark = key
            named.append([user, what if mark == 0 else self.buckets.firsts[what], mark == 0, *mean])
        return wide, named

    def take_groups(self, wide: list[list[Any]], named: list[list[Any]]) -> None:
        """Takes what `groups` gave, in place of what it knows.

        Raises:
            ValueError, TypeError: It is not that.
        """
        self._means = {tuple(key) if key else "": (float(total), float(weight), int(jobs))
                       for key, total, weight, jobs in wide}  # fmt: skip
        self._named = {}
        for user, what, is_form, total, weight, jobs in named:
            key: Hashable = (str(user), str(what), 0) if is_form else (str(user), self.buckets.add(str(what)), "")
            self._named[key] = (float(total), float(weight), int(jobs))


def _last(means: list[_Mean | None]) -> int:
    """The level of the nearest group that is not empty; 0 if all are."""
    return max((level for level, mean in enumerate(means) if mean is not None), default=0)


def _keys(job: Job, form: str, bucket: int) -> tuple[Hashable | None, ...]:
    """The keys of its groups, by level; None where it has none of that level."""
    user = job.user
    if not user:
        return "", ("", job.gpus), None, None, None, None
    # The last element, "" or 0, keeps groups by bucket and by form apart.
    similar = (user, bucket, "") if bucket != UNKNOWN else None
    return "", ("", job.gpus), (user,), (user, job.gpus), similar, (user, form, 0) if form else None


def bounded_s(seconds: float) -> float:
    """A run time between the least and the most that count as such."""
    return min(max(seconds, LEAST_S), MOST_S)
