"""What a live log says of its delays and of nodes that were lent, and the same jobs simulated with these delays.

Each job needs its run time and, charged to it, what deciding, starting and stopping took in its case: where hundreds of
jobs start within seconds, each takes longer than elsewhere, and all behind them wait for it. While no scheduler process
lived, nobody decides in the simulation either. Everything else it decides itself, with an estimator that begins as the
manager's did. Jobs come when the manager had them, as its log says, and not when they were to be submitted.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from farside.config import ManagerConfig
from farside.scheduler.configured_rules import partitions_of, rules_of
from farside.scheduler.manager.compare_decisions import DecisionCount, decided_again
from farside.scheduler.manager.compare_simulation import Fidelity, Recording, recording, simulated
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.sim.learned_before import learned_before
from farside.scheduler.sim.trace.job import TraceJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Mean seconds a job, and what deciding took for each.

    Attributes:
        deciding_s: From what made a start possible (it came, or GPUs became free) until it was decided; all its starts.
            While no scheduler process lived, no time counts: `pause` has that.
        starting_s: From that decision until the job works.
        stopping_s: From its last work until its GPUs are free.
        deciding_of_s: Of each job, by its id; those that are missing took none.
        longest_s: The longest that deciding one start took.
        pause: When the scheduler process was killed, and when the next one decided; empty: none was.
    """

    deciding_s: float
    starting_s: float
    stopping_s: float
    deciding_of_s: Mapping[str, float]
    longest_s: float = 0.0
    pause: tuple[float, float] | None = None

    @property
    def recovery_s(self) -> float:
        """How long nobody decided because the scheduler process was killed; 0: it was not."""
        return 0.0 if self.pause is None else self.pause[1] - self.pause[0]

    @property
    def total_s(self) -> float:
        """All three."""
        return self.deciding_s + self.starting_s + self.stopping_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """A borrower that gave its nodes back to their owner.

    Attributes:
        borrower: Its job.
        owner: The job that got them.
        waited_s: From what made the owner ask for them until the borrower had left.
    """

    borrower: str
    owner: str
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCompared:
    """A day live and simulated.

    Attributes:
        fidelity: Job by job.
        delays: As measured, and charged to the simulation.
        fifo_jct_s: Average JCT of the same jobs under FIFO, simulated.
        mean_need_s: Average run time, without any delay.
        decided: How many decisions are others when they are made again on the state that the log had then.
        recalls: Nodes that came back to their owners.
        guests: Starts on nodes of another partition.
        leaders: Who led before and after the kill, as `leaders_around` says it.
    """

    fidelity: Fidelity
    delays: Delays
    fifo_jct_s: float
    mean_need_s: float
    decided: DecisionCount
    recalls: tuple[Recall, ...]
    guests: int
    leaders: tuple[str, str]

    @property
    def wait_s(self) -> float:
        """Average time from submission to end that a job did not work, and ``predicted_wait_s`` the same simulated."""
        return self.fidelity.mean_jct_s - self.mean_need_s

    @property
    def predicted_wait_s(self) -> float:
        """Simulated."""
        return self.fidelity.predicted_mean_s - self.mean_need_s


def compare(
    entries: Sequence[log.Entry], config: ManagerConfig, needs_s: Mapping[str, float], *, killed_s: float = math.inf
) -> LiveCompared:
    """Compares a day that was played with its simulation.

    Args:
        entries: The manager's whole log.
        config: Its settings.
        needs_s: Run time of each job, by its id.
        killed_s: When the scheduler process was killed, or its manager; infinite: neither was.

    Raises:
        FarsideError: No job has ended, or some never end in the simulation.
    """
    found = recording(entries, needs_s.keys(), partitions_of(config))
    delays = delays_of(entries, found, needs_s, killed_s=killed_s)
    jobs = charged(found, delays)
    before = learned_before(config)
    no_policy = replace(config, policy="fifo", policy_settings="")
    pauses = () if delays.pause is None else (delays.pause,)
    return LiveCompared(
        fidelity=simulated(jobs, before.rules, before.times, pauses=pauses),
        delays=delays,
        fifo_jct_s=simulated(jobs, rules_of(no_policy), pauses=pauses).predicted_mean_s,
        mean_need_s=statistics.fmean(needs_s[one.traced.job.job_id] for one in found.jobs),
        recalls=recalls_of(entries),
        decided=decided_again(entries, before.rules, before.times, partitions=partitions_of(config)),
        guests=sum(isinstance(one.event, log.JobAllocated) and bool(one.event.host) for one in entries),
        leaders=leaders_around(entries, killed_s),
    )


