"""What Slurm's ended jobs teach the policy: how long jobs will run, and each group's history. PURE.

Run times are those of the manager (scheduler/predict/learned_times.py, [helios §4.2.2]): it hears of each job when it
comes and when it ends, in the order of these times, also of those that came and ended before anybody looked, as sacct
and the state file tell them. So an estimate is that of a job's submission, and a start anew learns the same again.

A job's CPUs do not count: Slurm no longer tells what a job asked for once it has its nodes, only what it has there.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from farside.scheduler.admission.history import History
from farside.scheduler.admission.rules import Rules
from farside.scheduler.explain import not_believed
from farside.scheduler.order.catalog import Needs, needs_of
from farside.scheduler.order.policy import KEPT_JOBS
from farside.scheduler.predict.estimator import Estimator, TimeLimits
from farside.scheduler.predict.gpu_time import Expectation
from farside.scheduler.predict.gpu_time_fit import Fitted
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.slurm.domain import Group, is_managed
from farside.scheduler.slurm.job_memory import Memory, limit_s_of
from farside.scheduler.slurm.shadow_job import Ended, job_of_ended
from farside.scheduler.slurm.snapshot import JobPhase, SlurmJob
from farside.scheduler.state import Job
from farside.units import format_count

NOBODY = Memory()

_Kind = tuple[str, str, int, str, float]
"""User, name, GPUs, group and submission: tasks of one array have the same."""


@dataclass(frozen=True, slots=True)
class _Over:
    partition: str
    gpu_s: float
    expected_gpu_s: float


class LearnedJobs:
    """What was learned from jobs that came and ended.

    Args:
        rules: By what jobs are scheduled.
        times: An estimator that knows no job of this Slurm yet; None: the policy does not ask how long jobs run.

    Attributes:
        times: That estimator, as it has learned since.
        fitted: The newest model that was fitted here; None: none was.
    """

    def __init__(self, rules: Rules, times: LearnedTimes | None) -> None:
        self.times = times
        self.fitted: Fitted | None = None
        self._rules = rules if times is None else replace(rules, order=times.primed(rules.order))
        self._histories: dict[frozenset[str], History] = {}  # by the partitions of a group
        self._over: deque[_Over] = deque(maxlen=KEPT_JOBS)
        self._there: dict[str, Job] = {}  # by id, of each job that was heard of and has not ended
        self._of_kind: dict[_Kind, int] = {}  # the sequence of one of these, by what it is

    @property
    def estimator(self) -> Estimator:
        """Says what a job is expected to take."""
        return TimeLimits() if self.times is None else self.times

    def history(self, group: Group) -> History:
        """History of a group's ended jobs; it outlives the group's domains, one a turn."""
        known = self._histories.get(group.partitions)
        if known is None:
            known = self._histories[group.partitions] = History(self._rules.order, self._rules.placement)
            for one in self._over:
                if one.partition in group.partitions:
                    known.add(one.gpu_s, one.expected_gpu_s)
        return known

    # ------------------------------------------------------------------ hearing

    def hear(
        self, ended: Iterable[Ended], jobs: Iterable[SlurmJob], groups: Sequence[Group], memory: Memory = NOBODY
    ) -> None:
        """Learn of jobs that have ended, and of all that Slurm has now, in the order in which they came and ended.

        A job that Slurm has no more, and that is not among those that have ended, never ran: it teaches nothing.
        ``memory`` has the limits that jobs had when they waited.
        """
        over = [(one, expected_job_of_ended(one, groups)) for one in ended]
        there = [
            (job, group)
            for job in jobs
            if job.phase is not JobPhase.OVER
            and (group := next((group for group in groups if is_managed(job, group)), None)) is not None
        ]
        coming = [
            expected_job_of(job, group, limit_s_of(memory.jobs.get(job.job_id), job))
            for job, group in there
            if job.job_id not in self._there
        ]
        # At one instant jobs end before others come, as everywhere.
        facts: list[tuple[float, int, int, Job, Ended | None]] = [
            (one.end_s, 0, job.sequence, job, one) for one, job in over
        ]
        coming += [job for _, job in over if job.job_id not in self._there]
        facts += [(job.submit_s, 1, job.sequence, job, None) for job in coming]
        done: set[str] = set()
        for at_s, _, _, job, one in sorted(facts, key=lambda fact: fact[:3]):
            if one is not None:
                self._end(job, one)
                done.add(job.job_id)
            elif job.job_id not in done:  # Slurm says of some that they came after they had ended
                self._come(job, at_s)
        self._forget_others({job.job_id for job, _ in there})

    def _come(self, job: Job, at_s: float) -> None:
        kind = _kind_of(job)
        if self.times is not None:
            # A task of an array is a job of its own from its start on: it came with the array.
            alike = self._of_kind.get(kind)
            if alike is None or not self.times.expect_alike(job.sequence, alike):
                self.times.predicted_gpu_s(job, at_s)
        self._there[job.job_id] = job
        self._of_kind.setdefault(kind, job.sequence)

    def _end(self, job: Job, one: Ended) -> None:
        job = self._there.get(job.job_id, job)
        expected_gpu_s = math.nan
        if self.times is not None:
            expected_gpu_s = self.times.predicted_gpu_s(job, one.end_s)
            self.times.learn(JobEnded(at_s=one.end_s, job=job, ran_s=one.held_s))
        self._leave(job)
        over = _Over(one.partition, one.held_s * one.gpus, expected_gpu_s)
        self._over.append(over)
        for partitions, history in self._histories.items():
            if one.partition in partitions:
                history.add(over.gpu_s, over.expected_gpu_s)

    def _forget_others(self, job_ids: set[str]) -> None:
        for job_id in self._there.keys() - job_ids:
            job = self._there[job_id]
            if self.times is not None:
                self.times.drop(job.sequence)
            self._leave(job)

    def _leave(self, job: Job) -> None:
        self._there.pop(job.job_id, None)
        kind = _kind_of(job)
        if self._of_kind.get(kind) == job.sequence:
            del self._of_kind[kind]

    # ------------------------------------------------------------------ fits, and for people

    def take(self, fitted: Fitted) -> None:
        """Use a model; jobs that wait are expected by it as well."""
        assert self.times is not None, "nobody asks how long jobs run"
        self.fitted = fitted
        self.times.take(fitted)

    def expectations(self, job_ids: Iterable[str]) -> Iterator[tuple[str, Expectation | None, float]]:
        """What each of these jobs is expected to take, None where nothing is known, and its time limit, seconds.

        Only of jobs that were heard of and have not ended, and of none where the policy does not ask.
        """
        for job_id in job_ids:
            job = self._there.get(job_id)
            if self.times is not None and job is not None:
                yield job_id, self.times.expectation(job.sequence), job.limit_s

    @property
    def goes_by(self) -> str:
        """What jobs are expected to take their run times by, in words; empty: the policy does not ask for them."""
        if self.times is None:
            return ""
        if self.times.knows_nothing:
            rest = (
                "those without one by their number of GPUs"
                if needs_of(self._rules.order) is Needs.EXPECTATION
                else "those without one go last"
            )
            return f"no job is known to have ended, so jobs go by their time limits, {rest}"
        lines = not_believed(self.times.service.source) if needs_of(self._rules.order) is Needs.EXPECTATION else ()
        if lines:
            return lines[0]
        if self.times.service.source != "model":
            return "jobs are expected to run as long as similar jobs did"
        trees = "" if self.fitted is None else f" fitted to {format_count(self.fitted.trained_on, 'job')}"
        return f"jobs are expected to run as long as similar jobs did, and by trees{trees}"


def expected_job_of(job: SlurmJob, group: Group, limit_s: float) -> Job:
    """A job of a group as estimators hear of it: only what Slurm says of it from its submission to its end."""
    return Job(
        job_id=job.job_id, sequence=int(job.job_id), submit_s=job.submit_s, gpus=job.gpus, vc=group.name,
        user=job.user, name=job.name, limit_s=limit_s,
    )  # fmt: skip


def expected_job_of_ended(one: Ended, groups: Sequence[Group]) -> Job:
    """A job that has ended as estimators heard of it when it came."""
    vc = next((group.name for group in groups if one.partition in group.partitions), one.partition)
    return job_of_ended(one, vc=vc, sequence=int(one.job_id))


def _kind_of(job: Job) -> _Kind:
    return job.user, job.name, job.gpus, job.vc, job.submit_s
