"""Simulation: a virtual clock plays the trace's events, and the cycle decides in between. PURE.

How it works
  Everything at one instant is one event for the cycle. At an instant jobs end first, then jobs come, then thresholds
  are crossed, each in the order of submission, those too that are a rounding error later; then the cycle runs once for
  each domain that anything happened to. With a ``tick_s`` the cycle runs at the next multiple of it instead.

  A start's end is known at once and stands in the queue of events with the start's number; a preemption makes that
  number old, and the event is dropped when its time comes.

  Where resuming takes longer than a policy lets a job run, jobs may take GPUs from each other for ever. Now and then it
  is asked whether anybody has come any further; if not, the run is given up.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from farside.errors import FarsideError
from farside.scheduler.admission.history import History
from farside.scheduler.cycle import run_cycle
from farside.scheduler.domain import Domain, Rules, learn_start, lenders_to, list_anew
from farside.scheduler.lent_memory import LentMemory, lent_by
from farside.scheduler.order.policy import EDGE_S
from farside.scheduler.placement.measured_speed import MeasuredStart
from farside.scheduler.predict.estimator import Estimator
from farside.scheduler.predict.service import JobEnded
from farside.scheduler.quota_use import QuotaUse
from farside.scheduler.sim.closure import Closure, windows_at
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Action, Cluster, Preempt, Resize, Start
from farside.scheduler.table import JobTable

# After so many instants it is asked whether any job has made progress in them: a second of computing.
LOOK_AFTER = 10_000
# What stands for the start's number with a cycle at a tick.
TICK = 1

Observer = Callable[[float, Domain, tuple[Action, ...]], None]


class Kind(IntEnum):
    """Kind of event; at one instant the smaller number comes first."""

    END = 0
    SUBMIT = 1
    CROSS = 2
    RESIZE = 3
    CYCLE = 4
    MEASURED = 5
    CLOSE = 6
    LIST = 7


class Stuck(FarsideError):
    """Jobs preempt each other for ever, and none makes progress."""


@dataclass(slots=True)
class Run:
    """Run of a job. ``held_s``: time with GPUs; ``cost_s``: the part of it spent on preemptions."""

    start_s: float = math.nan
    end_s: float = math.nan
    preemptions: int = 0
    held_s: float = 0.0
    cost_s: float = 0.0


class Simulation:
    """Simulation of one trace under one set of rules. Jobs come when they are ready, ties by sequence.

    Args:
        cluster: Nodes by virtual cluster; each is a domain of its own.
        rules: By what all of them are scheduled.
        is_lending: Idle nodes of a virtual cluster where nobody waits are lent to the others' jobs.
        jobs: The trace. A job's virtual cluster must exist and be large enough: the reader of traces sees to that.
        estimator: Asked what to expect of each job that comes, and told of each that has ended, with the seconds that
            it ran, not counting what preemptions cost; None: nothing is expected.
        tick_s: The cycle runs only at multiples of this; 0: whenever something happens.
        pauses: Begin and end of times in which nobody decides. Jobs come and end then as ever; the cycle runs at the
            end, if anything has happened.
        is_in_whole_seconds: Thresholds are noticed whole seconds after a start, as the authors' simulator has it.
        resizes: Nodes that come and go; a virtual cluster starts with all that it ever has, unless told otherwise.
        closures: Planned maintenance.
        lent: What donors lend in the whole cluster; None: what its nodes lend, all the time.
        measured: Starts that a cluster has measured, each with its virtual cluster, by which the placement learns when
            they ended there; None: it learns from the speeds of the rules' slowdown.
        is_knowing_progress: A job that lost its GPUs is expected to need what it lacks; otherwise all of its time, as
            where it is started from the beginning as far as anybody knows.
        lists_made_s: When the lists of all queues are made anew, as by a scheduler process that has just started.
        observers: Called after each instant at which something happened in a domain, with what its cycle decided, if
            it ran and decided anything. One that needs the simulation itself is appended afterwards.
    """

    def __init__(
        self,
        cluster: Cluster,
        rules: Rules,
        jobs: Sequence[TraceJob],
        *,
        estimator: Estimator | None = None,
        is_lending: bool = False,
        tick_s: float = 0.0,
        pauses: Sequence[tuple[float, float]] = (),
        is_in_whole_seconds: bool = True,
        resizes: Sequence[Resize] = (),
        closures: Sequence[Closure] = (),
        lent: LentMemory | None = None,
        measured: Sequence[tuple[str, MeasuredStart]] | None = None,
        is_knowing_progress: bool = True,
        lists_made_s: Iterable[float] = (),
        observers: Iterable[Observer] = (),
    ) -> None:
        self.jobs = jobs
        self.runs = [Run() for _ in jobs]
        self.table = JobTable(len(jobs))
        nodes = [node for vc in cluster.virtual_clusters for node in vc.nodes]
        is_counting_more = any(min(node.cpus, node.memory_bytes) < math.inf for node in nodes)
        lent = lent or lent_by(nodes)
        together = list[QuotaUse]()  # accounts are the same in all virtual clusters, and so are their quotas
        self.domains: Mapping[str, Domain] = {
            vc.name: Domain(
                vc.name, vc.nodes, rules, self.table, is_counting_more=is_counting_more, lent=lent,
                is_counting_limits=bool(closures), lend_grace_s=vc.lend_grace_s,
                quota_use=QuotaUse(together) if rules.tenancy is not None else None,
                history=History(rules.order, rules.placement, is_measured=measured is not None),
            )
            for vc in cluster.virtual_clusters
        }  # fmt: skip
        self.events = 0
        self.left = len(jobs)  # jobs that have not ended
        self._rules = rules
        self._estimator = estimator
        self._tick_s, self._pauses = tick_s, tuple(pauses)
        self._is_in_whole_seconds, self._is_knowing_progress = is_in_whole_seconds, is_knowing_progress
        self.observers = list(observers)
        self._starts = [0] * len(jobs)
        self._segment_s = [0.0] * len(jobs)
        # Kept here as well: the table has all that a cycle decided before its actions are handled one by one.
        self._progress_from_s = [0.0] * len(jobs)
        self._speed = [1.0] * len(jobs)
        # What jobs have left in truth, at their last start. The table has what the scheduler knows of it.
        self._left_s = [one.duration_s for one in jobs]
        self._ticking, self._names = set[str](), tuple(self.domains)
        self._is_lending = is_lending
        self._has_shared_quotas = rules.tenancy is not None and len(self.domains) > 1
        self._hosts: dict[int, str] = {}  # where a guest runs
        self._row_of: dict[int, int] = {}  # by sequence; made when it is needed
        self._has_progressed = True  # since that was asked the last time: a job, or what comes from outside
        self._resizes = list(resizes)
        self._measured, self._closures = tuple(measured or ()), tuple(closures)
        self._heap = self._foreknown(lists_made_s)
        for domain in self.domains.values():
            self._close(domain, -math.inf)

    def _foreknown(self, lists_made_s: Iterable[float]) -> list[tuple[float, int, int, int]]:
        """A heap of what happens at known times, whatever jobs come."""
        heap: list[tuple[float, int, int, int]] = []
        heap += [(resize.at_s, Kind.RESIZE, at, 0) for at, resize in enumerate(self._resizes)]
        heap += [(start.at_s, Kind.MEASURED, at, 0) for at, (_, start) in enumerate(self._measured)]
        times = {at_s for one in self._closures for at_s in one.news_s if at_s > -math.inf}
        heap += [(at_s, Kind.CLOSE, at, 0) for at_s in times for at in range(len(self._names))]
        heap += [(at_s, Kind.LIST, at, 0) for at_s in lists_made_s for at in range(len(self._names))]
        heapq.heapify(heap)
        return heap

    def _close(self, domain: Domain, now_s: float) -> None:
        """Tell a domain of the maintenance that is planned by now, and not over."""
        if self._closures:
            node_index = {node.name: at for at, node in enumerate(domain.ledger.nodes)}
            domain.close(windows_at(self._closures, node_index, now_s))

    def plan(self, resize: Resize) -> None:
        """Announce a change of nodes, not before the present instant, handled after the observers' calls."""
        heapq.heappush(self._heap, (resize.at_s, Kind.RESIZE, len(self._resizes), 0))
        self._resizes.append(resize)

    def run(self) -> Sequence[Run]:
        """Run until the last job has ended, or no event is left.

        Raises:
            Stuck: A great many decisions in a row brought no job any further.
        """
        jobs, heap = self.jobs, self._heap
        arrived = instants = 0
        while self.left and (heap or arrived < len(jobs)):
            now_s = jobs[arrived].comes_s if arrived < len(jobs) else math.inf
            if heap and heap[0][0] < now_s:
                now_s = heap[0][0]
            # 1. All that happens now, in the order of `Kind`: GPUs that become free are there for jobs that come.
            touched: dict[str, Domain] = {}
            while heap and heap[0][0] == now_s and heap[0][1] == Kind.END:
                self._end(now_s, touched)
            while arrived < len(jobs) and jobs[arrived].comes_s == now_s:
                self._submit(arrived, touched)
                arrived += 1
            ticked: dict[str, Domain] = {}
            while heap and heap[0][0] <= (now_s + EDGE_S if heap[0][1] == Kind.CROSS else now_s):
                self._later(now_s, touched, ticked)
            # 2. The domains whose cycle runs now.
            due = self._at_ticks(touched, ticked, now_s) if self._tick_s or self._pauses else touched
            if (self._is_lending or self._has_shared_quotas) and due:
                due = dict(self.domains)  # idle nodes of one, or what a quota leaves, may be of use to jobs of any
            # 3. One cycle for each of them; the others only tell their observers.
            for domain in due.values():
                if self._has_shared_quotas:
                    domain.touch()
                self._cycle(domain, now_s)
            for name, domain in touched.items():
                if name not in due:
                    self._tell(now_s, domain, ())
            instants += 1
            if instants % LOOK_AFTER == 0:
                self._refuse_standstill(now_s)
        # What was measured later than the last job ends here, the cluster has learned as well.
        for _, kind, at, _ in sorted(heap):
            if kind == Kind.MEASURED:
                self._learn_start(at)
        return self.runs

    def _learn_start(self, at: int) -> Domain:
        name, start = self._measured[at]
        learn_start(self.domains[name], start)
        return self.domains[name]

    def _refuse_standstill(self, now_s: float) -> None:
        running = (row for domain in self.domains.values() for row in (*domain.running, *domain.guests))
        if self._has_progressed or any(now_s - self._progress_from_s[row] > EDGE_S for row in running):
            self._has_progressed = False
            return
        raise Stuck(
            f"{self._rules.order.name}: {self.left} of {len(self.jobs)} jobs will never end: in {LOOK_AFTER} "
            f"instants none has made progress, each loses its GPUs before it has resumed",
            hint="leave who was started alone for a while, --set min_run_s=60",
        )

    def _end(self, now_s: float, touched: dict[str, Domain]) -> None:
        _, _, row, start = heapq.heappop(self._heap)
        # The end of a start that was preempted since.
        if start != self._starts[row]:
            return
        self.events += 1
        domain = self.domains[self._hosts.pop(row, self.jobs[row].job.vc)]
        touched[domain.name] = domain
        lent_before = domain.ledger.lent.version
        self._starts[row] += 1
        self._has_progressed = True
        self.left -= 1
        run = self.runs[row]
        run.end_s = now_s
        run.held_s += now_s - self._segment_s[row]
        domain.finish(row)
        if domain.ledger.lent.version != lent_before:  # what donors lent to it, or lend now, jobs of all may have
            touched.update(self.domains)
            for other in self.domains.values():
                other.touch()
        # The domain that the job belongs to learns from it, also where it ran as a guest.
        home = self.domains[self.jobs[row].job.vc]
        home.learn(run.held_s * self.jobs[row].job.gpus, self.table.predicted_gpu_s.item(row))
        if self._estimator is not None:
            ended = JobEnded(at_s=now_s, job=self.jobs[row].job, ran_s=run.held_s - run.cost_s)
            self._expect(self._estimator.learn(ended), touched)

    def _expect(self, predicted_gpu_s: Mapping[int, float], touched: dict[str, Domain]) -> None:
        """Jobs that wait are ranked by what is now expected of them."""
        if predicted_gpu_s and not self._row_of:
            self._row_of = {entry.job.sequence: row for row, entry in enumerate(self.jobs)}
        for sequence, gpu_s in predicted_gpu_s.items():
            row = self._row_of[sequence]
            domain = self.domains[self.jobs[row].job.vc]
            if domain.expect(row, predicted_gpu_s=gpu_s, remaining_s=self._expected_left_s(row)):
                touched[domain.name] = domain

    def _expected_left_s(self, row: int) -> float:
        traced = self.jobs[row]
        if self._estimator is None:
            return self._left_s[row]
        return self._estimator.remaining_s(traced.job, traced.duration_s - self._left_s[row])

    def _submit(self, row: int, touched: dict[str, Domain]) -> None:
        self.events += 1
        self._has_progressed = True
        trace = self.jobs[row]
        domain = self.domains[trace.job.vc]
        touched[domain.name] = domain
        predicted_gpu_s = math.nan
        if self._estimator is not None:
            predicted_gpu_s = self._estimator.predicted_gpu_s(trace.job, trace.comes_s)
        remaining_s = self._expected_left_s(row)
        since_s = trace.job.submit_s if trace.since_s is None else trace.since_s
        domain.submit(row, trace.job, remaining_s=remaining_s, predicted_gpu_s=predicted_gpu_s, since_s=since_s)
        self.table.since_s[row] = since_s
        # A cycle when the job may have waited too long: nothing else need happen at that time.
        self._wake(domain.name, max(trace.comes_s, since_s + self._rules.reserve_after_s))
        if domain.traits.is_ageing:
            self._watch(domain, [row], trace.comes_s)

    def _later(self, now_s: float, touched: dict[str, Domain], ticked: dict[str, Domain]) -> None:
        _, kind, row, start = heapq.heappop(self._heap)
        if kind == Kind.RESIZE:
            domain = self.domains[self._resizes[row].vc]
            domain.resize(self._resizes[row].nodes)
            self._has_progressed = True
            touched[domain.name] = domain
        elif kind == Kind.MEASURED:
            domain = self._learn_start(row)
            touched[domain.name] = domain
        elif kind == Kind.CLOSE:
            domain = self.domains[self._names[row]]
            self._close(domain, now_s)
            self._has_progressed = True
            touched[domain.name] = domain
        elif kind == Kind.LIST:
            domain = self.domains[self._names[row]]
            list_anew(domain)
            touched[domain.name] = domain
        elif kind == Kind.CYCLE:
            domain = self.domains[self._names[row]]
            domain.touch()
            (ticked if start == TICK else touched)[domain.name] = domain
        elif start == self._starts[row]:
            self.events += 1
            domain = self.domains[self.jobs[row].job.vc]
            touched[domain.name] = domain
            domain.cross(row, now_s)
            self._watch(domain, [row], now_s, is_told=True)

    def _at_ticks(self, touched: dict[str, Domain], ticked: dict[str, Domain], now_s: float) -> dict[str, Domain]:
        """Domains whose cycle runs now; the other touched domains get a tick at its next time."""
        for domain in ticked.values():
            self._ticking.discard(domain.name)
        for domain in touched.values():
            at_s = self._next_cycle_s(now_s)
            if at_s <= now_s:  # a multiple that is rounded may lie below: the clock never goes back
                ticked[domain.name] = domain
            elif domain.name not in self._ticking:
                self._ticking.add(domain.name)
                self._wake(domain.name, at_s, TICK)
        return ticked

    def _next_cycle_s(self, now_s: float) -> float:
        """When the cycle runs for what happens now: at the next multiple of the tick, and in no pause."""
        at_s = math.ceil(now_s / self._tick_s) * self._tick_s if self._tick_s else now_s
        return next((end_s for begin_s, end_s in self._pauses if begin_s <= at_s < end_s), at_s)

    def _wake(self, name: str, at_s: float, start: int = 0) -> None:
        if at_s < math.inf:
            heapq.heappush(self._heap, (at_s, Kind.CYCLE, self._names.index(name), start))

    def _cycle(self, domain: Domain, now_s: float) -> None:
        lenders = lenders_to(domain, self.domains.values()) if self._is_lending else ()
        actions = run_cycle(domain, now_s, lenders)
        changed: list[int] = []
        for action in actions:
            row = action.row
            changed.append(row)
            if isinstance(action, Start):
                if action.host != domain.name:
                    self._hosts[row] = action.host
                self._start(row, action.delay_s, now_s)
            elif isinstance(action, Preempt):
                self._starts[row] += 1
                self.runs[row].preemptions += 1
                self.runs[row].held_s += now_s - self._segment_s[row]
                self._left_s[row] -= max(0.0, now_s - self._progress_from_s[row]) * self._speed[row]
                # A job that is preempted before it made progress has not paid all of its last resumption.
                unpaid_s = self._progress_from_s[row] - now_s
                self.runs[row].cost_s -= max(0.0, unpaid_s)
                self._has_progressed = self._has_progressed or unpaid_s < -EDGE_S
                if not self._is_knowing_progress and self._estimator is not None:
                    self._begin_again(self._estimator, row)
                self._wake(domain.name, now_s + self._rules.reserve_after_s)
                if self._hosts.pop(row, None) is not None or self._is_lending:
                    # A guest waits again in its own domain, whose cycle may have run already; and whoever lost GPUs at
                    # home may be a guest elsewhere.
                    self._wake(self.jobs[row].job.vc, now_s)
        homes: dict[str, list[int]] = {}  # a guest that loses its GPUs waits in its own domain
        for row in dict.fromkeys(changed):
            homes.setdefault(self.jobs[row].job.vc, []).append(row)
        for name, rows in homes.items():
            self._watch(self.domains[name], rows, now_s)
        self._tell(now_s, domain, actions)

    def _begin_again(self, estimator: Estimator, row: int) -> None:
        """A job that lost its GPUs is ranked as one that has all of its time before it."""
        job = self.jobs[row].job
        self.table.remaining_s[row] = estimator.remaining_s(job, 0.0)
        self.domains[job.vc].queue.rank_anew(row)

    def _tell(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        for observe in self.observers:
            observe(now_s, domain, actions)

    def _start(self, row: int, delay_s: float, now_s: float) -> None:
        run = self.runs[row]
        self._starts[row] += 1
        self._segment_s[row] = now_s
        self._progress_from_s[row] = now_s + delay_s
        if math.isnan(run.start_s):
            run.start_s = now_s
        run.cost_s += delay_s
        self._speed[row] = float(self.table.speed[row])
        end_s = now_s + delay_s + self._left_s[row] / self._speed[row]
        heapq.heappush(self._heap, (end_s, Kind.END, row, self._starts[row]))
        domain = self.domains[self.jobs[row].job.vc]
        # A cycle when the job may be preempted again.
        if domain.traits.is_preemptive and row in domain.running and domain.running[row].until_s > now_s:
            self._wake(domain.name, domain.running[row].until_s)

    def _watch(self, domain: Domain, rows: list[int], now_s: float, *, is_told: bool = False) -> None:
        """Notes when the policy, or the end of a minimum run time, wants the cycle to look at these again.

        ``is_told``: The cycle runs for what they have reached.
        """
        if not domain.traits.has_thresholds:
            return
        for row, change_s in zip(rows, domain.watch(rows, now_s), strict=True):
            # An event for what the clock takes for now would come at once, again and again.
            if now_s + EDGE_S < now_s + change_s < math.inf:
                after_s = math.ceil(change_s - EDGE_S) if self._is_in_whole_seconds else change_s
                heapq.heappush(self._heap, (now_s + after_s, Kind.CROSS, row, self._starts[row]))
            elif change_s < math.inf and domain.queue.has(row) and not is_told:
                self._wake(domain.name, now_s)
