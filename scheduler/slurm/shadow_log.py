"""The shadow log: what we would have done, what Slurm did instead, and the expected gain."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from farside.config import SlurmConfig
from farside.log import get_log
from farside.scheduler.sim.learned_before import LearnedBefore
from farside.scheduler.slurm.action import Line, SetNice, SetPriority, SlurmAction, told
from farside.scheduler.slurm.decide import Decision
from farside.scheduler.slurm.domain import Group
from farside.scheduler.slurm.job_memory import Memory
from farside.scheduler.slurm.learned_jobs import LearnedJobs
from farside.scheduler.slurm.shadow import Gain, compared, ended_between, expected_gain, kept, told_gain
from farside.scheduler.slurm.shadow_job import Ended
from farside.scheduler.slurm.snapshot import Snapshot
from farside.scheduler.slurm.state_file import DONE, ENDED, MOST_ENDED, StateFiles
from farside.units import format_count

# Between two simulations of the expected gain.
GAIN_EVERY_S = 300.0

_log = get_log("slurm")


class ShadowLog:
    """The log of what Slurm does.

    ``before``: the rules, and what their policy begins with. ``now_s``: seconds since 1970.

    Attributes:
        gain: The expected gain; None: it is not known yet, or is not to be had, and then ``why_no_gain`` says why.
    """

    def __init__(
        self, config: SlurmConfig, before: LearnedBefore, state_files: StateFiles, now_s: Callable[[], float]
    ) -> None:
        self._config = config
        self._before = before
        self._state_files = state_files
        self._now_s = now_s
        self._ended = state_files.ended()
        self._learned: LearnedJobs | None = None  # None: nobody has looked since all that follows was known
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
        if self._learned is None:
            self._learned = LearnedJobs(self._before.rules, self._before.times())
            new = list(self._ended.values())
        self._learned.hear(new, snapshot.jobs, groups, before)

    @property
    def learned(self) -> LearnedJobs:
        """What the policy knows of Slurm's jobs, once they have been looked at (`note`)."""
        assert self._learned is not None, "nobody has looked at Slurm yet"
        return self._learned

    def learn(self, history: Iterable[Ended]) -> int:
        """Take jobs that ended before anybody looked, the first to end first; how many of them are new.

        All is learned anew at the next look, in the order in which jobs came and ended.
        """
        new = [one for one in history if one.job_id not in self._ended]
        # In the order of their ends: these ended before the others.
        every = sorted([*new, *self._ended.values()], key=lambda one: one.end_s)
        self._ended = kept({}, every, MOST_ENDED)
        self._learned = None
        return len(new)

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
        """Simulate the expected gain now and then; with models that are fitted on the way it may take a minute.

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
            self._ended.values(), groups, snapshot, self._before.rules, may_preempt=self._config.preempt,
            requeue_cost_s=self._config.requeue_cost_s, is_gating=self._config.gate,
            make_times=partial(self._before.times, fits_at_once=True),
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
