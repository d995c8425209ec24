"""The decider: it takes entries of the log and returns the next decisions. PURE.

Its owner reads entries and gives each to `hear`; asks `next_events`; writes what comes out into the log, reads that
again, and so on until nothing comes. Each answer rests on a state that has all earlier ones in it.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping

from msgspec.structs import replace

from farside.scheduler.admission.idle_gpus import NO_IDLE_RULES, IdleRules
from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.domain import Domain, Rules, lenders_to
from farside.scheduler.explain import explain
from farside.scheduler.manager.aggregation.decide import AggregationRules
from farside.scheduler.manager.aggregation.decide import next_events as aggregation_events
from farside.scheduler.manager.aggregation.decide import next_wake_s as aggregation_wake_s
from farside.scheduler.manager.aggregation.show import explain as aggregation_lines
from farside.scheduler.manager.colocation.outlook import NO_RULES, ColocationRules
from farside.scheduler.manager.decider import colocated
from farside.scheduler.manager.decider.adapter import (
    DEFAULT_RULES,
    awaited_aggregators,
    is_ready,
    outlook_of,
    partition_of,
)
from farside.scheduler.manager.decider.expectation import expected_lines
from farside.scheduler.manager.decider.idle_jobs import idle_lines
from farside.scheduler.manager.decider.launch import launches
from farside.scheduler.manager.decider.next_step import consequences, limit_at_s
from farside.scheduler.manager.decider.placement_reason import packlimits, why_there
from farside.scheduler.manager.decider.planner import Planner
from farside.scheduler.manager.decider.recall import awaited_recalls, next_end_s, recall_lines
from farside.scheduler.manager.decider.unavailable_nodes import lender_lines, out_of_service, partition_lines
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.draft import Draft, Timer, by_entry, by_timer
from farside.scheduler.manager.model.event import Entry, Event, JobAllocated, JobStarted, NodeClosed, PoolSized
from farside.scheduler.manager.model.maintenance import late_allocations
from farside.scheduler.manager.model.record import LiveJob, Phase
from farside.scheduler.manager.model.state import LiveState, member_nodes
from farside.scheduler.manager.view.view import Packlimit
from farside.scheduler.order.policy import EDGE_S
from farside.scheduler.predict.gpu_time_fit import Fitted
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.start_estimate import StartEstimate, estimate_start

# Entries after which shared aggregation is looked at.
_Aggregates = (
    log.ModelDeclared | log.ChunksMoved | log.AggregationMeasured | log.ChunksAssigned | PoolSized
    | log.JobSubmitted | JobStarted | log.JobRequeued | log.JobEnded | log.ServiceChanged
    | log.NodeJoined | log.NodeChanged | log.NodeLost | log.DrainRequested | log.UndrainRequested | log.PowerChanged
)  # fmt: skip
# Entries after which groups of co-located jobs are looked at.
_Groups = (
    log.GroupsPlanned | log.TaskTimed | log.JobSubmitted | log.CancelRequested | log.HoldRequested
    | log.ReleaseRequested | JobAllocated | log.AllocationReleased | JobStarted | log.JobStopping | log.JobRequeued
    | log.JobEnded | log.TaskChanged | log.ServiceChanged | log.NodeJoined | log.NodeChanged | log.NodeLost
    | log.DrainRequested | log.UndrainRequested | log.PowerChanged | NodeClosed | log.NodesReserved
    | log.ReservationCancelled
)  # fmt: skip
# So many of the jobs that a job waits for are named to who asks.
AFTER_SHOWN = 20


class Decider:
    """Decides for one state, from the first entry of the log or from wherever ``state`` is."""

    def __init__(
        self,
        rules: Rules,
        state: LiveState,
        now_s: float,
        *,
        aggregation: AggregationRules = DEFAULT_RULES,
        colocation: ColocationRules = NO_RULES,
        times: LearnedTimes | None = None,
        partitions: Partitions = NO_PARTITIONS,
        idle: IdleRules = NO_IDLE_RULES,
        recall_s: float = 0.0,
    ) -> None:
        """``times``: for policies that go by how long jobs will run; it knows no job of this state yet. ``recall_s``:
        borrowers get so long to move pages out of memory that a job needs before it starts; 0: no job waits for that.
        """
        self.state = state
        self.times = times
        self._colocation = colocation
        self._partitions, self._idle, self._recall_s = partitions, idle, recall_s
        self._recalls_end_s = math.inf  # when a job starts that has waited long enough for memory
        self._reserved_until_s = math.inf  # when a reservation is over, or a co-located job has waited too long
        self._is_grouping = True  # groups of co-located jobs are looked at
        self._aggregation = aggregation
        self._aggregates_s = -math.inf  # when shared aggregation is looked at; infinite: when something has happened
        self._planner = Planner(rules, state, now_s, set_aside=colocation.nodes, times=times, partitions=partitions)
        # By job the entry that touched it last, as a cause: of all that something may follow for, and of those that
        # got a place since the last look at who can start.
        self._touched = dict.fromkeys(state.unfinished, by_entry(state.seq))
        self._just_allocated: dict[str, str] = {}
        # By job why it does not start though it has its GPUs; and those of them that nobody has been told yet.
        self._waits: dict[str, str] = {}
        self._untold_waits: dict[str, str] = {}
        # A heap by time. An entry whose job has ended stays until its time: the next step of that job is then none.
        self._limits: list[tuple[float, str]] = []
        for job in state.live_jobs():
            self._note_limit(job)

    @property
    def domain(self) -> Domain:
        """The domain of the cycle; of the first partition where there are some."""
        return next(iter(self._planner.domains.values()))

    @property
    def domains(self) -> Mapping[str, Domain]:
        """The domains by the names of their partitions."""
        return self._planner.domains

    def domain_of(self, job_id: str) -> Domain:
        """The domain of a job that is known and not over."""
        return self._planner.domain_of(self.state.jobs[job_id])

    def hear(self, entry: Entry) -> None:
        """Moves on by the next entry of the log."""
        touched = apply(self.state, entry)
        shared = self.state.aggregation
        if isinstance(entry.event, _Aggregates) and (shared.wanting or shared.pool):
            self._aggregates_s = -math.inf
            # Whether they may start may depend on it.
            waiting = (job_id for job_id in shared.wanting if self.state.jobs[job_id].phase is Phase.WAITING)
            touched = tuple(dict.fromkeys((*touched, *waiting)))
        self._planner.hear(entry, touched)
        grouped = self.state.colocation
        if (grouped.jobs or grouped.groups) and isinstance(entry.event, _Groups):
            self._is_grouping = True
        cause = by_entry(entry.seq)
        self._touched.update(dict.fromkeys(touched, cause))
        if isinstance(entry.event, JobAllocated):
            self._just_allocated[entry.event.job_id] = cause
        if isinstance(entry.event, JobStarted | log.LimitExtended) and entry.event.job_id in self.state.jobs:
            self._note_limit(self.state.jobs[entry.event.job_id])

    def _note_limit(self, job: LiveJob) -> None:
        at_s = limit_at_s(job)
        if at_s is not None:
            heapq.heappush(self._limits, (at_s, job.job_id))

    def next_events(self, now_s: float, *, may_plan: bool = True) -> tuple[Draft, ...]:
        """The next events for the log, each with its cause; none if there is nothing to decide.

        ``may_plan``: False: nothing, too, when the cycle is to be run first, which may take long.
        """
        while self._limits and self._limits[0][0] <= now_s:
            self._touched[heapq.heappop(self._limits)[1]] = by_timer(Timer.TIME_LIMIT)
        # Without those that were over and forgotten meanwhile.
        touched = {job_id: cause for job_id, cause in self._touched.items() if job_id in self.state.jobs}
        self._touched = {}
        followed = self._drafts(consequences(self.state, touched, now_s, self._idle), touched)
        # One kind at a time: each later kind rests on a state that has the earlier events in it.
        followed = followed or self._drafts(late_allocations(self.state, now_s), {})
        followed = followed or self._drafts(self._closings(), {})
        followed = followed or self._aggregate(now_s)
        if followed or (not may_plan and self._planner.is_due(now_s)):
            return followed
        # Starts come after the cycle: they are possible only for jobs that have an allocation in the log.
        return self._planner.plan(now_s) or self._group(now_s) or self._launches(now_s)

    def _group(self, now_s: float) -> tuple[Draft, ...]:
        """What follows for co-located jobs."""
        if not self._is_grouping and self._reserved_until_s > now_s:
            return ()
        self._is_grouping = False
        outlook = colocated.outlook_of(self.state, now_s, self._colocation)
        self._reserved_until_s = colocated.next_wake_s(self.state, now_s, self._colocation)
        found = self._drafts(colocated.next_events(self.state, outlook), {})
        self._is_grouping = bool(found)
        return found

    def _aggregate(self, now_s: float) -> tuple[Draft, ...]:
        """What follows for shared aggregation."""
        if self._aggregates_s > now_s:
            return ()
        outlook = outlook_of(self.state, now_s, self._aggregation, set_aside=self._colocation.nodes)
        found = self._drafts(aggregation_events(outlook), {})
        if not found:
            self._aggregates_s = max(aggregation_wake_s(outlook), now_s + EDGE_S)
        return found

    def _drafts(self, events: Iterable[Event], causes: Mapping[str, str]) -> tuple[Draft, ...]:
        """Drafts of events that follow from the newest entry, or from what is among the ``causes`` by job."""
        newest = by_entry(self.state.seq)
        return tuple(Draft(event=event, cause=causes.get(getattr(event, "job_id", ""), newest)) for event in events)

    def _launches(self, now_s: float) -> tuple[Draft, ...]:
        """The starts that are possible: because the job got its place just now, or because others have left it."""
        placed, self._just_allocated = self._just_allocated, {}
        waits: dict[str, str] = {}
        starts = launches(self.state, self.domain.rules.placement, waits, now_s=now_s, move_s=self._recall_s)
        found = self._drafts(map(self._with_spread, starts), placed)
        self._untold_waits |= {job_id: why for job_id, why in waits.items() if self._waits.get(job_id) != why}
        self._waits = waits
        self._recalls_end_s = next_end_s(self.state.jobs, self.state.allocated, now_s)
        return found

    def _with_spread(self, event: Event) -> Event:
        if not isinstance(event, JobStarted):
            return event
        return replace(event, spread=self._planner.spread_of(self.state.jobs[event.job_id]))

    def packlimits(self) -> tuple[Packlimit, ...]:
        """The limit in force in each partition; none where places do not go by skew."""
        return packlimits({name: domain.history for name, domain in self.domains.items()})

    def packlimit_of(self, job_id: str) -> Packlimit | None:
        """That of a job's partition; None: its place does not go by skew."""
        name = partition_of(self.state.jobs[job_id], self._partitions)
        return next((one for one in self.packlimits() if one.partition == name), None)

    def take_waits(self) -> dict[str, str]:
        """By job why it does not start though it has its GPUs: what was decided since this was asked last."""
        found, self._untold_waits = self._untold_waits, {}
        return found

    def _closings(self) -> tuple[Event, ...]:
        """Nodes that are to go off: whoever was about to start there has lost the place by now, and nobody gets one."""
        closing = ((name, self.state.nodes[name].power) for name in self.state.closing)
        return tuple(NodeClosed(node=name, number=power.drain_number) for name, power in closing if power is not None)

    def next_wake_s(self) -> float:
        """When to ask again though nothing has happened; infinite: never."""
        limit_s = self._limits[0][0] if self._limits else math.inf
        timers = (self._planner.next_wake_s(), limit_s, self._aggregates_s, self._reserved_until_s, self._recalls_end_s)
        return min(timers)

    def foresee(self, job_id: str, now_s: float) -> StartEstimate | None:
        """When a job is expected to start, by the time limits of those before it.

        None: it doesn't wait, or for other jobs and not for GPUs, or no cycle has looked at it yet.
        """
        job = self.state.jobs.get(job_id)
        row = self._planner.row(job_id)
        if job is None or job.phase is not Phase.WAITING or row < 0:
            return None
        domain = self._planner.domain_of(job)
        return estimate_start(domain, row, now_s) if row in domain.waiting else None

    def promised_to(self, job_id: str) -> str:
        """The job that is to have the GPUs of one that runs once that ends; empty: none has waited long enough."""
        row = self._planner.row(job_id)
        for domain in self.domains.values():
            plan = domain.reservation
            if plan is not None and row in plan.awaited and plan.row in domain.jobs:
                return domain.jobs[plan.row].job_id
        return ""

    def take(self, fitted: Fitted) -> None:
        """Use a model that was fitted to a lesson of ``times``."""
        if self.times is not None:
            self._planner.expect(self.times.take(fitted))

    def why(self, job_id: str, now_s: float, clock: Callable[[float], str]) -> tuple[str, ...]:
        """Lines that say why a job waits or where it runs, and what its place goes by; empty: there is no such job."""
        job = self.state.jobs.get(job_id)
        if job is None:
            return ()
        domain = self.domains.get(partition_of(job, self._partitions), self.domain)
        there = why_there(job, domain.history, clock)
        idle = idle_lines(self.state, job, self._idle, clock)
        lines = (*self._why(job, now_s, clock), *idle, *colocated.group_lines(self.state, job), *there)
        return (*lines, *aggregation_lines(self.state.aggregation, job_id, member_nodes(self.state)))

    def _why(self, job: LiveJob, now_s: float, clock: Callable[[float], str]) -> tuple[str, ...]:
        if job.phase is Phase.WAITING and not is_ready(self.state, job):
            after, most = job.spec.after, AFTER_SHOWN
            more = f" and {len(after) - most:,} others" if len(after) > most else ""
            return (f"waits for the end of job {', '.join(after[:most])}{more}",)
        awaited = awaited_aggregators(self.state, job, self._colocation.nodes)
        if awaited and job.phase is Phase.WAITING:
            return (awaited, "it starts as soon as it can have them; `farside aggregation` says what has them")
        if job.spec.colocate and job.phase is Phase.WAITING:
            return colocated.explain(self.state, now_s, self._colocation, job)
        row = self._planner.row(job.job_id)
        if row >= 0 and job.phase is Phase.WAITING:
            domain = self._planner.domain_of(job)
            waits = (*explain(domain, row, now_s, clock), *expected_lines(self.times, job))
            name = partition_of(job, self._partitions)
            own = (node for node in self.state.nodes.values() if self._partitions.owner_of(node.name) == name)
            lent = lender_lines(domain, row, lenders_to(domain, self.domains.values()), now_s)
            return (*waits, *partition_lines(self.state, self._partitions, job), *lent, *out_of_service(own, job))
        if job.phase is Phase.ALLOCATED:
            nodes = ", ".join(f"{place.node} ({place.gpus})" if place.gpus else place.node for place in job.places)
            if awaited_recalls(job, now_s):
                return (f"has an allocation on {nodes}, and starts when it has its memory", *recall_lines(job, now_s))
            why = self._waits.get(job.job_id)
            then = "as soon as others have left it" if why is None else f"once one of these is over: {why}"
            return (f"has an allocation on {nodes}, and starts {then}", job.reason)
        if job.phase is Phase.HELD:
            reason = job.reason if job.reason.startswith("held") else f"held: {job.reason}"
            return (reason, f"`farside release {job.job_id}` lets it start")
        where = f" on {', '.join(job.nodes)}" if job.nodes else ""
        expected = () if job.is_over else expected_lines(self.times, job)
        return (f"{job.phase}{where}: {job.reason}", *recall_lines(job, now_s), *expected)