def charged(found: Recording, delays: Delays) -> Recording:
    """The recording, in which jobs are charged starting and stopping already, with what deciding took."""
    return replace(found, jobs=tuple(replace(one, traced=_charged(one.traced, delays)) for one in found.jobs))


def _charged(one: TraceJob, delays: Delays) -> TraceJob:
    return replace(one, duration_s=one.duration_s + delays.deciding_of_s.get(one.job.job_id, 0.0))


def delays_of(
    entries: Sequence[log.Entry], found: Recording, needs_s: Mapping[str, float], *, killed_s: float = math.inf
) -> Delays:
    """The delays of a recording with at least one job."""
    state = LiveState()
    for entry in entries:
        apply(state, entry)
    ready_s = {one.traced.job.job_id: one.traced.comes_s for one in found.jobs}
    starting_s = statistics.fmean(
        [job.resume_s for job in map(state.jobs.__getitem__, ready_s) if job.start == 1 and job.resume_s >= 0] or [0.0]
    )
    pause = _pause_of(entries, killed_s)
    decisions = _deciding_s(entries, ready_s, pause)
    deciding_of_s = {job_id: sum(took_s) for job_id, took_s in decisions.items()}
    around_s = statistics.fmean(one.traced.duration_s - needs_s[one.traced.job.job_id] for one in found.jobs)
    return Delays(
        deciding_s=sum(deciding_of_s.values()) / len(ready_s),
        starting_s=starting_s,
        stopping_s=around_s - starting_s,
        deciding_of_s=deciding_of_s,
        longest_s=max((max(took_s) for took_s in decisions.values()), default=0.0),
        pause=pause,
    )


def _pause_of(entries: Sequence[log.Entry], killed_s: float) -> tuple[float, float] | None:
    """From the kill until the next scheduler process had decided on what waited for it, or led if nothing did."""
    after = [entry for entry in entries if entry.at_s >= killed_s]
    lead = next((entry for entry in after if isinstance(entry.event, log.SchedulerTookLead)), None)
    if lead is None:
        return None
    decided = (entry for entry in after if entry.seq > lead.seq and entry.generation == lead.generation)
    first = next(decided, lead)
    return killed_s, first.at_s if _cause_of(first) <= lead.seq else lead.at_s


class _Decided(NamedTuple):
    """Since when a start could be decided, and until when deciding counts; None: until it starts."""

    since_s: float
    until_s: float | None


