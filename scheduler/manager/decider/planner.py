"""The planner: it keeps the cycle's domain in step with the log, and turns the cycle's actions into events. PURE.

How it works
  The domain (scheduler/domain.py) is the plan: who holds what once all that was decided has come about. The log is what
  is so. Between the two lies the time that processes take to go, and three rules keep them together:

  * What the cycle decided stands in the domain at once, and in the log when the scheduler process has written it. Until
    it reads its own entry again, what others wrote about that job meanwhile is left for that moment (pending.py).
  * A job that is preempted and placed elsewhere while its processes still go has its new place in the domain only; it
    is written (`JobAllocated`) once the job waits again (pending.py).
  * Whatever else is not as the domain has it is put right by `_reconcile`, job by job, or by building the domain anew
    before it is asked next (nodes that come, or change in size): once, however many nodes come at a time.

  A domain that was built anew has the figures of the log, and the queues in the order of the old one where there is
  one; after a restart, by how long jobs wait. What the policies have learned belongs to the planner, which gives it to
  each domain: it follows from the jobs that ended, and outlives a restart as far as the log still knows these.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.fair_share import FairShare
from farside.scheduler.manager.decider import adapter
from farside.scheduler.manager.decider.past_use import fair_share_of, has_run, history_of, service_gpu_s
from farside.scheduler.manager.decider.pending import Pending
from farside.scheduler.manager.decider.timers import EDGE_S, NO_ROW, Timers
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.draft import Draft, Timer, by_entry, by_timer
from farside.scheduler.manager.model.maintenance import windows_of
from farside.scheduler.manager.model.preemption_times import MeasuredCost
from farside.scheduler.manager.model.record import ACTIVE, LiveJob, Phase
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.state import Job, Node, Preempt, Promote, Start
from farside.scheduler.table import JobTable

# Rows of jobs that are over stay in the table until there are so many more than of others.
SPARE_ROWS = 10_000

_NodeFacts = log.NodeJoined | log.NodeChanged
_NodeEvents = _NodeFacts | log.NodeLost | log.DrainRequested | log.UndrainRequested | log.PowerChanged


class Planner:
    """Plans for all jobs of one state. Its owner has applied each entry to the state before `hear` gets it."""

    def __init__(
        self,
        rules: Rules,
        state: LiveState,
        now_s: float,
        *,
        set_aside: frozenset[str] = frozenset(),
        times: LearnedTimes | None = None,
    ) -> None:
        """``set_aside``: names of nodes whose GPUs the cycle gives to nobody. ``times``: it knows no job yet."""
        self._set_aside = set_aside
        self._times = times
        self._rules = replace(rules, preemption_cost=MeasuredCost(preemption_times=state.preemption_times))
        self._state = state
        self.domain: Domain
        self._rows: dict[str, int] = {}
        self._ids: dict[int, str] = {}
        self._next_row = 0
        self._node_index: dict[str, int] = {}
        self._pending = Pending()
        self._timers = Timers()
        self._heard = by_entry(state.seq)  # the newest entry, as a cause
        self._woken_by = self._heard  # what the next cycle is run for, the newest of all; empty: there is no reason to
        self._is_stale = False  # the domain is built anew before it is asked again; until then nothing is kept in step
        self._taking: frozenset[str] | None = None  # None: the ledger has not been told yet
        self._asks_users = False  # some node runs jobs of some users only
        self._fair_share: FairShare | None = fair_share_of(rules.tenancy, state, now_s)
        self._compare_s = -math.inf  # when accounts will be compared; noted in `_timers`
        self._history = history_of(rules, state, times)
        self._build(now_s)

    # ------------------------------------------------------------------ what happened

    def hear(self, entry: log.Entry, touched: Iterable[str]) -> None:
        """Brings the domain in step with one entry that the state has just been moved on by."""
        event, self._heard = entry.event, by_entry(entry.seq)
        # Co-located jobs are not the cycle's (colocated.py).
        touched = [job_id for job_id in touched if not self._state.jobs[job_id].spec.colocate]
        if isinstance(event, log.JobSubmitted) and self._times is not None:
            for job_id in touched:
                self._times.predicted_gpu_s(self._job_of(self._state.jobs[job_id]), entry.at_s)
        if isinstance(event, log.JobEnded) and touched:
            self._learn_of_end(self._state.jobs[event.job_id], entry.at_s)
        self._pending.arrive(event)
        if isinstance(event, _NodeFacts) and not self._is_stale and self._is_other_size(event.node):
            self._spoil()
        if isinstance(event, log.PoolSized) and any(map(self._is_other_size, self._node_index)):
            self._spoil()
        if self._is_stale:
            return
        if isinstance(event, _NodeEvents):
            self._resize()
        if isinstance(event, log.NodesReserved | log.ReservationCancelled):
            self._close(entry.at_s)
        for job_id in touched:
            if isinstance(event, log.TaskProfiled):
                self._learn(self._state.jobs[job_id])
            self._reconcile(self._state.jobs[job_id], entry.at_s)
        if isinstance(event, log.JobStarted) and touched and not self._is_stale:
            self._really_started(self._state.jobs[event.job_id], entry.at_s)

    def _learn_of_end(self, job: LiveJob, now_s: float) -> None:
        """What is learned does not depend on the domain: another may be built by then."""
        seen, expected_gpu_s = self._job_of(job), math.nan
        if not has_run(job):
            if self._times is not None:
                self._times.drop(seen.sequence)
            return
        if self._times is not None:
            expected_gpu_s = self._times.predicted_gpu_s(seen, now_s)
        self.domain.learn(service_gpu_s(job), expected_gpu_s)
        if self._times is not None:
            self.expect(self._times.learn(JobEnded(at_s=now_s, job=seen, ran_s=job.held_s)))

    def expect(self, predicted_gpu_s: Mapping[int, float]) -> None:
        """Rank jobs by what is now expected of them, GPU seconds by sequence."""
        if not predicted_gpu_s or self._times is None:
            return
        id_of = {self._state.jobs[job_id].sequence: job_id for job_id in self._state.unfinished}
        for sequence, gpu_s in predicted_gpu_s.items():
            if (row := self.row(id_of.get(sequence, ""))) >= 0:
                job = self._state.jobs[id_of[sequence]]
                left_s = self._times.remaining_s(self._job_of(job), job.held_s)
                self.domain.expect(row, predicted_gpu_s=gpu_s, remaining_s=left_s)
        self._touch()

    def row(self, job_id: str) -> int:
        """The row of a job in the domain; -1: it is not there."""
        row = self._rows.get(job_id, -1)
        return row if row in self.domain.jobs else -1

    # ------------------------------------------------------------------ what to do

    def next_wake_s(self) -> float:
        """When `plan` should be asked again though nothing has happened; infinite: never."""
        return self._timers.next_s

    def is_due(self, now_s: float) -> bool:
        """Whether there is reason to run the cycle."""
        return bool(self._woken_by) or self._is_to_be_built() or self.next_wake_s() <= now_s + EDGE_S

    def _is_to_be_built(self) -> bool:
        # Rows are never used again while a domain lives; not while decisions are pending, as these are forgotten by
        # `_build`.
        is_sparse = self._next_row > 2 * len(self.domain.jobs) + SPARE_ROWS
        return self._is_stale or (is_sparse and not self._pending)

    def plan(self, now_s: float) -> tuple[Draft, ...]:
        """Runs the cycle if there is reason to. The domain has what it answers at once; the log must get it next."""
        if self._is_to_be_built():
            self._build(now_s)
        self._wake_up(now_s)
        drafts = [Draft(event=event, cause=self._heard) for event in self._pending.take_ready(self._state)]
        if self._woken_by:
            cause, self._woken_by = self._woken_by, ""
            drafts += [Draft(event=event, cause=cause) for event in self._cycle(now_s)]
        self._pending.send(draft.event for draft in drafts)
        return tuple(drafts)

    def _touch(self) -> None:
        """What was heard last may let jobs start, or lose their GPUs: the cycle is run."""
        self._woken_by = self._heard

    def _spoil(self) -> None:
        """The domain is not as the log is, and is built anew before it is asked next."""
        self._is_stale = True
        self._touch()

    def _wake_up(self, now_s: float) -> None:
        for timer, row in self._timers.take_due(now_s):
            if row == NO_ROW:
                self.domain.touch()
            elif row in self.domain.jobs:
                self.domain.cross(row, now_s)
                self._watch([row], now_s)
            else:
                continue
            self._woken_by = self._woken_by or by_timer(timer)

    def _cycle(self, now_s: float) -> list[log.Event]:
        events: list[log.Event] = []
        changed: list[int] = []
        for action in run_cycle(self.domain, now_s):
            job = self._state.jobs[self._ids[action.row]]
            changed.append(action.row)
            event: log.Event | None
            if isinstance(action, Promote):
                event = log.JobPromoted(job_id=job.job_id, reason=action.reason)
            elif isinstance(action, Preempt):
                event = self._preempted(job, action)
                self._timers.set(Timer.RESERVE, now_s + self._rules.reserve_after_s)
            else:
                event = self._allocated(job, action)
                held = self.domain.running.get(action.row)
                if held is not None and now_s < held.until_s < math.inf:
                    self._timers.set(Timer.MIN_RUN, held.until_s)
            events += [event] if event is not None else []
        self._timers.end_turn(changed)
        self._watch(list(dict.fromkeys(changed)), now_s)
        if self._fair_share is not None and self._fair_share.due_s > self._compare_s and len(self.domain.waiting):
            self._compare_s = self._fair_share.due_s
            self._timers.set(Timer.FAIR_SHARE, self._compare_s)
        return events

    def _preempted(self, job: LiveJob, action: Preempt) -> log.Event | None:
        if self._pending.deferred.pop(job.job_id, None) is not None:
            return None  # nobody knows of that allocation
        reason = f"{action.reason}: job {self._ids[action.winner]}" if action.winner >= 0 else action.reason
        if job.phase not in ACTIVE:  # it has a place and has not started; it may have got it in this very cycle
            return log.AllocationReleased(job_id=job.job_id, reason=reason)
        winner = self._ids.get(action.winner, "")
        cause = log.StopCause.PREEMPTED
        return log.JobStopping(job_id=job.job_id, start=job.start, cause=cause, reason=reason, winner=winner)

    def _allocated(self, job: LiveJob, action: Start) -> log.Event | None:
        places = adapter.node_allocations_of(action.allocation, self.domain.ledger.nodes)
        event = log.JobAllocated(job_id=job.job_id, places=places, reason=action.reason)
        if job.phase in ACTIVE:
            self._pending.deferred[job.job_id] = event
            return None
        return event

    # ------------------------------------------------------------------ times

    def _watch(self, rows: list[int], now_s: float) -> None:
        rows = [row for row in rows if row in self.domain.jobs]
        if not rows or not self.domain.traits.has_thresholds:
            return
        for row, change_s in zip(rows, self.domain.watch(rows, now_s), strict=True):
            if EDGE_S < change_s < math.inf:
                self._timers.watch(row, now_s + change_s)

    # ------------------------------------------------------------------ in step

    def _reconcile(self, job: LiveJob, now_s: float) -> None:
        # Rule 1 of the module: what others wrote meanwhile is looked at when the planner reads its own entry.
        if self._pending.is_ahead(job.job_id):
            return
        row, domain = self._rows.get(job.job_id, -1), self.domain
        is_there = row in domain.jobs
        is_running = is_there and row in domain.running
        if job.job_id in self._pending.deferred and adapter.may_wait(self._state, job, self._set_aside):
            return
        self._pending.deferred.pop(job.job_id, None)
        if adapter.is_holding(job):
            if not is_running:
                self._spoil()
            elif job.phase is Phase.STOPPING:
                domain.book.leave_alone(row, math.inf)  # its processes go already: nobody is helped by preempting it
            return
        if is_running and job.is_over:
            domain.finish(row)
        elif is_running:
            domain.lose(row, now_s)
        if row >= 0:
            self._timers.end_turn([row])
        if adapter.may_wait(self._state, job, self._set_aside):
            if row not in domain.jobs:
                self._restore(job, now_s)
        elif row in domain.jobs:
            domain.withdraw(row)
        if row in domain.jobs and is_running:
            self._watch([row], now_s)
        if job.is_over and row >= 0:
            del self._rows[job.job_id]
        self._touch()

    def _learn(self, job: LiveJob) -> None:
        """A job's profile matters for its next place, which it may be waiting for already."""
        row = self.row(job.job_id)
        if row >= 0:
            self.domain.know(row, self._job_of(job))
            self._touch()

    def _job_of(self, job: LiveJob) -> Job:
        return adapter.job_of(job, asks_users=self._asks_users)

    def _really_started(self, job: LiveJob, now_s: float) -> None:
        """Its service counts from now on: until now it waited for others to go."""
        row = self._rows[job.job_id]
        self.domain.begin(row, now_s, delay_s=self._resume_s(job))
        until_s = self._alone_until_s(job, now_s)
        if self.domain.book.leave_alone(row, until_s):
            self._timers.set(Timer.MIN_RUN, until_s)
        self._timers.end_turn([row])
        self._watch([row], now_s)

    def _resume_s(self, job: LiveJob) -> float:
        return self._rules.preemption_cost.preemption_s(adapter.job_of(job)) if job.start > 1 else 0.0

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
        estimator = self._times or adapter.TIME_LIMITS
        figures = adapter.figures_of(job, seen, now_s, estimator=estimator, share_level=share_level)
        if adapter.is_holding(job):
            until_s = self._alone_until_s(job, figures.since_s) if job.phase in ACTIVE else -math.inf
            if job.phase is Phase.STOPPING:
                until_s = math.inf  # its processes go already: nobody is helped by preempting it
            allocation = adapter.allocation_of(job.places, self._node_index)
            figures = replace(figures, allocation=allocation, left_alone_until_s=until_s)
        self.domain.restore(row, seen, figures)
        if figures.allocation is not None:
            if figures.left_alone_until_s > now_s:
                self._timers.set(Timer.MIN_RUN, figures.left_alone_until_s)
            return row
        self._timers.set(Timer.RESERVE, figures.since_s + self._rules.reserve_after_s)
        if self.domain.traits.is_ageing or job.start:
            self._watch([row], now_s)
        return row

    # ------------------------------------------------------------------ nodes

    def _is_other_size(self, name: str) -> bool:
        """Whether the ledger does not know a node as it is now. Memory may differ by an eighth: it always moves."""
        at = self._node_index.get(name)
        if at is None:
            return True
        promised = adapter.booked(self._state).get(name, adapter.NOTHING)
        now, then = self._node_of(name, promised), self.domain.ledger.nodes[at]
        if replace(now, memory_bytes=then.memory_bytes) != then:
            return True
        return abs(now.memory_bytes - then.memory_bytes) > then.memory_bytes / 8

    def _node_of(self, name: str, promised: adapter.Booked = adapter.NOTHING) -> Node:
        aggregating = self._state.aggregation.cores_of(name)
        is_apart = name in self._set_aside
        return adapter.node_of(self._state.nodes[name], promised, aggregating=aggregating, is_set_aside=is_apart)

    def _resize(self) -> None:
        nodes = self._state.nodes
        taking = frozenset(name for name, node in nodes.items() if node.is_taking)
        if taking != self._taking:
            self._taking = taking
            there = (self._node_of(one.name) for one in self.domain.ledger.nodes if one.name in taking)
            self.domain.resize(tuple(there))
            self._touch()

    def _close(self, now_s: float) -> None:
        """Tells the domain which nodes are reserved, and notes when to look again."""
        windows = windows_of(self._state, self._node_index, now_s)
        self.domain.close(windows)
        for window in windows:
            self._timers.set(Timer.MAINTENANCE, window.end_s + 2 * EDGE_S)  # a wake may come so much early
        self._touch()

    def _build(self, now_s: float) -> None:
        """A new domain from what the state says, in the order of the old one."""
        self._is_stale = False
        state, woken_by = self._state, self._woken_by
        order = self._order()
        levels = self._levels()
        promised = adapter.booked(state)
        nodes = [self._node_of(name, promised.get(name, adapter.NOTHING)) for name in state.nodes]
        self._node_index = {node.name: at for at, node in enumerate(nodes)}
        self._asks_users = any(node.users for node in nodes)
        self._rows.clear()
        self._ids.clear()
        self._next_row = 0
        self._timers.clear()
        self._pending.clear()
        # The timers were cleared, so the comparison of accounts has to be noted again.
        self._compare_s = -math.inf
        self.domain = Domain(
            "", tuple(nodes), self._rules, JobTable(max(64, len(order))), is_counting_limits=True,
            fair_share=self._fair_share, history=self._history,
        )  # fmt: skip
        self._close(now_s)
        # None makes the `_resize` below report the nodes to the new ledger in any case.
        self._taking = None
        started: list[tuple[tuple[float, ...], int]] = []
        for job in order:
            if adapter.is_holding(job):
                row = self._restore(job, now_s, levels.get(job.job_id))
                started.append(((float(len(started)),), row))
            elif adapter.may_wait(self._state, job, self._set_aside):
                self._restore(job, now_s)
        self.domain.settle(started, [], now_s)
        self._watch([row for _, row in started], now_s)
        self._resize()
        self._woken_by = woken_by or self._heard

    def _levels(self) -> dict[str, float]:
        """With which level of its account each running job of the old domain was started."""
        if self._fair_share is None or not self._rows:
            return {}
        return {self._ids[row]: float(self.domain.table.share_level[row]) for row in self.domain.running}

    def _order(self) -> list[LiveJob]:
        jobs = [job for job in self._state.live_jobs() if not job.spec.colocate]
        if not self._rows:
            return sorted(jobs, key=lambda job: (job.since_s, job.sequence))
        position = self.domain.table.position
        last = math.inf
        places = {job.job_id: float(position[self._rows[job.job_id]]) for job in jobs if job.job_id in self._rows}
        return sorted(jobs, key=lambda job: (places.get(job.job_id, last), job.sequence))
