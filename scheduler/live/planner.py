"""The cycle's domain kept in step with the log, and the cycle's actions turned into events. PURE.

How it works
  The domain (scheduler/domain.py) is the plan: who holds what once all that was decided has come about. The log is what
  is so. Between the two lies the time that processes take to go, and three rules keep them together:

  * What the cycle decided stands in the domain at once, and in the log when the brain has written it. Until it reads
    its own entry again, what others wrote about that job meanwhile is left for that moment (`_ahead`).
  * A job that is preempted and placed elsewhere while its processes still go has its new place in the domain only; it
    is written (`JobPlaced`) once the job waits again (`_deferred`).
  * Whatever else is not as the domain has it is put right by `_reconcile`, job by job, or by building the domain anew
    before it is asked next (nodes that come, or change in size): once, however many nodes come at a time.

  A domain that was built anew has the figures of the log, and the queues in the order of the old one where there is
  one; after a restart, by how long jobs wait. What the policies have learned belongs to the planner, which gives it to
  each domain: it follows from the jobs that ended, and outlives a restart as far as the log still knows these.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.fair_share import FairShare
from farside.scheduler.live.event import (
    DrainRequested,
    Entry,
    Event,
    JobEnded,
    JobPlaced,
    JobPromoted,
    JobStarted,
    JobStopping,
    JobUnplaced,
    NodeChanged,
    NodeJoined,
    NodeLost,
    NodesReserved,
    Place,
    PowerChanged,
    ReservationCancelled,
    StopCause,
    TaskProfiled,
    UndrainRequested,
)
from farside.scheduler.live.live_state import LiveState
from farside.scheduler.live.maintenance import closures_of
from farside.scheduler.live.past_use import fact_of, fair_share_of, history_of, service_gpu_s
from farside.scheduler.live.record import ACTIVE, LiveJob, Phase
from farside.scheduler.live.snapshot import (
    NOTHING,
    allocation_of,
    booked,
    figures_of,
    is_holding,
    is_ready,
    job_of,
    node_of,
)
from farside.scheduler.live.toll import MeasuredCost
from farside.scheduler.predict.estimator import Estimator, TimeLimits
from farside.scheduler.state import Allocation, Job, Preempt, Promote, Start
from farside.scheduler.table import JobTable

EDGE_S = 1e-6
# Rows of jobs that are over stay in the table until there are so many more than of others.
SPARE_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class _Deferred:
    """A place that a job will be given when the processes of its last start have gone."""

    allocation: Allocation
    reason: str


class Planner:
    """Plans for all jobs of one state. Its owner has applied each entry to the state before `hear` gets it."""

    def __init__(self, rules: Rules, state: LiveState, now_s: float, estimator: Estimator | None = None) -> None:
        self._rules = replace(rules, cost=MeasuredCost(toll=state.toll))
        self._state = state
        self.domain: Domain
        self._rows: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._next_row = 0
        self._node_index: dict[str, int] = {}
        self._ahead: dict[str, int] = {}
        self._deferred: dict[str, _Deferred] = {}
        self._wakes: list[tuple[float, int, int]] = []  # (when, row or -1, the row's turn)
        self._turns: dict[int, int] = {}
        self._is_touched = True
        self._is_stale = False  # the domain is built anew before it is asked again; until then nothing is kept in step
        self._taking: frozenset[str] | None = None  # None: the ledger has not been told yet
        self._asks_users = False  # some node runs jobs of some users only
        self._fair_share: FairShare | None = fair_share_of(rules.tenancy, state, now_s)
        self._compare_s = -math.inf  # when accounts will be compared; noted in `_wakes`
        self._estimator = estimator or TimeLimits()
        self._history = history_of(rules, state)
        self._build(now_s)

    # ------------------------------------------------------------------ what happened

    def hear(self, entry: Entry, touched: Iterable[str]) -> None:
        """Brings the domain in step with one entry that the state has just been moved on by."""
        event = entry.event
        if isinstance(event, JobEnded):
            self._learn_from(self._state.jobs[event.job_id])
        if isinstance(event, JobPlaced | JobUnplaced | JobPromoted) or (
            isinstance(event, JobStopping) and event.cause is StopCause.PREEMPTED
        ):
            self._caught_up(event.job_id)
        if isinstance(event, NodeJoined | NodeChanged) and not self._is_stale and self._is_other_size(event.node):
            self._is_stale = True
        if self._is_stale:
            return
        if isinstance(event, NodeJoined | NodeChanged | NodeLost | DrainRequested | UndrainRequested | PowerChanged):
            self._resize()
        if isinstance(event, NodesReserved | ReservationCancelled):
            self._close(entry.at_s)
        for job_id in touched:
            if isinstance(event, TaskProfiled):
                self._learn(self._state.jobs[job_id])
            self._reconcile(self._state.jobs[job_id], entry.at_s)
        if isinstance(event, JobStarted) and not self._is_stale:
            self._really_started(self._state.jobs[event.job_id], entry.at_s)

    def _learn_from(self, job: LiveJob) -> None:
        """A job is over. What is learned from it does not depend on the domain: another may be built by then."""
        if not job.held_s > 0:
            return
        expected_gpu_s = self._estimator.learn(fact_of(job, self._job_of(job)))
        self.domain.learn(service_gpu_s(job))
        for row in self.domain.waiting.rows() if expected_gpu_s else ():
            sequence = self.domain.jobs[row].sequence
            if sequence in expected_gpu_s:
                self.domain.expect(row, predicted_gpu_s=expected_gpu_s[sequence])

    def _caught_up(self, job_id: str) -> None:
        ahead = self._ahead.get(job_id, 0) - 1
        if ahead > 0:
            self._ahead[job_id] = ahead
        else:
            self._ahead.pop(job_id, None)

    def row(self, job_id: str) -> int:
        """The row of a job in the domain; -1: it is not there."""
        row = self._rows.get(job_id, -1)
        return row if row in self.domain.jobs else -1

    def job_id(self, row: int) -> str:
        """The job of a row."""
        return self._ids[row]

    # ------------------------------------------------------------------ what to do

    def next_wake_s(self) -> float:
        """When `plan` should be asked again though nothing has happened; infinite: never."""
        return self._wakes[0][0] if self._wakes else math.inf

    def is_due(self, now_s: float) -> bool:
        """Whether there is reason to run the cycle."""
        return self._is_touched or self._is_to_be_built() or self.next_wake_s() <= now_s + EDGE_S

    def _is_to_be_built(self) -> bool:
        is_sparse = self._next_row > 2 * len(self.domain.jobs) + SPARE_ROWS
        return self._is_stale or (is_sparse and not self._ahead and not self._deferred)

    def plan(self, now_s: float) -> tuple[Event, ...]:
        """Runs the cycle if there is reason to. The domain has what it answers at once; the log must get it next."""
        if self._is_to_be_built():
            self._build(now_s)
        self._wake_up(now_s)
        events = self._placed_at_last()
        if self._is_touched:
            self._is_touched = False
            events += self._cycle(now_s)
        for event in events:
            if isinstance(event, JobPlaced | JobUnplaced | JobPromoted | JobStopping):
                self._ahead[event.job_id] = self._ahead.get(event.job_id, 0) + 1
        return tuple(events)

    def _wake_up(self, now_s: float) -> None:
        while self._wakes and self._wakes[0][0] <= now_s + EDGE_S:
            _, row, turn = heapq.heappop(self._wakes)
            if row < 0:
                self.domain.touch()
                self._is_touched = True
            elif turn == self._turns.get(row) and row in self.domain.jobs:
                self.domain.cross(row, now_s)
                self._is_touched = True
                self._watch([row], now_s)

    def _placed_at_last(self) -> list[Event]:
        events: list[Event] = []
        for job_id, deferred in list(self._deferred.items()):
            job = self._state.jobs[job_id]
            if job.phase is Phase.WAITING and job_id not in self._ahead:
                del self._deferred[job_id]
                events.append(
                    JobPlaced(job_id=job_id, places=self._places(deferred.allocation), reason=deferred.reason)
                )
        return events

    def _cycle(self, now_s: float) -> list[Event]:
        events: list[Event] = []
        changed: list[int] = []
        for action in run_cycle(self.domain, now_s):
            job = self._state.jobs[self._ids[action.row]]
            changed.append(action.row)
            if isinstance(action, Promote):
                events.append(JobPromoted(job_id=job.job_id, reason=action.reason))
            elif isinstance(action, Preempt):
                event = self._preempted(job, action)
                events += [event] if event is not None else []
                self._wake_at(now_s + self._rules.reserve_after_s)
            else:
                event = self._placed(job, action)
                events += [event] if event is not None else []
                held = self.domain.running.get(action.row)
                if held is not None and now_s < held.until_s < math.inf:
                    self._wake_at(held.until_s)
        self._turn(changed)
        self._watch(list(dict.fromkeys(changed)), now_s)
        if self._fair_share is not None and self._fair_share.due_s > self._compare_s and len(self.domain.waiting):
            self._compare_s = self._fair_share.due_s
            self._wake_at(self._compare_s)
        return events

    def _preempted(self, job: LiveJob, action: Preempt) -> Event | None:
        if self._deferred.pop(job.job_id, None) is not None:
            return None  # nobody has been told of that place
        reason = f"{action.reason}: job {self._ids[action.winner]}" if action.winner >= 0 else action.reason
        if job.phase not in ACTIVE:  # it has a place and has not started; it may have got it in this very cycle
            return JobUnplaced(job_id=job.job_id, reason=reason)
        winner = self._ids.get(action.winner, "")
        cause = StopCause.PREEMPTED
        return JobStopping(job_id=job.job_id, start=job.start, cause=cause, reason=reason, winner=winner)

    def _placed(self, job: LiveJob, action: Start) -> Event | None:
        if job.phase in ACTIVE:
            self._deferred[job.job_id] = _Deferred(action.allocation, action.reason)
            return None
        return JobPlaced(job_id=job.job_id, places=self._places(action.allocation), reason=action.reason)

    def _places(self, allocation: Allocation) -> tuple[Place, ...]:
        nodes = self.domain.ledger.nodes
        return tuple(Place(node=nodes[at].name, gpus=gpus) for at, gpus in allocation)

    # ------------------------------------------------------------------ times

    def _wake_at(self, at_s: float) -> None:
        if at_s < math.inf:
            heapq.heappush(self._wakes, (at_s, -1, 0))

    def _turn(self, rows: Iterable[int]) -> None:
        """What was foreseen of these rows is of no use any more."""
        for row in rows:
            self._turns[row] = self._turns.get(row, 0) + 1

    def _watch(self, rows: list[int], now_s: float) -> None:
        rows = [row for row in rows if row in self.domain.jobs]
        if not rows or not self.domain.traits.has_thresholds:
            return
        for row, change_s in zip(rows, self.domain.watch(rows, now_s), strict=True):
            if EDGE_S < change_s < math.inf:
                heapq.heappush(self._wakes, (now_s + change_s, row, self._turns.setdefault(row, 0)))

    # ------------------------------------------------------------------ in step

    def _reconcile(self, job: LiveJob, now_s: float) -> None:
        if job.job_id in self._ahead:
            return
        row, domain = self._rows.get(job.job_id, -1), self.domain
        is_there = row in domain.jobs
        is_running = is_there and row in domain.running
        if job.job_id in self._deferred and self._may_wait(job):
            return
        self._deferred.pop(job.job_id, None)
        if is_holding(job):
            if not is_running:
                self._is_stale = True
            elif job.phase is Phase.STOPPING:
                domain.book.leave_alone(row, math.inf)  # its processes go already: nobody is helped by preempting it
            return
        if is_running and job.is_over:
            domain.finish(row)
        elif is_running:
            domain.lose(row, now_s)
        if row >= 0:
            self._turn([row])
        if self._may_wait(job):
            if row not in domain.jobs:
                self._restore(job, now_s)
        elif row in domain.jobs:
            domain.withdraw(row)
        if row in domain.jobs and is_running:
            self._watch([row], now_s)
        if job.is_over and row >= 0:
            del self._rows[job.job_id]
        self._is_touched = True

    def _learn(self, job: LiveJob) -> None:
        """What its profile tells matters for its next place, which it may be waiting for already."""
        row = self.row(job.job_id)
        if row >= 0:
            self.domain.know(row, self._job_of(job))
            self._is_touched = True

    def _job_of(self, job: LiveJob) -> Job:
        return job_of(job, asks_users=self._asks_users)

    def _may_wait(self, job: LiveJob) -> bool:
        is_leaving = job.phase is Phase.STOPPING and job.stop_cause is StopCause.PREEMPTED and not job.cancelled_by
        return (job.phase is Phase.WAITING or is_leaving) and not job.held_by and is_ready(self._state, job)

    def _really_started(self, job: LiveJob, now_s: float) -> None:
        """Its service counts from now on: until now it waited for others to go."""
        row = self._rows[job.job_id]
        self.domain.begin(row, now_s, delay_s=self._resume_s(job))
        until_s = self._alone_until_s(job, now_s)
        if self.domain.book.leave_alone(row, until_s):
            self._wake_at(until_s)
        self._turn([row])
        self._watch([row], now_s)

    def _resume_s(self, job: LiveJob) -> float:
        return self._rules.cost.preemption_s(job_of(job)) if job.start > 1 else 0.0

    def _alone_until_s(self, job: LiveJob, since_s: float) -> float:
        """The time that nobody may take its GPUs is one in which it makes progress: it begins once it has resumed."""
        return since_s + self._resume_s(job) + self._rules.min_run_s

    def _restore(self, job: LiveJob, now_s: float, share_level: float | None = None) -> int:
        """Puts a job into the domain with what it has behind it; where it holds GPUs, with these."""
        row = self._rows.get(job.job_id, -1)
        if row < 0:
            row, self._next_row = self._next_row, self._next_row + 1
            self._rows[job.job_id], self._ids[row] = row, job.job_id
        seen = self._job_of(job)
        figures = figures_of(job, seen, self._estimator, now_s, share_level=share_level)
        if is_holding(job):
            until_s = self._alone_until_s(job, figures.since_s) if job.phase in ACTIVE else -math.inf
            if job.phase is Phase.STOPPING:
                until_s = math.inf  # its processes go already: nobody is helped by preempting it
            allocation = allocation_of(job.places, self._node_index)
            figures = replace(figures, allocation=allocation, left_alone_until_s=until_s)
        self.domain.restore(row, seen, figures)
        if figures.allocation is not None:
            if figures.left_alone_until_s > now_s:
                self._wake_at(figures.left_alone_until_s)
            return row
        self._wake_at(figures.since_s + self._rules.reserve_after_s)
        if self.domain.traits.is_ageing or job.start:
            self._watch([row], now_s)
        return row

    # ------------------------------------------------------------------ nodes

    def _is_other_size(self, name: str) -> bool:
        """Whether the ledger does not know a node as it is now. Memory may differ by an eighth: it always moves."""
        at = self._node_index.get(name)
        if at is None:
            return True
        promised = booked(self._state).get(name, NOTHING)
        now, then = node_of(self._state.nodes[name], promised), self.domain.ledger.nodes[at]
        if (now.gpus, now.cpus, now.gpu_model, now.swap_bytes, now.users) != (
            then.gpus, then.cpus, then.gpu_model, then.swap_bytes, then.users,
        ):  # fmt: skip
            return True
        return abs(now.memory_bytes - then.memory_bytes) > then.memory_bytes / 8

    def _resize(self) -> None:
        taking = frozenset(name for name, node in self._state.nodes.items() if node.is_taking)
        if taking != self._taking:
            self._taking = taking
            there = (node_of(self._state.nodes[node.name]) for node in self.domain.ledger.nodes if node.name in taking)
            self.domain.resize(tuple(there))
            self._is_touched = True

    def _close(self, now_s: float) -> None:
        """Tells the domain which nodes are reserved, and notes when to look again."""
        closures = closures_of(self._state, self._node_index, now_s)
        self.domain.close(closures)
        for closure in closures:
            self._wake_at(closure.end_s + 2 * EDGE_S)  # a wake may come so much early
        self._is_touched = True

    def _build(self, now_s: float) -> None:
        """A new domain from what the state says, in the order of the old one."""
        self._is_stale = False
        state = self._state
        order = self._order()
        levels = self._levels()
        promised = booked(state)
        nodes = []
        for at, node in enumerate(state.nodes.values()):
            nodes.append(node_of(node, promised.get(node.name, NOTHING)))
            self._node_index[node.name] = at
        self._asks_users = any(node.users for node in nodes)
        self._rows.clear()
        self._ids.clear()
        self._next_row = 0
        self._wakes.clear()
        self._turns.clear()
        self._deferred.clear()
        self._ahead.clear()
        self._compare_s = -math.inf
        self.domain = Domain(
            "", tuple(nodes), self._rules, JobTable(max(64, len(order))), is_counting_limits=True,
            fair_share=self._fair_share, history=self._history,
        )  # fmt: skip
        self._close(now_s)
        self._taking = None
        started: list[tuple[tuple[float, ...], int]] = []
        for job in order:
            if is_holding(job):
                row = self._restore(job, now_s, levels.get(job.job_id))
                started.append(((float(len(started)),), row))
            elif self._may_wait(job):
                self._restore(job, now_s)
        self.domain.settle(started, [], now_s)
        self._watch([row for _, row in started], now_s)
        self._resize()
        self._is_touched = True

    def _levels(self) -> dict[str, float]:
        """With which level of its account each running job of the old domain was started."""
        if self._fair_share is None or not self._rows:
            return {}
        return {self._ids[row]: float(self.domain.table.share_level[row]) for row in self.domain.running}

    def _order(self) -> list[LiveJob]:
        jobs = list(self._state.live_jobs())
        if not self._rows:
            return sorted(jobs, key=lambda job: (job.since_s, job.sequence))
        position = self.domain.table.position
        last = math.inf
        places = {job.job_id: float(position[self._rows[job.job_id]]) for job in jobs if job.job_id in self._rows}
        return sorted(jobs, key=lambda job: (places.get(job.job_id, last), job.sequence))
