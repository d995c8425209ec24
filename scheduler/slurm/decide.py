"""Decisions for Slurm from a snapshot: priorities, holds, releases and requeues. PURE.

How it works
  Slurm starts jobs, not we. The cycle says which would start now; those come first in the queue, in its order, and all
  others behind them, by rank. So what Slurm finds room for is what the cycle found room for, and Slurm's own backfill
  goes on below. With ``is_gating`` those that the cycle does not start are held besides.

  A job may have others requeued once for each of its waits, and all of them in one turn: if Slurm does not start it on
  the GPUs that they leave, it needs something that we can't see, and no more jobs lose their work for it. One that
  names its nodes, features or licences has nobody requeued.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from farside.scheduler.admission.history import History
from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Rules
from farside.scheduler.predict.estimator import Estimator, TimeLimits
from farside.scheduler.slurm.action import Hold, JobAction, Release, Requeue, SetNice, SetPriority
from farside.scheduler.slurm.domain import Group, SlurmDomain
from farside.scheduler.slurm.job_memory import Memory, Past, recall
from farside.scheduler.slurm.nice import lowered
from farside.scheduler.slurm.priority import changes
from farside.scheduler.slurm.snapshot import HELD_MARK, JobPhase, SlurmJob, Snapshot, Traits
from farside.scheduler.state import Preempt, Start
from farside.units import format_count

# Seconds after which a job that others were requeued for, and that did not start, may have others requeued again.
ROOM_AGAIN_S = 3600.0
# The order in which actions are carried out.
_URGENCY = (Hold, Release, SetPriority, SetNice, Requeue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Rules and limits of a decision.

    Attributes:
        rules: By what jobs are scheduled.
        groups: Whose jobs; all others are left alone.
        may_preempt: Running jobs may be requeued.
        is_gating: Jobs are held until the cycle starts them.
        is_by_nice: The order is made by lowering jobs; priorities that Slurm computes are never raised.
        owner: Whose jobs may be ordered; empty: everybody's.
        most_actions: In one turn; what is left is done in the next ones.
        estimator: Says what a job is expected to take, for policies that go by it.
        histories: What was learned of the jobs of each group, by its partitions; none: nothing yet.
    """

    rules: Rules
    groups: tuple[Group, ...]
    may_preempt: bool = False
    is_gating: bool = False
    is_by_nice: bool = False
    owner: str = ""
    most_actions: int = 200
    estimator: Estimator = field(default_factory=TimeLimits)
    histories: Mapping[frozenset[str], History] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """A job that the cycle would have start now, and why."""

    job_id: str
    gpus: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision of one turn.

    Attributes:
        actions: In the order in which to carry them out.
        left: How many more there would have been.
        memory: For the next turn.
        starting: Jobs that the cycle would start now.
        queue: The waiting jobs in the order that Slurm is to have.
    """

    actions: tuple[JobAction, ...]
    left: int
    memory: Memory
    starting: tuple[Starting, ...]
    queue: tuple[str, ...]


def decide(snapshot: Snapshot, memory: Memory, traits: Traits, ways: Ways) -> Decision:
    """The actions that Slurm is to carry out now."""
    memory = recall(memory, (job for job in snapshot.jobs if job.phase is not JobPhase.OVER), snapshot.at_s)
    pasts = dict(memory.jobs)
    actions: list[JobAction] = []
    starting: list[Starting] = []
    queue: list[str] = []
    for group in ways.groups:
        slurm_domain = SlurmDomain(
            snapshot, memory, group, ways.rules, traits, may_preempt=ways.may_preempt,
            estimator=ways.estimator, history=ways.histories.get(group.partitions),
        )  # fmt: skip
        one = _Turn(slurm_domain, memory, snapshot.at_s, ways)
        # Groups have no job in common, so none is overwritten.
        pasts.update(one.pasts)
        actions += one.actions
        starting += one.starting
        queue += [job.job_id for job in one.queue]
    # A stable sort: each kind keeps the order of the queue. Requeues come last, so that the winner has its priority
    # before GPUs come free for it.
    ordered = sorted(actions, key=lambda action: _URGENCY.index(type(action)))
    chosen = _bounded(ordered, ways.most_actions)
    for action in chosen:
        if isinstance(action, Requeue):
            # Only for those that are carried out in this turn.
            pasts[action.winner] = replace(pasts[action.winner], room_made_s=snapshot.at_s)
    return Decision(
        actions=tuple(chosen), left=len(ordered) - len(chosen), memory=replace(memory, jobs=pasts),
        starting=tuple(starting), queue=tuple(queue),
    )  # fmt: skip


def failed(memory: Memory, action: Requeue) -> Memory:
    """The memory once Slurm has refused to requeue somebody: it may be tried again."""
    past = replace(memory.jobs[action.winner], room_made_s=float("-inf"))
    return replace(memory, jobs={**memory.jobs, action.winner: past})


def _bounded(actions: Sequence[JobAction], most: int) -> list[JobAction]:
    """The first actions. No job is requeued for one of which another action is left out, such as its place."""
    chosen = list(actions[:most])
    left_out = {action.winner if isinstance(action, Requeue) else action.job_id for action in actions[most:]}
    return [action for action in chosen if not isinstance(action, Requeue) or action.winner not in left_out]


class _Turn:
    """Decision of one turn for one group."""

    def __init__(self, slurm_domain: SlurmDomain, memory: Memory, now_s: float, ways: Ways) -> None:
        self._slurm_domain = slurm_domain
        self._ways = ways
        self._now_s = now_s
        answers = run_cycle(slurm_domain.domain, now_s)
        self.pasts: Mapping[str, Past] = slurm_domain.remembered(memory, answers)
        started = [answer for answer in answers if isinstance(answer, Start) and self._waits(answer.row)]
        self.queue = self._order(started)
        self.starting = [
            Starting(job_id=slurm_domain.jobs[one.row].job_id, gpus=slurm_domain.jobs[one.row].gpus, reason=one.reason)
            for one in started
        ]
        places = self._lowerings() if ways.is_by_nice else self._places()
        self.actions = [*places, *self._requeues(answers)]

    def _waits(self, row: int) -> bool:
        return self._slurm_domain.jobs[row].phase is JobPhase.WAITING

    def _order(self, started: Iterable[Start]) -> list[SlurmJob]:
        """Waiting jobs: those that the cycle starts, in its order, one with reserved GPUs, then the rest by rank."""
        domain = self._slurm_domain.domain
        first = [one.row for one in started]
        if domain.reservation is not None and domain.reservation.row in domain.waiting:
            # Backfill would otherwise give what is held for it to the best of the rest.
            first.append(domain.reservation.row)
        seen = set(first)
        rest = [row for row in self._slurm_domain.jobs if self._waits(row) and row not in seen]
        ranks = dict(zip(rest, domain.roster.ranks(rest, self._now_s), strict=True))
        return [self._slurm_domain.jobs[row] for row in [*first, *sorted(rest, key=lambda row: ranks[row])]]

    def _places(self) -> list[JobAction]:
        """Holds, releases, and the priorities of all jobs that are not held."""
        let = {one.job_id for one in self.starting}
        # Also those that are held already, so that they get no priority below.
        held = [job for job in self.queue if self._ways.is_gating and _may_be_held(job) and job.job_id not in let]
        actions: list[JobAction] = [
            Hold(
                job_id=job.job_id, partition=job.partitions[0], comment=with_mark(job.admin_comment),
                reason="not its turn",
            )
            for job in held
            if not job.is_held_by_us
        ]  # fmt: skip
        keeps = {job.job_id for job in held}
        free = [job for job in self.queue if job.job_id not in keeps]
        # One with our mark is always told something: a release that was broken off has left it.
        for at, priority in changes([0 if job.is_marked else job.priority for job in free]):
            actions.append(self._place(free[at], priority, self._standing(at, free)))
        return actions

    def _lowerings(self) -> list[JobAction]:
        """Nice values that make the order which `_places` makes by priorities."""
        owner = self._ways.owner
        # A held job has priority 0, and nice does not change that.
        mine = [job for job in self.queue if job.priority and owner in ("", job.user)]
        found: list[JobAction] = []
        for at, nice in lowered([(job.priority, job.nice) for job in mine]):
            job, reason = mine[at], self._standing(at, mine)
            found.append(SetNice(job_id=job.job_id, partition=job.partitions[0], nice=nice, reason=reason))
        return found

    def _standing(self, at: int, among: Sequence[SlurmJob]) -> str:
        place = "first" if at == 0 else f"place {at + 1}"
        return f"{place} of {format_count(len(among), 'job')} by {self._ways.rules.order.name}"

    def _place(self, job: SlurmJob, priority: int, reason: str) -> JobAction:
        if not job.is_marked:
            return SetPriority(job_id=job.job_id, partition=job.partitions[0], priority=priority, reason=reason)
        comment = without_mark(job.admin_comment)
        return Release(
            job_id=job.job_id, partition=job.partitions[0], priority=priority, comment=comment, reason=reason
        )

    def _requeues(self, answers: Iterable[object]) -> list[JobAction]:
        jobs = self._slurm_domain.jobs
        found: list[JobAction] = []
        for answer in answers:
            if not isinstance(answer, Preempt) or answer.winner not in jobs:
                continue
            winner, victim = jobs[answer.winner], jobs[answer.row]
            room_made_s = self.pasts[winner.job_id].room_made_s
            if winner.is_bound or winner.is_holding or self._now_s - room_made_s < ROOM_AGAIN_S:
                continue
            found.append(
                Requeue(
                    job_id=victim.job_id, partition=victim.partitions[0], winner=winner.job_id, reason=answer.reason
                )
            )
        return found


def _may_be_held(job: SlurmJob) -> bool:
    """Not an array, of which one task is started at a time; and not one of which we don't know where it fits."""
    return not job.is_array and not job.is_bound


def with_mark(comment: str) -> str:
    """A job's AdminComment with the mark that we hold it."""
    return comment if HELD_MARK in comment.split() else f"{comment} {HELD_MARK}".strip()


def without_mark(comment: str) -> str:
    """A job's AdminComment without the mark."""
    return comment.replace(HELD_MARK, "").strip()
