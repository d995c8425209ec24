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
from farside.scheduler.slurm.expected_time import ExpectedTimes, expected_gpu_s
from farside.scheduler.slurm.job_memory import Memory
from farside.scheduler.slurm.shadow import Gain, compared, ended_between, expected_gain, kept, told_gain
from farside.scheduler.slurm.shadow_job import Ended, fact_of
from farside.scheduler.slurm.snapshot import JobPhase, Snapshot
from farside.scheduler.slurm.state_file import DONE, ENDED, MOST_ENDED, StateFiles
from farside.units import format_count

# Between two simulations of the expected gain.
GAIN_EVERY_S = 300.0

_log = get_log("slurm")


class ShadowLog:
    """The log of what Slurm does. ``now_s``: seconds since 1970."""

    def __init__(self, config: SlurmConfig, rules: Rules, state_files: StateFiles, now_s: Callable[[], float]) -> None:
        self._config = config
        self._rules = rules
        self._state_files = state_files
        self._now_s = now_s
        self._ended = state_files.ended()
        self._histories: dict[frozenset[str], History] = {}  # by the partitions of a group
        self._expected_gpu_s: dict[str, float] = {}  # of each job that has not ended, when it was seen first
        self._relearn(self._ended.values())
        self._said: set[str] = set()
        self._gain_at_s = 0.0
        self.gain: Gain | None = None

    @property
    def ended(self) -> int:
        """Jobs that have ended while somebody looked."""
        return len(self._ended)

    def note(self, before: Memory, snapshot: Snapshot, groups: Sequence[Group]) -> None:
        """Keeps the jobs that have ended since the turn before."""
        new = [one for one in ended_between(before, snapshot, groups) if one.job_id not in self._ended]
        self._ended = kept(self._ended, new, MOST_ENDED)
        self._state_files.add(ENDED, new)
        for one in new:
            expected_gpu_s = self._expected_gpu_s.get(one.job_id, math.nan)
            self.estimator.learn(fact_of(one))
            for partitions, history in self._histories.items():
                if one.partition in partitions:
                    history.add(one.held_s * one.gpus, expected_gpu_s)
        self._note_expectations(snapshot, groups)

    def _note_expectations(self, snapshot: Snapshot, groups: Sequence[Group]) -> None:
        """Keeps what is expected of each job when it is seen first; policies learn how good that was at its end."""
        known, self._expected_gpu_s = self._expected_gpu_s, {}
        for job in snapshot.jobs:
            if job.phase is JobPhase.OVER or not any(is_managed(job, group) for group in groups):
                continue
            expected_gpu_s = known.get(job.job_id)
            if expected_gpu_s is None:
                seen = job_of(job, may_preempt=False, is_counting_memory=False)
                expected_gpu_s = self.estimator.predicted_gpu_s(seen, snapshot.at_s)
            self._expected_gpu_s[job.job_id] = expected_gpu_s

    def learn(self, history: Iterable[Ended]) -> int:
        """Takes jobs that ended before anybody looked, the first to end first; how many of them are new."""
        new = [one for one in history if one.job_id not in self._ended]
        self._ended = kept({one.job_id: one for one in new}, self._ended.values(), MOST_ENDED)
        # All anew: estimates depend on the order in which jobs ended, and these ended before the others.
        self._relearn(sorted(self._ended.values(), key=lambda one: one.end_s))
        return len(new)

    def _relearn(self, ended: Iterable[Ended]) -> None:
        self.estimator = ExpectedTimes()
        for one in ended:
            self.estimator.learn(fact_of(one))
        self._histories.clear()

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

    def expect(self, snapshot: Snapshot, groups: Sequence[Group]) -> None:
        """Simulates the expected gain now and then. It may take seconds: nobody waits for a shadow."""
        # Without a result it is tried each turn, which is quick as long as there are too few jobs.
        if self._now_s() - self._gain_at_s < GAIN_EVERY_S and self.gain is not None:
            return
        self._gain_at_s = self._now_s()
        gain = expected_gain(
            self._ended.values(), groups, snapshot, self._rules, may_preempt=self._config.preempt,
            requeue_cost_s=self._config.requeue_cost_s,
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