def _deciding_s(
    entries: Sequence[log.Entry], ready_s: Mapping[str, float], pause: tuple[float, float] | None
) -> dict[str, list[float]]:
    """Seconds that deciding took, by job, each of its starts. ``ready_s``: when each was ready to run.

    Until its processes are told to start counts as well, unless other jobs had to leave its nodes first.
    """
    by_seq: dict[float, log.Entry] = {entry.seq: entry for entry in entries}
    allocated: dict[str, _Decided] = {}
    nodes_of: dict[str, frozenset[str]] = {}  # of the last start of each job
    leaving: dict[str, frozenset[str]] = {}  # nodes that jobs which are being stopped have not left yet
    found = dict[str, list[float]]()
    for entry in entries:
        match entry.event:
            case log.JobAllocated(job_id=job_id, places=places) if job_id in ready_s:
                since_s = _caused_s(entry, by_seq)
                # What the new scheduler process found has waited for a decision since that one could make any.
                if pause is not None and since_s < pause[1] <= entry.at_s:
                    since_s = pause[1]
                nodes = frozenset(place.node for place in places)
                must_wait = any(nodes & others for others in leaving.values())
                allocated[job_id] = _Decided(since_s, entry.at_s if must_wait else None)
            case log.JobStopping(job_id=job_id):
                leaving[job_id] = nodes_of.get(job_id, frozenset())
            case log.JobRequeued(job_id=job_id) | log.JobEnded(job_id=job_id):
                leaving.pop(job_id, None)
            case log.JobStarted(job_id=job_id, tasks=tasks):
                nodes_of[job_id] = frozenset(task.node for task in tasks)
                if (decided := allocated.pop(job_id, None)) is not None:
                    until_s = entry.at_s if decided.until_s is None else decided.until_s
                    found.setdefault(job_id, []).append(until_s - decided.since_s)
            case _:
                pass
    return found


def _cause_of(entry: log.Entry) -> float:
    """The entry that a decision rests on; infinite: none, but a timer."""
    word, _, seq = entry.cause.partition(" ")
    return int(seq) if word == "entry" and seq.isdigit() else math.inf


def _caused_s(entry: log.Entry, by_seq: Mapping[float, log.Entry]) -> float:
    """When what a decision rests on happened."""
    cause = by_seq.get(_cause_of(entry))
    return entry.at_s if cause is None else cause.at_s


def starts_on(entries: Sequence[log.Entry], node: str) -> int:
    """How many starts of jobs had GPUs of this node."""
    return sum(
        isinstance(one.event, log.JobStarted) and any(task.node == node for task in one.event.tasks) for one in entries
    )


def waiting_when_joined(entries: Sequence[log.Entry], node: str, jobs: Collection[str]) -> int:
    """How many of these jobs waited for GPUs when this node joined for the first time; 0 also if it never did."""
    state = LiveState()
    for entry in entries:
        if isinstance(entry.event, log.NodeJoined) and entry.event.node == node:
            return sum(job.job_id in jobs and job.phase is Phase.WAITING for job in state.live_jobs())
        apply(state, entry)
    return 0


def leaders_around(entries: Sequence[log.Entry], killed_s: float) -> tuple[str, str]:
    """Node names of two managers: whose scheduler process took the lead last before the kill, and whose first after it.

    Empty: none did. ``killed_s`` is infinite where nothing was killed.
    """
    leads = [
        (one.at_s, one.event.holder.rpartition(":")[0])
        for one in entries
        if isinstance(one.event, log.SchedulerTookLead)
    ]
    before = [name for at_s, name in leads if at_s < killed_s]
    after = [name for at_s, name in leads if at_s >= killed_s]
    return (before[-1] if before else "", after[0] if after else "")


def recalls_of(entries: Sequence[log.Entry]) -> tuple[Recall, ...]:
    """What borrowers gave back because an owner's job needed it."""
    by_seq: dict[float, log.Entry] = {entry.seq: entry for entry in entries}
    guests: dict[str, str] = {}  # by job whose nodes it has
    asked: dict[str, tuple[str, float]] = {}
    found = []
    for entry in entries:
        match entry.event:
            case log.JobAllocated(job_id=job_id, host=host):
                guests[job_id] = host
            case log.JobStopping(job_id=job_id, winner=winner) if winner and guests.get(job_id):
                asked[job_id] = winner, _caused_s(entry, by_seq)
            case log.JobRequeued(job_id=job_id) | log.JobEnded(job_id=job_id) if job_id in asked:
                owner, since_s = asked.pop(job_id)
                found.append(Recall(borrower=job_id, owner=owner, waited_s=entry.at_s - since_s))
            case _:
                pass
    return tuple(found)
