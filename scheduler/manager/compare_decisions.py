"""Decisions of a live log, made again by the same rules on the state that the log had then. PURE.

How it works
  A day and its simulation part where one start differs: from there on other jobs run, others come to their end, and
  policies that learn expect something else. So how many pairs of jobs swapped says how far apart two days went, and not
  how often the manager decided otherwise than the simulator would. Here each decision is judged by itself.

  The log is read once more. Where its cycle gave jobs their places, or had others leave for them, the state is what
  the scheduler process had read then, up to the entry that the decision names as its cause. The planner
  (decider/planner.py) runs the cycle on that, and its decisions are compared with the log's. Then it goes on with those
  of the log, whatever its own were. Cycles that decided nothing run as well, since queues have an order from them on.
  Where a scheduler process took the lead, a planner is made from the log, as that one did.

  What may differ though the rules are equal: a model of run times that the manager had fitted a moment later, a cycle
  that ran on entries that came while it was written, and settings that were others then.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.admission.rules import Rules
from farside.scheduler.manager.decider.planner import Planner
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.predict.gpu_time_fit import learned_from
from farside.scheduler.predict.learned_times import LearnedTimes

QUIET_S = 0.5
"""A cycle takes milliseconds, and on a busy machine some tenths of a second."""
_Own = log.JobAllocated | log.AllocationReleased | log.JobStopping | log.JobPromoted
"""What the cycle writes."""
_Decision = tuple[str, str]
"""What is decided, and about which job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCount:
    """Starts, preemptions and promotions that the cycle decided on.

    Attributes:
        decisions: All of them.
        different: Those that are not made again, or that are made besides.
        elsewhere: Starts that are made again on other nodes.
    """

    decisions: int
    different: int
    elsewhere: int

    @property
    def error(self) -> float:
        """The share that differs; 0 where nothing was decided."""
        return self.different / self.decisions if self.decisions else 0.0


def decided_again(
    entries: Iterable[log.Entry],
    rules: Rules,
    make_times: Callable[[], LearnedTimes | None] = lambda: None,
    *,
    partitions: Partitions = NO_PARTITIONS,
    set_aside: frozenset[str] = frozenset(),
    quiet_s: float = QUIET_S,
) -> DecisionCount:
    """How many decisions of a log's cycle are others when they are made again.

    Args:
        entries: The whole log.
        rules: Those of the manager.
        make_times: An estimator that knows what a scheduler process of this manager knows before it has read the log.
        partitions: Those of the manager.
        set_aside: Names of nodes whose GPUs its cycle gives to nobody.
        quiet_s: Where no entry came for longer than that, the cycle had run on all before.
    """

    def planner(state: LiveState, now_s: float, times: LearnedTimes | None) -> Planner:
        return Planner(rules, state, now_s, set_aside=set_aside, times=times, partitions=partitions)

    again = _Again(planner, make_times, quiet_s)
    turn: list[log.Entry] = []
    for entry in entries:
        if turn and not _is_of(turn, entry):
            again.take(turn)
            turn = []
        if turn or _is_cycles(entry.event):
            turn.append(entry)
        else:
            again.read(entry)
    if turn:
        again.take(turn)
    return DecisionCount(decisions=again.decisions, different=again.different, elsewhere=again.elsewhere)


