"""The shadow log: what we would have done, what Slurm did instead, and the expected gain."""

import math
from collections.abc import Callable, Iterable, Sequence

from farside.config import SlurmConfig
from farside.log import get_log
from farside.scheduler.admission.history import History
from farside.scheduler.domain import Rules
from farside.scheduler.order.catalog import Needs, needs_of
from farside.scheduler.slurm.action import Line, SetNice, SetPriority, SlurmAction, told
from farside.scheduler.slurm.decide import Decision
from farside.scheduler.slurm.domain import Group, is_managed, job_of
from farside.scheduler.slurm.expected_time import ExpectedTimes, expected_gpu_s, hear
from farside.scheduler.slurm.job_memory import Memory
from farside.scheduler.slurm.shadow import Gain, compared, ended_between, expected_gain, kept, told_gain
from farside.scheduler.slurm.shadow_job import Ended, fact_of
from farside.scheduler.slurm.snapshot import JobPhase, Snapshot
from farside.scheduler.slurm.state_file import DONE, ENDED, MOST_ENDED, StateFiles
from farside.units import format_count

# Between two simulations of the expected gain.
GAIN_EVERY_S = 300.0
# A job that was submitted so long before the last turn was hidden until then, or nobody looked: clocks differ, and a
# turn takes its time.
LATE_S = 60.0

_log = get_log("slurm")


