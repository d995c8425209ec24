"""The planner: it keeps the cycle's domains in step with the log, and turns the cycle's actions into events. PURE.

How it works
  The domains (domains.py), one a partition, are the plan: who holds what once all that was decided has come about. The
  log is what is so. Between the two lies the time that processes take to go, and three rules keep them together:

  * What the cycle decided stands in its domain at once, and in the log when the scheduler process has written it. Until
    it reads its own entry again, what others wrote about that job meanwhile is left for that moment (pending.py).
  * A job that is preempted and placed elsewhere while its processes still go has its new place in its domain only; it
    is written (`JobAllocated`) once the job waits again (pending.py).
  * Whatever else is not as the domains have it is put right by `_reconcile`, job by job, or by building them anew
    before they are asked next (nodes that come, or change in size): once, however many nodes come at a time.

  Domains that were built anew have the figures of the log, and the queues in the order of the old ones where there are
  some; after a restart, by how long jobs wait. What the policies have learned belongs to the planner, which gives it to
  each domain: it follows from the jobs that ended, and outlives a restart as far as the log still knows these.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain, Rules, learn_start, lenders_to
from farside.scheduler.fair_share import FairShare
from farside.scheduler.manager.decider import adapter
from farside.scheduler.manager.decider.domains import Domains
from farside.scheduler.manager.decider.past_use import (
    fair_share_of,
    has_run,
    has_told,
    histories_of,
    service_gpu_s,
    start_of,
)
from farside.scheduler.manager.decider.pending import Pending
from farside.scheduler.manager.decider.timers import NO_ROW, Timers
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.draft import Draft, Timer, by_entry, by_timer
from farside.scheduler.manager.model.maintenance import windows_of
from farside.scheduler.manager.model.preemption_times import MeasuredCost
from farside.scheduler.manager.model.record import ACTIVE, LiveJob, Phase
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.order.policy import EDGE_S
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.state import Job, Preempt, Promote, Start

# Rows of jobs that are over stay in the table until there are so many more than of others.
SPARE_ROWS = 10_000

_NodeFacts = log.NodeJoined | log.NodeChanged | log.SwapOrdered
_NodeEvents = (
    _NodeFacts | log.NodeLost | log.DrainRequested | log.UndrainRequested | log.PowerChanged | log.LendingOrdered
)
# Entries with which a donor takes memory back for a job, or may lend it again.
_RecallEvents = log.MemoryRecalled | log.JobAllocated | log.AllocationReleased | log.JobRequeued | log.JobEnded


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
        partitions: Partitions = NO_PARTITIONS,
    ) -> None:
        """``set_aside``: names of nodes whose GPUs the cycle gives to nobody. ``times``: it knows no job yet."""
        self._set_aside = set_aside
        self._times = times
        self._rules = replace(rules, preemption_cost=MeasuredCost(preemption_times=state.preemption_times))
        self._state = state
        self._domains = Domains(state, partitions, set_aside)
        self.spread_of = self._domains.spread_of  # of a job that has an allocation
        self._pending = Pending()
        self._timers = Timers()
        self._heard = by_entry(state.seq)  # the newest entry, as a cause
        self._woken_by = self._heard  # what the next cycle is run for, the newest of all; empty: there is no reason to
        self._is_stale = False  # domains are built anew before they are asked again; until then none is kept in step
        self._fair_shares: dict[str, FairShare] = {}  # each with all that accounts have used, in whatever partition
        self._compare_s = -math.inf  # when accounts will be compared; noted in `_timers`
        self._lent_version = -1  # of the memory that is lent, when all domains had looked at it
        self._histories = histories_of(rules, state, times, partitions)
        self._build(now_s)

    # ------------------------------------------------------------------ what happened

    def hear(self, entry: log.Entry, touched: Iterable[str]) -> None:
        """Brings the domains in step with one entry that the state has just been moved on by."""
        event, self._heard = entry.event, by_entry(entry.seq)
        # Co-located jobs are not the cycle's (colocated.py).
        touched = [job_id for job_id in touched if not self._state.jobs[job_id].spec.colocate]
        if isinstance(event, log.JobSubmitted) and self._times is not None:
            for job_id in touched:
                self._times.predicted_gpu_s(self._job_of(self._state.jobs[job_id]), entry.at_s)
        if isinstance(event, log.JobEnded | log.JobRequeued) and touched:
            self._learn_of_start(self._state.jobs[event.job_id], entry.seq)
        if isinstance(event, log.JobEnded) and touched:
            self._learn_of_end(self._state.jobs[event.job_id], entry.at_s)
        self._pending.arrive(event)
        if isinstance(event, _NodeFacts) and not self._is_stale and self._domains.is_other_size(event.node):
            self.spoil()
        if isinstance(event, log.PoolSized) and self._domains.is_any_of_other_size():
            self.spoil()
        if touched and not self._is_stale and self._domains.are_other_for(touched):
            self.spoil()
        if self._is_stale:
            return
        # One that is over, of a partition that is gone, is in no domain.
        touched = [job_id for job_id in touched if self._domains.name_of(self._state.jobs[job_id]) in self.domains]
        if isinstance(event, _NodeEvents) and self._domains.resize():
            self._touch()
        if isinstance(event, _NodeEvents) and self._domains.lend(event.node):
            self._touch()
        if isinstance(event, _RecallEvents) and self._domains.lend_recalled():
            self._touch()
        if isinstance(event, log.NodesReserved | log.ReservationCancelled):
            self._close(entry.at_s)
        for job_id in touched:
            if isinstance(event, log.TaskProfiled | log.LimitExtended):
                self._learn(self._state.jobs[job_id])
            self._reconcile(self._state.jobs[job_id], entry.at_s)
        if isinstance(event, log.JobStarted) and touched and not self._is_stale:
            self._really_started(self._state.jobs[event.job_id], entry.at_s)

    def _learn_of_start(self, job: LiveJob, ended_at: int) -> None:
        """Learn from the start that ended with this entry, if it reported how fast it was."""
        last = job.stints[-1] if job.stints else None
        if last is None or last.ended_at != ended_at or not has_told(last) or not self._rules.placement.is_learning:
            return
        name = self._domains.name_of(job)
        if name in self.domains:
            learn_start(self.domains[name], start_of(job, last))
        else:
            self._histories[name].add_start(start_of(job, last))

    def _learn_of_end(self, job: LiveJob, now_s: float) -> None:
        """What is learned does not depend on the domain: another may be built by then."""
        seen, expected_gpu_s = self._job_of(job), math.nan
        if not has_run(job):
            if self._times is not None:
                self._times.drop(seen.sequence)
            return
        if self._times is not None:
            expected_gpu_s = self._times.predicted_gpu_s(seen, now_s)
        if self._domains.name_of(job) in self.domains:
            self.domain_of(job).learn(service_gpu_s(job), expected_gpu_s)
        else:
            self._histories[self._domains.name_of(job)].add(service_gpu_s(job), expected_gpu_s)
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
                left_s = self._times.remaining_s(self._job_of(job), job.spent_s)
                self.domain_of(job).expect(row, predicted_gpu_s=gpu_s, remaining_s=left_s)
        self._touch()

    def domain_of(self, job: LiveJob) -> Domain:
        """The domain that a job belongs to; it need not be there."""
        return self._domains.of(job)

    @property
    def domains(self) -> Mapping[str, Domain]:
        """The domains by the names of their partitions, at least one."""
        return self._domains.by_name

    def row(self, job_id: str) -> int:
        """The row of a job in its domain; -1: it is not there."""
        row = self._domains.rows.get(job_id, -1)
        return row if row >= 0 and row in self.domain_of(self._state.jobs[job_id]).jobs else -1

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
        return self._is_stale or (self._domains.is_sparse(SPARE_ROWS) and not self._pending)

    def plan(self, now_s: float) -> tuple[Draft, ...]:
        """Runs cycles if there is reason to. The domains have what they answer at once; the log must get it next."""
        if self._is_to_be_built():
            self._build(now_s)
        self.wake_up(now_s)
        drafts = [Draft(event=event, cause=self._heard) for event in self._pending.take_ready(self._state)]
        if self._woken_by:
            cause, self._woken_by = self._woken_by, ""
            drafts += [Draft(event=event, cause=cause) for event in self._cycles(now_s)]
        self._pending.send(draft.event for draft in drafts)
        return tuple(drafts)

    def _touch(self) -> None:
        """What was heard last may let jobs start, or lose their GPUs: the cycle is run."""
        self._woken_by = self._heard

    def spoil(self) -> None:
        """The domains are not as the log is, and are built anew before they are asked next."""
        self._is_stale = True
        self._touch()

    def wake_up(self, now_s: float) -> None:
        """Notes what time alone has changed by now; the cycle that follows goes by that."""
        for timer, row in self._timers.take_due(now_s):
            if row == NO_ROW:
                for domain in self.domains.values():
                    domain.touch()
            elif row in self._domains.ids and row in (domain := self.domain_of(self._domains.job_at(row))).jobs:
                domain.cross(row, now_s)
                self._watch([row], now_s, is_told=True)
            else:
                continue
            self._woken_by = self._woken_by or by_timer(timer)

    def _cycles(self, now_s: float) -> list[log.Event]:
        domains = self.domains.values()
        # What was given back in one may be what a quota, or what donors lend, lets start in another.
        is_other = self._lent_version != self._domains.lent.version
        if is_other or (self._rules.tenancy is not None and len(domains) > 1):
            for domain in domains:
                domain.touch()
        events = [event for domain in domains for event in self._cycle(domain, now_s)]
        self._lent_version = self._domains.lent.version
        # What accounts hold counts in all partitions alike from now on.
        for domain in domains if self._fair_shares else ():
            domain.queue.compare_accounts(now_s)
            domain.queue.charge_accounts(domain.book.quota_use.gpus_together())
        return events

    def _cycle(self, domain: Domain, now_s: float) -> list[log.Event]:
        events: list[log.Event] = []
        changed: list[int] = []
        for action in run_cycle(domain, now_s, lenders_to(domain, self.domains.values())):
            job = self._domains.job_at(action.row)
            changed.append(action.row)
            event: log.Event | None
            if isinstance(action, Promote):
                event = log.JobPromoted(job_id=job.job_id, reason=action.reason)
            elif isinstance(action, Preempt):
                event = self._preempted(job, action)
                self._timers.set(Timer.RESERVE, now_s + self._rules.reserve_after_s)
            else:
                event = self._allocated(job, action)
                held = domain.running.get(action.row)
                if held is not None and now_s < held.until_s < math.inf:
                    self._timers.set(Timer.MIN_RUN, held.until_s)
            events += [event] if event is not None else []
        self._timers.end_turn(changed)
        self._watch(list(dict.fromkeys(changed)), now_s)
        share = domain.queue.fair_share
        if share is not None and share.due_s > self._compare_s and len(domain.waiting):
            self._compare_s = share.due_s
            self._timers.set(Timer.FAIR_SHARE, self._compare_s)
        return events

    def _preempted(self, job: LiveJob, action: Preempt) -> log.Event | None:
        if self._pending.deferred.pop(job.job_id, None) is not None:
            return None  # nobody knows of that allocation
        ids = self._domains.ids
        reason = f"{action.reason}: job {ids[action.winner]}" if action.winner >= 0 else action.reason
        if job.phase not in ACTIVE:  # it has a place and has not started; it may have got it in this very cycle
            return log.AllocationReleased(job_id=job.job_id, reason=reason)
        winner = ids.get(action.winner, "")
        cause = log.StopCause.PREEMPTED
        return log.JobStopping(job_id=job.job_id, start=job.start, cause=cause, reason=reason, winner=winner)

    def _allocated(self, job: LiveJob, action: Start) -> log.Event | None:
        places = adapter.node_allocations_of(action.allocation, self.domains[action.host].ledger.nodes)
        host = action.host if action.host != self._domains.name_of(job) else ""
        event = log.JobAllocated(job_id=job.job_id, places=places, reason=action.reason, host=host)
        if job.phase in ACTIVE:
            self._pending.deferred[job.job_id] = event
            return None
        return event

    # ------------------------------------------------------------------ times

    def _watch(self, rows: list[int], now_s: float, *, is_told: bool = False) -> None:
        """Set timers for when these jobs come to thresholds. ``is_told``: the cycle runs for what they have reached."""
        for domain in self.domains.values():
            own = [row for row in rows if row in domain.jobs]
            if not own or not domain.traits.has_thresholds:
                continue
            for row, change_s in zip(own, domain.watch(own, now_s), strict=True):
                if now_s + EDGE_S < now_s + change_s < math.inf:
                    self._timers.watch(row, now_s + change_s)
                elif change_s < math.inf and domain.queue.has(row) and not is_told:
                    # At another time than this cycle's, by which readers of the log tell cycles apart.
                    self._timers.watch(row, now_s + 2 * EDGE_S)

    # ------------------------------------------------------------------ in step

    def _reconcile(self, job: LiveJob, now_s: float) -> None:
        # Rule 1 of the module: what others wrote meanwhile is looked at when the planner reads its own entry.
        if self._pending.is_ahead(job.job_id):
            return
        row, domain = self._domains.rows.get(job.job_id, -1), self.domain_of(job)
        holder = self._domains.holder_of(row)
        if job.job_id in self._pending.deferred and adapter.may_wait(self._state, job, self._set_aside):
            return
        self._pending.deferred.pop(job.job_id, None)
        if adapter.is_holding(job):
            if holder is None:
                self.spoil()
            elif job.phase is Phase.STOPPING:
                holder.leave_alone(row, math.inf)  # its processes go already: nobody is helped by preempting it
            return
        if holder is not None and job.is_over:
            holder.finish(row)
        elif holder is not None:
            holder.lose(row, now_s)
        if row >= 0:
            self._timers.end_turn([row])
        if adapter.may_wait(self._state, job, self._set_aside):
            if row not in domain.jobs:
                self._restore(job, now_s)
            else:
                # Also one that left its GPUs in an earlier plan: its timers were dropped a moment ago.
                self._watch([row], now_s)
        elif row in domain.jobs:
            domain.withdraw(row)
        if job.is_over and row >= 0:
            del self._domains.rows[job.job_id]
        self._touch()

    def _learn(self, job: LiveJob) -> None:
        """A job's profile matters for its next place, which it may be waiting for already."""
        row = self.row(job.job_id)
        if row >= 0:
            domain, seen = self.domain_of(job), self._job_of(job)
            domain.know(row, seen)
            if job.extended_s and row in domain.running:
                domain.expect(row, predicted_gpu_s=math.nan, remaining_s=job.limit_s)
            self._touch()

    def _job_of(self, job: LiveJob) -> Job:
        return adapter.job_of(job, asks_users=self._domains.asks_users)

    def _really_started(self, job: LiveJob, now_s: float) -> None:
        """Its service counts from now on: until now it waited for others to go."""
        row, domain = self._domains.rows[job.job_id], self.domain_of(job)
        domain.begin(row, now_s, delay_s=self._resume_s(job))
        until_s = self._alone_until_s(job, now_s)
        if self._domains.host_of(job).leave_alone(row, until_s):
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
        row, domain = self._domains.add(job), self.domain_of(job)
        seen = self._job_of(job)
        estimator = self._times or adapter.TIME_LIMITS
        figures = adapter.figures_of(job, seen, now_s, estimator=estimator, share_level=share_level)
        if adapter.is_holding(job):
            until_s = self._alone_until_s(job, figures.since_s) if job.phase in ACTIVE else -math.inf
            if job.phase is Phase.STOPPING:
                until_s = math.inf  # its processes go already: nobody is helped by preempting it
            allocation = adapter.allocation_of(job.places, self._domains.index)
            figures = replace(figures, allocation=allocation, left_alone_until_s=until_s)
        domain.restore(row, seen, figures, self._domains.host_of(job))
        if figures.allocation is not None:
            if figures.left_alone_until_s > now_s:
                self._timers.set(Timer.MIN_RUN, figures.left_alone_until_s)
            return row
        self._timers.set(Timer.RESERVE, figures.since_s + self._rules.reserve_after_s)
        if domain.traits.is_ageing or job.start:
            self._watch([row], now_s)
        return row

    # ------------------------------------------------------------------ nodes

    def _close(self, now_s: float) -> None:
        """Tells the domain which nodes are reserved, and notes when to look again."""
        for domain, index in self._domains.spreads():
            windows = windows_of(self._state, index, now_s)
            domain.close(windows)
            for window in windows:
                self._timers.set(Timer.MAINTENANCE, window.end_s + 2 * EDGE_S)  # a wake may come so much early
        self._touch()

    def _build(self, now_s: float) -> None:
        """New domains from what the state says, in the order of the old ones."""
        self._is_stale = False
        woken_by = self._woken_by
        order = self._domains.jobs_in_order()
        levels = self._domains.share_levels() if self._fair_shares else {}
        self._timers.clear()
        self._pending.clear()
        # The timers were cleared, so the comparison of accounts has to be noted again.
        self._compare_s = -math.inf
        self._domains.build(self._rules, self._histories, lambda name: self._fair_share(name, now_s), len(order))
        self._close(now_s)
        started: dict[str, list[tuple[tuple[float, ...], int]]] = {name: [] for name in self.domains}
        for job in order:
            if adapter.is_holding(job):
                row = self._restore(job, now_s, levels.get(job.job_id))
                there = started[self._domains.name_of(job)]
                there.append(((float(len(there)),), row))
            elif adapter.may_wait(self._state, job, self._set_aside):
                self._restore(job, now_s)
        for name, domain in self.domains.items():
            domain.settle(started[name], [], now_s)
            self._watch([row for _, row in started[name]], now_s)
        self._domains.resize()
        self._woken_by = woken_by or self._heard

    def _fair_share(self, name: str, now_s: float) -> FairShare | None:
        """What a domain compares accounts by: it outlives the domain."""
        if name not in self._fair_shares:
            share = fair_share_of(self._rules.tenancy, self._state, now_s)
            if share is not None:
                self._fair_shares[name] = share
        return self._fair_shares.get(name)