class _Again:
    """A planner that follows a log and is asked where the log's cycle decided."""

    def __init__(
        self,
        make_planner: Callable[[LiveState, float, LearnedTimes | None], Planner],
        make_times: Callable[[], LearnedTimes | None],
        quiet_s: float,
    ) -> None:
        self._quiet_s, self._heard_s = quiet_s, math.inf
        self.decisions = self.different = self.elsewhere = 0
        self._make_planner, self._make_times = make_planner, make_times
        self._times: LearnedTimes | None = None
        self._state = LiveState()
        self._planner: Planner | None = None
        self._unheard: list[log.Entry] = []

    def read(self, entry: log.Entry) -> None:
        """An entry that is not the cycle's."""
        self._unheard.append(entry)
        if isinstance(entry.event, log.SchedulerTookLead):
            self._hear(math.inf)

    def take(self, turn: Sequence[log.Entry]) -> None:
        """What the cycle decided in one turn."""
        known = max(_known_to(entry) for entry in turn)
        self._hear(known)
        planner = self._planner or self._lead(turn[0].at_s)
        if known == math.inf:
            self._pass_time(turn[0].at_s)
        really = [entry.event for entry in turn]
        made = [draft.event for draft in planner.plan(turn[0].at_s)]
        self._heard_s = turn[0].at_s
        decided, again = _decisions(really), _decisions(made)
        places, places_again = _places(really), _places(made)
        different = _differing(decided, again)
        elsewhere = sum(places[job_id] != places_again[job_id] for job_id in places.keys() & places_again.keys())
        self.decisions += max(len(decided), len(again))
        self.different += different
        self.elsewhere += elsewhere
        if different or elsewhere:
            planner.spoil()
        self._unheard += turn
        self._hear(math.inf)

    def _hear(self, seq: float) -> None:
        """Moves on up to this entry."""
        at = next((at for at, entry in enumerate(self._unheard) if entry.seq > seq), len(self._unheard))
        heard, self._unheard = self._unheard[:at], self._unheard[at:]
        for entry in heard:
            self._pass_time(entry.at_s)
            self._heard_s = entry.at_s
            if isinstance(entry.event, log.SchedulerTookLead):
                self._lead(entry.at_s)
            touched = apply(self._state, entry)
            if self._planner is not None:
                self._planner.hear(entry, touched)
                self._fit(self._planner, entry.at_s)

    def _pass_time(self, now_s: float) -> None:
        """The cycles that ran since the last entry and decided nothing: queues have an order from them on."""
        planner = self._planner
        if planner is None:
            return
        if now_s - self._heard_s > self._quiet_s:
            self._look(planner, self._heard_s)
        while (at_s := planner.next_wake_s()) <= now_s:
            if now_s - at_s > self._quiet_s:
                self._look(planner, at_s)
            else:
                planner.wake_up(at_s)

    def _look(self, planner: Planner, now_s: float) -> None:
        """The log's cycle decided nothing then."""
        besides = len(_decisions(draft.event for draft in planner.plan(now_s)))
        self.decisions += besides
        self.different += besides
        if besides:
            planner.spoil()

    def _lead(self, now_s: float) -> Planner:
        """What a scheduler process has that begins now."""
        self._times = self._make_times()
        self._planner = self._make_planner(self._state, now_s, self._times)
        return self._planner

    def _fit(self, planner: Planner, now_s: float) -> None:
        """A model is fitted when the scheduler process would begin that, and used at once."""
        if self._times is not None and (lesson := self._times.lesson(now_s)) is not None:
            planner.expect(self._times.take(learned_from(lesson)))


def _is_of(turn: Sequence[log.Entry], entry: log.Entry) -> bool:
    """Whether an entry is of the same run of the cycle, rather than of one that followed it at the same instant."""
    follows = turn[0].seq <= _known_to(entry) < math.inf
    return isinstance(entry.event, _Own) and entry.at_s == turn[0].at_s and not follows


def _is_cycles(event: log.Event) -> bool:
    """Whether the cycle has decided that; other entries of its kinds follow from something else."""
    if isinstance(event, log.JobStopping):
        return event.cause is log.StopCause.PREEMPTED and bool(event.winner)
    return isinstance(event, log.JobAllocated | log.JobPromoted)


def _known_to(entry: log.Entry) -> float:
    """The newest entry that a decision rests on; infinite: a timer brought it about, so all before it."""
    word, _, seq = entry.cause.partition(" ")
    return int(seq) if word == "entry" and seq.isdigit() else math.inf


def _decisions(events: Iterable[log.Event]) -> list[_Decision]:
    return [
        (type(event).__name__, event.job_id)
        for event in events
        if isinstance(event, log.JobAllocated | log.JobStopping | log.JobPromoted) and _is_cycles(event)
    ]


def _places(events: Iterable[log.Event]) -> Mapping[str, frozenset[tuple[str, int]]]:
    return {
        event.job_id: frozenset((place.node, place.gpus) for place in event.places)
        for event in events
        if isinstance(event, log.JobAllocated)
    }


def _differing(really: Sequence[_Decision], again: Sequence[_Decision]) -> int:
    """How many of the longer of two lists are not in the other in the same order."""
    blocks = SequenceMatcher(a=really, b=again, autojunk=False).get_matching_blocks()
    return max(len(really), len(again)) - sum(block.size for block in blocks)