class ShadowLog:
    """The log of what Slurm does.

    ``now_s``: seconds since 1970.

    Attributes:
        estimator: What jobs are expected to take, by what was known when each was submitted.
        gain: The expected gain; None: it is not known yet, or is not to be had, and then ``why_no_gain`` says why.
    """

    def __init__(self, config: SlurmConfig, rules: Rules, state_files: StateFiles, now_s: Callable[[], float]) -> None:
        self._config = config
        self._rules = rules
        self._state_files = state_files
        self._now_s = now_s
        self._ended = state_files.ended()
        self._histories: dict[frozenset[str], History] = {}  # by the partitions of a group
        self._expected_gpu_s: dict[str, float] = {}  # of each job that has not ended, when it was submitted
        self._looked_s = math.inf  # the last turn; infinite: there was none since other jobs were learned from
        self._relearn()
        self._said: set[str] = set()
        self._gain_at_s = 0.0
        self.gain: Gain | None = None
        self.why_no_gain = ""

    @property
    def ended(self) -> int:
        """Jobs that have ended while somebody looked."""
        return len(self._ended)

    def note(self, before: Memory, snapshot: Snapshot, groups: Sequence[Group]) -> None:
        """Keeps the jobs that have ended since the turn before."""
        found = ended_between(before, snapshot, groups)
        new = [one for one in found if one.job_id not in self._ended]
        self._ended = kept(self._ended, new, MOST_ENDED)
        self._state_files.add(ENDED, new)
        expected_gpu_s = self._hear(new, snapshot, groups)
        for one in new:
            for partitions, history in self._histories.items():
                if one.partition in partitions:
                    history.add(one.held_s * one.gpus, expected_gpu_s.get(one.job_id, math.nan))

    def _hear(self, new: Sequence[Ended], snapshot: Snapshot, groups: Sequence[Group]) -> dict[str, float]:
        """Tells the estimator of what has ended and come.

        Returns what it expected of these, and of all jobs that are there, when they came. Policies learn at a job's end
        how good that was.
        """
        there = [
            job_of(job, may_preempt=False, is_counting_memory=False)
            for job in snapshot.jobs
            if job.phase is not JobPhase.OVER and any(is_managed(job, group) for group in groups)
        ]
        known = self._expected_gpu_s
        coming = [job for job in there if job.job_id not in known]
        if any(job.submit_s < self._looked_s - LATE_S for job in coming):
            # It came before anybody looked: all anew, in order, so that it is expected to take what was known then.
            self.estimator, coming = ExpectedTimes(), there
            found = {**known, **hear(self.estimator, self._ended.values(), coming)}
        else:
            found = {**known, **hear(self.estimator, new, coming)}
        self._looked_s = snapshot.at_s
        self._expected_gpu_s = {job.job_id: found[job.job_id] for job in there}
        self.estimator.forget_others(self._expected_gpu_s.keys())
        return found

    def learn(self, history: Iterable[Ended]) -> int:
        """Takes jobs that ended before anybody looked, the first to end first; how many of them are new."""
        new = [one for one in history if one.job_id not in self._ended]
        # In the order of their ends, on which estimates depend: these ended before the others.
        every = sorted([*new, *self._ended.values()], key=lambda one: one.end_s)
        self._ended = kept({}, every, MOST_ENDED)
        self._relearn()
        return len(new)

    def _relearn(self) -> None:
        self.estimator = ExpectedTimes()
        for one in sorted(self._ended.values(), key=lambda one: one.end_s):
            self.estimator.learn(fact_of(one))
        self._histories.clear()
        self._expected_gpu_s, self._looked_s = {}, math.inf

    def history(self, group: Group) -> History:
        """History of a group's ended jobs; it outlives the group's domains, one a turn."""
        known = self._histories.get(group.partitions)
        if known is None:
            known = self._histories[group.partitions] = History(self._rules.order, self._rules.placement)
            is_expecting = needs_of(self._rules.order) is Needs.EXPECTATION
            expected = expected_gpu_s(list(self._ended.values())) if is_expecting else {}
            for one in sorted(self._ended.values(), key=lambda one: one.end_s):
                if one.partition in group.partitions:
                    known.add(one.held_s * one.gpus, expected.get(one.job_id, math.nan))
        return known

    def compare(self, before: Memory, then: Decision | None, snapshot: Snapshot) -> None:
        """Says what Slurm has done since a decision, beside that."""
        beside = () if then is None else compared(before, then, snapshot)
        for one in beside:
            _log.info(
                "the shadow compared Slurm's decision with its own",
                job=one.job_id,
                gpus=one.gpus,
                slurm=one.slurm,
                farside=one.farside,
                reason=one.reason,
            )
        self._state_files.add(DONE, beside)

    def expect(self, snapshot: Snapshot, groups: Sequence[Group], *, owner: str = "") -> None:
        """Simulates the expected gain now and then. It may take seconds: nobody waits for a shadow.

        ``owner``: whose jobs alone would be ordered; empty: everybody's.
        """
        if owner and self._config.order_by == "nice":
            if not self.why_no_gain:
                self.why_no_gain = f"order_by = nice would order the jobs of {owner} alone, which is not simulated"
                _log.info("no gain is expected", reason=self.why_no_gain)
            return
        # Without a result it is tried each turn, which is quick as long as there are too few jobs.
        if self._now_s() - self._gain_at_s < GAIN_EVERY_S and self.gain is not None:
            return
        self._gain_at_s = self._now_s()
        gain = expected_gain(
            self._ended.values(), groups, snapshot, self._rules, may_preempt=self._config.preempt,
            requeue_cost_s=self._config.requeue_cost_s, is_gating=self._config.gate,
        )  # fmt: skip
        if gain is not None and gain != self.gain:
            _log.info(told_gain(gain))
        self.gain = gain

    def say(self, actions: Iterable[SlurmAction]) -> None:
        """Says what would be done; each thing once, as long as it is still so."""
        actions = tuple(actions)
        order = [action for action in actions if isinstance(action, SetPriority | SetNice)]
        others = (action for action in actions if not isinstance(action, SetPriority | SetNice))
        lines: dict[str, SlurmAction] = {told(one): one for one in others}
        if order:
            lines[f"order {format_count(len(order), 'job')} anew, {order[0].job_id} the first"] = order[0]
        new = {text: action for text, action in lines.items() if text not in self._said}
        # What is not so any more may be said again later.
        self._said = set(lines)
        for text, action in new.items():
            _log.info(f"would {text}", reason=action.reason)
        lines_said = (
            Line(at_s=self._now_s(), mode="shadow", what=text, reason=action.reason) for text, action in new.items()
        )
        self._state_files.add(DONE, lines_said)
