"""Why one job waited in a simulation: each period of its wait, with its cause and times. PURE.

While the job waits, explain.py is asked after every event in its virtual cluster. Answers of one cause that follow each
other are one stretch; for each it is printed how many GPUs were free, and behind which job it was for the longest time.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from farside.scheduler.domain import Domain
from farside.scheduler.explain import Cause, Explanation, gpus_of, look
from farside.scheduler.order.reason import why_first
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.state import Action, Preempt, Promote, Start
from farside.units import format_moment, format_seconds

# Number of stretches that are printed, the longest ones; the others, and what was decided between them, are counted.
TOLD = 20


@dataclass(slots=True)
class Stretch:
    """Period with one cause of the wait. ``behind_s``: seconds behind each row."""

    first: Explanation
    start_s: float
    end_s: float
    least_free: int
    most_free: int
    behind_s: Counter[int] = field(default_factory=Counter)
    because: dict[int, str] = field(default_factory=dict)

    @property
    def length_s(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class Event:
    """Decision about the job, at a time."""

    at_s: float
    kind: str
    text: str


_KINDS = {Start: "starts", Preempt: "preemptions", Promote: "promotions"}


class Watcher:
    """An observer of one job, by its row; join it before the simulation runs."""

    def __init__(self, simulation: Simulation, row: int) -> None:
        self._jobs = simulation.jobs
        self._runs = simulation.runs
        self._home = simulation.domains[simulation.jobs[row].job.vc]
        self._row = row
        self._open: tuple[float, Explanation] | None = None
        self.told: list[Stretch | Event] = []
        simulation.observers.append(self)

    def __call__(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        """One cycle was run."""
        if domain is self._home:
            self._close(now_s)
        for action in actions:
            if action.row == self._row:
                self._close(now_s)
                words = self._words(action, domain, actions, now_s)
                self.told.append(Event(now_s, _KINDS[type(action)], words))
        if domain is self._home and self._row in domain.waiting:
            self._open = now_s, look(domain, self._row, now_s)

    def lines(self) -> list[str]:
        """Lines of the job's whole story, after the end of the simulation."""
        job, run = self._jobs[self._row].job, self._runs[self._row]
        if not self.has_ended:
            return [
                f"job {job.job_id}: {gpus_of(job)}, came {format_moment(job.submit_s)}, never ended",
                *self._stuck(),
            ]
        waited_s = run.end_s - job.submit_s - run.held_s
        head = (
            f"job {job.job_id}: {gpus_of(job)}, came {format_moment(job.submit_s)}, ended {format_moment(run.end_s)}; "
            f"ran {_length(run.held_s)}, waited {_length(max(0.0, waited_s))}"
        )
        return [head, *self._story(), f"  {format_moment(run.end_s)}  ended", *self._sums()]

    @property
    def has_ended(self) -> bool:
        """Whether the job ended in the simulation; it never does if its virtual cluster shrank below its size."""
        return not math.isnan(self._runs[self._row].end_s)

    def _stuck(self) -> list[str]:
        """The story of a job that still waits when nothing can happen any more."""
        told = self._story()
        if self._open is not None:
            since_s, seen = self._open
            has, needs = self._home.ledger.total_gpus, self._jobs[self._row].job.gpus
            why = f"its virtual cluster has {has} in all from then on" if has < needs else seen.because
            told.append(f"  {format_moment(since_s)}  waits for ever: needs {seen.need}, {seen.free_gpus} free; {why}")
        return [*told, *self._sums()]

    def _close(self, now_s: float) -> None:
        """What was true since the last look was true until now."""
        if self._open is None:
            return
        since_s, seen = self._open
        self._open = None
        if now_s <= since_s:
            return
        last = self.told[-1] if self.told else None
        if not isinstance(last, Stretch) or last.first.cause is not seen.cause:
            last = Stretch(seen, since_s, since_s, seen.free_gpus, seen.free_gpus)
            self.told.append(last)
        last.end_s = now_s
        last.least_free = min(last.least_free, seen.free_gpus)
        last.most_free = max(last.most_free, seen.free_gpus)
        last.behind_s[seen.blocker] += now_s - since_s  # type: ignore[assignment]
        last.because.setdefault(seen.blocker, seen.because)

    def _words(self, action: Action, domain: Domain, actions: tuple[Action, ...], now_s: float) -> str:
        match action:
            case Promote():
                return f"goes back to the first queue: {action.reason}"
            case Start():
                return self._started(action, domain, actions, now_s)
            case Preempt():
                winner = self._jobs[action.winner].job
                why = self._why_first(domain, action.winner, self._row, now_s)
                told = f", which {why}" if why else ""
                return f"is preempted: {action.reason}, job {winner.job_id} ({gpus_of(winner)}){told}"

    def _why_first(self, domain: Domain, first: int, second: int, now_s: float) -> str:
        """Why one of this domain's jobs goes before another by the policy; nothing where it does not."""
        if domain is not self._home or not {first, second} <= domain.jobs.keys():
            return ""
        ranks = domain.roster.ranks([first, second], now_s)
        if ranks[0] > ranks[1]:
            return "has waited too long" if domain.rules.reserve_after_s < math.inf else ""
        one, other = (domain.roster.figures([row], now_s) for row in (first, second))
        return why_first(domain.rules.order, one, other)

    def _started(self, action: Start, domain: Domain, actions: Iterable[Action], now_s: float) -> str:
        victims = [other.row for other in actions if isinstance(other, Preempt) and other.winner == self._row]
        told = [action.reason]
        if victims:
            shown = ", ".join(map(self._name, victims[:5]))
            more = f" and {len(victims) - 5} more" if len(victims) > 5 else ""
            why = self._why_first(domain, self._row, victims[0], now_s)
            told = [f"preempts job{'s' if len(victims) > 1 else ''} {shown}{more}{': it ' if why else ''}{why}"]
        if action.delay_s:
            told.append(f"makes no progress for {_length(action.delay_s)}, which it takes to resume")
        if action.host == domain.name and not domain.ledger.is_pooled:
            where = ", ".join(f"{domain.ledger.nodes[at].name} ({gpus})" for at, gpus in action.allocation[:6])
            more = f" and {len(action.allocation) - 6} nodes more" if len(action.allocation) > 6 else ""
            return f"starts on {where}{more}: {'; '.join(told)}"
        return f"starts: {'; '.join(told)}"

    def _story(self) -> list[str]:
        stretches = [one for one in self.told if isinstance(one, Stretch)]
        longest = {id(one) for one in sorted(stretches, key=lambda one: one.length_s, reverse=True)[:TOLD]}
        is_all = len(stretches) <= TOLD
        lines: list[str] = []
        passed: list[Stretch | Event] = []
        for before, one, after in zip([None, *self.told], self.told, [*self.told[1:], None], strict=False):
            near = (one,) if isinstance(one, Stretch) else (before, after)
            if not is_all and not any(id(other) in longest for other in near):
                passed.append(one)
                continue
            lines += _passed_over(passed)
            passed = []
            lines += self._stretch(one) if isinstance(one, Stretch) else [f"  {format_moment(one.at_s)}  {one.text}"]
        return lines + _passed_over(passed)

    def _stretch(self, one: Stretch) -> list[str]:
        free = f"{one.least_free}" if one.least_free == one.most_free else f"{one.least_free} to {one.most_free}"
        (row, longest_s), *others = one.behind_s.most_common()
        lines = [
            f"  {format_moment(one.start_s)}  waits {_length(one.length_s)}: needs {one.first.need}, "
            f"{free} free; {one.because[row]}"
        ]
        if others:
            named = [f"job {self._name(other)} ({_length(held_s)})" for other, held_s in others[:3] if other >= 0]
            more = f" and {len(others) - 3} others" if len(others) > 3 else ""
            if named:
                lines.append(f"      so for {_length(longest_s)}; otherwise behind {', '.join(named)}{more}")
        return lines

    def _name(self, row: int) -> str:
        return self._jobs[row].job.job_id

    def _sums(self) -> list[str]:
        sums: Counter[Cause] = Counter()
        for one in self.told:
            if isinstance(one, Stretch):
                sums[one.first.cause] += one.length_s  # type: ignore[assignment]
        return [f"  in all {_length(length_s)}: {cause.value}" for cause, length_s in sums.most_common()]


def _length(seconds: float) -> str:
    return format_seconds(round(seconds, 3))  # what is left below is rounding of sums


def _passed_over(passed: Sequence[Stretch | Event]) -> list[str]:
    if not passed:
        return []
    waits = [one.length_s for one in passed if isinstance(one, Stretch)]
    kinds = Counter(one.kind for one in passed if isinstance(one, Event))
    told = [f"{len(waits)} shorter waits, {_length(sum(waits))} in all"] if waits else []
    return [f"  ...  {'; '.join([*told, *(f'{count} {kind}' for kind, count in kinds.items())])}"]
