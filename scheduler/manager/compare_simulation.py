"""Accuracy of the simulator: a log's jobs simulated by the rules they ran under, beside what really happened. PURE.

How it works
  A job's trace is made from the log: it comes when it was ready to run (submitted, released, its predecessors done),
  and needs the time that its processes were held less what preemptions cost: each pause, and each start but the first
  until it worked again (preemption_times.py). What it lost since a checkpoint and did again counts as time that it
  needs. The simulation charges each preemption with the mean of what was measured, on the nodes that took jobs at the
  time.

  Estimators hear of each job when the manager's did (scheduler/predict/heard_jobs.py). Jobs that have not ended by the
  end of the log hold their GPUs until then, and are not compared. Nodes come and go, are reserved, and lists of queues
  are made anew when a scheduler process takes the lead, all as it was.

  So what may differ is what the simulator does not know: how long it takes to decide, to tell nodes and to start
  processes, which pause and resume is longer than the mean, nodes that were lost while jobs ran there, jobs that were
  cancelled while they waited in front of others, and when donors lent less than the most that they ever did.
"""

import math
import statistics
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from farside.errors import FarsideError
from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.domain import Rules
from farside.scheduler.lent_memory import LentMemory, promise_of
from farside.scheduler.manager.decider.adapter import job_of, node_of, partition_of
from farside.scheduler.manager.decider.past_use import measured_of, start_of
from farside.scheduler.manager.decider.placement_reason import packlimits
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.preemption_times import PreemptionTimes, as_settings
from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.restarted_times import RestartedTimes
from farside.scheduler.manager.view.view import Packlimit
from farside.scheduler.model_zoo import skew_of
from farside.scheduler.placement.measured_speed import MeasuredSpeeds, MeasuredStart, slowed
from farside.scheduler.placement.skew import PACKLIMIT
from farside.scheduler.predict.heard_jobs import Heard, HeardTimes
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.preemption_cost import make_preemption_cost
from farside.scheduler.sim.closure import Closure
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.slowdown import MeasuredSlowdown
from farside.scheduler.state import Cluster, Job, Node, Resize, VirtualCluster

# Improvement of the mean JCT over YARN-CS by TIRESIAS-L: on the testbed [tiresias §3.5.2.1] and in the simulator that
# replayed the same workload [tiresias §3.5.3.1].
PAPER_TESTBED, PAPER_SIMULATOR = 5.5, 5.11
PAPER_APART_PCT = 100 * (PAPER_TESTBED - PAPER_SIMULATOR) / PAPER_TESTBED

NO_SLOWDOWN = MeasuredSlowdown(packlimit=PACKLIMIT)
NOT_OVER = "not over yet"
# A job that has not ended needs so much more than the log has, so that it never ends within it.
LONGER_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A job that ran and is over: what a trace says of it, and what became of it."""

    traced: TraceJob
    start_s: float
    end_s: float
    preemptions: int

    @property
    def jct_s(self) -> float:
        """From when it was ready to run until its end."""
        return self.end_s - self.traced.comes_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Input for the simulator, from a log. ``left_out``: jobs that are not in ``jobs``, by reason.

    ``nodes`` are all there ever were, the largest that each ever was; ``lends`` the most that the donor of each ever
    lent, and ``copies`` how many donors have each page of a node; ``resizes`` which of them took jobs when.
    ``measured``: what starts of jobs told of their iterations, of all jobs, in the order of their ends, each with its
    partition; ``slowdown`` what spread starts lost by that. ``unfinished``: jobs that have started and not ended, which
    need more time than the log has. ``heard``: all jobs that the manager's estimator heard of, as it did. ``closures``:
    nodes that were reserved. ``leads_s``: when a scheduler process took the lead.
    """

    jobs: tuple[Recorded, ...]
    nodes: tuple[Node, ...]
    resizes: tuple[Resize, ...]
    preemption_times: PreemptionTimes
    left_out: Mapping[str, int]
    unfinished: tuple[TraceJob, ...] = ()
    heard: tuple[Heard, ...] = ()
    closures: tuple[Closure, ...] = ()
    leads_s: tuple[float, ...] = ()
    partitions: Partitions = NO_PARTITIONS
    lends: Mapping[str, int] = field(default_factory=dict)
    copies: Mapping[str, int] = field(default_factory=dict)
    measured: tuple[tuple[str, MeasuredStart], ...] = ()
    slowdown: MeasuredSlowdown = NO_SLOWDOWN

    @property
    def trace(self) -> tuple[TraceJob, ...]:
        """All that the simulation plays: ``jobs`` and ``unfinished``, by when they were ready to run."""
        found = [*(one.traced for one in self.jobs), *self.unfinished]
        return tuple(sorted(found, key=lambda one: (one.comes_s, one.job.sequence)))

    @property
    def lent(self) -> LentMemory:
        """What donors lent at most. It is not counted where jobs got more: an older manager started them."""
        memory = LentMemory()
        for name in {*self.lends, *self.copies}:
            memory.set_node(name, lends_bytes=self.lends.get(name, 0), copies=self.copies.get(name, 1))
        for node in self.nodes:
            memory.set_room(node.name, node.memory_bytes)
        jobs = (one.job for one in self.trace)
        most = max((promise_of(job.gpus, job.swap_bytes_per_gpu) for job in jobs), default=0)
        return LentMemory(is_counted=False) if memory.why_not(most) else memory

    @property
    def cluster(self) -> Cluster:
        """The nodes by partition; those of none ran nothing."""
        own: dict[str, list[Node]] = {name: [] for name in self.partitions.by_name or ("",)}
        for node in self.nodes:
            if (name := self.partitions.owner_of(node.name)) in own:
                own[name].append(node)
        grace_s = self.partitions.lend_grace_s
        return Cluster(
            virtual_clusters=tuple(
                VirtualCluster(name=name, nodes=tuple(nodes), lend_grace_s=grace_s(name)) for name, nodes in own.items()
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One job, really and simulated. Times in seconds.

    Attributes:
        partition: Where it waited; empty: the cluster has no partitions.
        submit_s: When it was ready to run.
        start_s: When it first started, and ``predicted_start_s`` when it did in the simulation.
        jct_s: From when it was ready until its end, and ``predicted_s`` the same of the simulation.
    """

    job_id: str
    gpus: int
    jct_s: float
    predicted_s: float
    partition: str = ""
    submit_s: float = 0.0
    start_s: float = 0.0
    predicted_start_s: float = 0.0

    @property
    def error(self) -> float:
        """Error of the prediction, as a share of the truth; below 0: it is too short."""
        return (self.predicted_s - self.jct_s) / self.jct_s if self.jct_s > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """All jobs of a recording, really and simulated. At least one.

    ``packlimits``: the limits of the placement by skew that the simulation came to, as the manager did by the same
    starts; none where places do not go by it.
    """

    jobs: tuple[Compared, ...]
    preemptions: int
    predicted_preemptions: int
    packlimits: tuple[Packlimit, ...] = ()

    @property
    def mean_jct_s(self) -> float:
        """Mean of what really happened; ``predicted_mean_s``: mean of what was simulated."""
        return statistics.fmean(job.jct_s for job in self.jobs)

    @property
    def predicted_mean_s(self) -> float:
        """Simulated."""
        return statistics.fmean(job.predicted_s for job in self.jobs)

    @property
    def mean_error(self) -> float:
        """Error of the mean JCT, as a share of it."""
        return (self.predicted_mean_s - self.mean_jct_s) / self.mean_jct_s

    @property
    def median_error(self) -> float:
        """Half of the jobs are predicted no worse than this, as a share of their JCT, whichever way."""
        return statistics.median(abs(job.error) for job in self.jobs)

    @property
    def order(self) -> "OrderCount":
        """How many jobs started in another order than in the simulation."""
        by_partition: defaultdict[str, list[Compared]] = defaultdict(list)
        for job in self.jobs:
            by_partition[job.partition].append(job)
        counts = [_order_in(jobs) for jobs in by_partition.values()]
        return OrderCount(pairs=sum(one.pairs for one in counts), swapped=sum(one.swapped for one in counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCount:
    """Pairs of jobs that waited in one queue at one time in the simulation, and those of them that really swapped.

    Two jobs that started at one instant, here or there, have not swapped.
    """

    pairs: int
    swapped: int

    @property
    def error(self) -> float:
        """The share that swapped; 0 where no two jobs waited together."""
        return self.swapped / self.pairs if self.pairs else 0.0


def _order_in(jobs: Sequence[Compared]) -> OrderCount:
    # Those that started at once never waited for others; others may have waited for them.
    coming = sorted((job for job in jobs if job.predicted_start_s > job.submit_s), key=lambda job: job.submit_s)
    waiting: list[float] = []  # real starts of the jobs that wait in the simulation, rising
    pairs = swapped = come = 0
    by_start = sorted(jobs, key=lambda job: job.predicted_start_s)
    for at_s, group in groupby(by_start, key=lambda job: job.predicted_start_s):
        starting = tuple(group)
        while come < len(coming) and coming[come].submit_s < at_s:
            insort(waiting, coming[come].start_s)
            come += 1
        for job in starting:
            if job.submit_s < at_s:
                del waiting[bisect_left(waiting, job.start_s)]
        pairs += len(starting) * len(waiting)
        swapped += sum(bisect_left(waiting, job.start_s) for job in starting)
    return OrderCount(pairs=pairs, swapped=swapped)


@dataclass(slots=True)
class _Reading:
    state: LiveState = field(default_factory=LiveState)
    ready_s: dict[str, float] = field(default_factory=dict)
    overhead_s: dict[str, float] = field(default_factory=dict)
    gpus: dict[str, Node] = field(default_factory=dict)
    lends: dict[str, int] = field(default_factory=dict)
    taking: list[tuple[float, tuple[str, ...]]] = field(default_factory=list)
    forgotten: dict[str, LiveJob] = field(default_factory=dict)  # jobs that the state has no more
    closures: dict[str, Closure] = field(default_factory=dict)
    leads_s: list[float] = field(default_factory=list)
    asks_users: bool = False  # some node ran jobs of some users only
    end_s: float = 0.0


def recording(
    entries: Iterable[log.Entry], only: Collection[str] | None = None, partitions: Partitions = NO_PARTITIONS
) -> Recording:
    """Reads a log for the simulator: all jobs, or ``only`` these, in the partitions of the settings."""
    read = _Reading()
    for entry in entries:
        _apply(read, entry)
        _note(read, entry)
    everyone = {**read.forgotten, **read.state.jobs}
    jobs = [job for job in everyone.values() if only is None or job.job_id in only]
    told = measured_of(everyone.values())
    measured = [(partition_of(job, partitions), start_of(job, one)) for job, one in told]
    slowdown = _slowdown_of([start for _, start in measured])
    left_out = Counter(filter(None, (_unfit(job, partitions) for job in jobs)))
    found = [_recorded(read, job, partitions, slowdown) for job in jobs if not _unfit(job, partitions)]
    found.sort(key=lambda one: (one.traced.comes_s, one.traced.job.sequence))
    nodes = tuple(read.gpus.values())
    resizes = tuple(
        Resize(at_s=at_s, vc=vc, nodes=tuple(read.gpus[name] for name in names if partitions.owner_of(name) == vc))
        for at_s, names in read.taking
        for vc in partitions.by_name or ("",)
    )
    return Recording(
        jobs=tuple(found), nodes=nodes, resizes=resizes, preemption_times=read.state.preemption_times,
        left_out=left_out, partitions=partitions, lends=read.lends,
        copies={name: node.swap_copies for name, node in read.state.nodes.items()},
        measured=tuple((name, start) for name, start in measured if not partitions or name in partitions.by_name),
        slowdown=slowdown,
        unfinished=tuple(
            _unfinished(read, job, partitions)
            for job in jobs
            if job.start and _unfit(job, partitions) == NOT_OVER
        ),
        heard=tuple(
            Heard(job=job_of(job), held_s=job.held_s if job.is_over else math.nan)
            for job in sorted(everyone.values(), key=lambda job: job.sequence)
            if not job.spec.colocate
        ),
        closures=tuple(read.closures.values()), leads_s=tuple(read.leads_s),
    )  # fmt: skip


def _apply(read: _Reading, entry: log.Entry) -> None:
    """Moves the state on; what it forgets by that is kept."""
    before = dict(read.state.jobs) if isinstance(entry.event, log.HistoryForgotten) else {}
    apply(read.state, entry)
    read.forgotten.update((job_id, job) for job_id, job in before.items() if job_id not in read.state.jobs)
    read.end_s = max(read.end_s, entry.at_s)


def _slowdown_of(starts: Iterable[MeasuredStart]) -> MeasuredSlowdown:
    """What spread starts of the two kinds of models that [tiresias Table 3.3] has lost."""
    speeds = MeasuredSpeeds()
    samples = [sample for start in starts for sample in speeds.add(start)]
    over, under = (slowed(samples, PACKLIMIT, is_over=is_over) for is_over in (True, False))
    return MeasuredSlowdown(packlimit=PACKLIMIT, over=over, under=under)


def _note(read: _Reading, entry: log.Entry) -> None:
    state = read.state
    match entry.event:
        case log.JobSubmitted():
            read.ready_s.update(dict.fromkeys(state.submitted[entry.seq], entry.at_s))
        case log.ReleaseRequested(job_id=job_id) if job_id in state.jobs and not state.jobs[job_id].start:
            read.ready_s[job_id] = entry.at_s
        case log.JobRequeued(job_id=job_id) | log.JobEnded(job_id=job_id):
            job = state.jobs[job_id]
            _record_run_interval(read, job, is_preempted=isinstance(entry.event, log.JobRequeued))
        case log.SchedulerTookLead():
            read.leads_s.append(entry.at_s)
        case log.NodesReserved() | log.ReservationCancelled():
            _note_reserved(read, entry.at_s)
        case log.NodeJoined() | log.NodeChanged() | log.NodeLost() | log.DrainRequested() | log.UndrainRequested():
            _note_nodes(read, entry.at_s)
        case _:
            pass


def _note_reserved(read: _Reading, now_s: float) -> None:
    for name, one in read.state.maintenance.items():
        known = read.closures.get(name)
        if known is None:
            nodes = frozenset(one.nodes)
            read.closures[name] = Closure(nodes=nodes, begin_s=one.begin_s, end_s=one.end_s, planned_s=now_s)
        elif one.cancelled_by and known.end_s == one.end_s:
            read.closures[name] = replace(known, end_s=min(one.end_s, now_s))


def _record_run_interval(read: _Reading, job: LiveJob, *, is_preempted: bool) -> None:
    cost_s = job.resume_s if job.start > 1 and not math.isnan(job.resume_s) else 0.0
    if is_preempted and job.stopping_s >= job.started_s and not math.isnan(job.pause_s):
        cost_s += job.pause_s
    read.overhead_s[job.job_id] = read.overhead_s.get(job.job_id, 0.0) + cost_s


def _note_nodes(read: _Reading, now_s: float) -> None:
    for node in read.state.nodes.values():
        read.lends[node.name] = max(node.lends_bytes, read.lends.get(node.name, 0))
        known = read.gpus.get(node.name)
        now = node_of(node)
        read.asks_users = read.asks_users or bool(now.users)
        if known is not None and known.gpus >= now.gpus and known.swap_bytes >= now.swap_bytes:
            continue
        # Of memory a job may have all there is: what other programs used then, the simulator does not know.
        now = replace(now, memory_bytes=float(node.memory_bytes or math.inf))
        most = max(now.swap_bytes, now.swap_bytes if known is None else known.swap_bytes)
        read.gpus[node.name] = replace(now if known is None or known.gpus < now.gpus else known, swap_bytes=most)
    names = tuple(node.name for node in read.state.nodes.values() if node.is_taking)
    if not read.taking or read.taking[-1][1] != names:
        read.taking.append((now_s, names))


def _unfit(job: LiveJob, partitions: Partitions) -> str:
    if job.spec.colocate:
        return "co-located, without GPUs"
    if partitions and partition_of(job, partitions) not in partitions.by_name:
        return "of a partition that the settings do not have"
    if not job.is_over:
        return NOT_OVER
    return "" if job.start else "never started"


def _traced(read: _Reading, job: LiveJob, partitions: Partitions, duration_s: float) -> TraceJob:
    """A job that has started, as it comes in the simulation."""
    others = (read.state.jobs.get(other, read.forgotten.get(other)) for other in job.spec.after)
    before = [other.end_s for other in others if other is not None]
    free_s = read.ready_s[job.job_id]
    return TraceJob(
        job=replace(job_of(job, asks_users=read.asks_users), vc=partition_of(job, partitions)),
        duration_s=duration_s,
        ready_s=min(max([free_s, *before]), job.start_s),
        # A job that waits for others waits from its submission on; one that was held, from its release on.
        since_s=min(free_s, job.start_s),
    )


def _unfinished(read: _Reading, job: LiveJob, partitions: Partitions) -> TraceJob:
    return _traced(read, job, partitions, read.end_s - job.submit_s + LONGER_S)


def _recorded(read: _Reading, job: LiveJob, partitions: Partitions, slowdown: MeasuredSlowdown) -> Recorded:
    worked_s = max(1e-3, job.held_s - read.overhead_s.get(job.job_id, 0.0))
    traced = _traced(read, job, partitions, worked_s * _mean_speed(job_of(job), job, slowdown))
    return Recorded(traced=traced, start_s=job.start_s, end_s=job.end_s, preemptions=job.preemptions)


def _mean_speed(seen: Job, job: LiveJob, slowdown: MeasuredSlowdown) -> float:
    """Speed that a job had where it was, over all the time that it held GPUs, as a share of its speed consolidated."""
    held = [(one.end_s - one.begin_s, slowdown.speed_at(skew_of(seen), one.spread or 0.0)) for one in job.stints]
    total_s = sum(length_s for length_s, _ in held)
    return sum(length_s * speed for length_s, speed in held) / total_s if total_s > 0 else 1.0


def simulated(
    found: Recording,
    rules: Rules,
    make_times: Callable[[], LearnedTimes | None] = lambda: None,
    *,
    pauses: Sequence[tuple[float, float]] = (),
) -> Fidelity:
    """Simulates the recorded jobs by the rules that the manager had.

    ``make_times``: an estimator as a scheduler process has it that has not read the log yet; the simulation has another
    one from where one took the lead. ``pauses``: begin and end of times in which no scheduler process decided.

    Raises:
        FarsideError: There are none, or some never end there.
    """
    if not found.jobs:
        raise FarsideError("no job of this log has run to its end", hint="run some first")
    settings = dict(as_settings(found.preemption_times))
    cost = make_preemption_cost(settings.pop("cost", "free"), settings)
    rules = replace(rules, preemption_cost=cost, slowdown=found.slowdown)
    trace = found.trace
    first_s = trace[0].comes_s
    leads_s = [at_s for at_s in found.leads_s if at_s > first_s]
    estimator: HeardTimes | None = None
    if (times := _times(make_times, leads_s, pauses)) is not None:
        rules = replace(rules, order=times.primed(rules.order))
        estimator = HeardTimes(times, found.heard, (one.job.sequence for one in trace))
    simulation = Simulation(
        found.cluster, rules, trace, estimator=estimator, is_in_whole_seconds=False, resizes=_needed(found, first_s),
        is_lending=found.partitions.is_lending, lent=found.lent, closures=found.closures, pauses=pauses,
        measured=found.measured if rules.placement.is_learning else (),
        lists_made_s=leads_s,
    )  # fmt: skip
    run_of = {one.job.job_id: run for one, run in zip(trace, simulation.run(), strict=True)}
    runs = [run_of[one.traced.job.job_id] for one in found.jobs]
    stuck = [one.traced.job.job_id for one, run in zip(found.jobs, runs, strict=True) if math.isnan(run.end_s)]
    if stuck:
        raise FarsideError(f"job {stuck[0]} never ends in the simulation", hint="were its nodes taken away?")
    return Fidelity(
        jobs=tuple(
            Compared(
                job_id=one.traced.job.job_id,
                gpus=one.traced.job.gpus,
                jct_s=one.jct_s,
                predicted_s=run.end_s - one.traced.comes_s,
                partition=one.traced.job.vc,
                submit_s=one.traced.comes_s,
                start_s=one.start_s,
                predicted_start_s=run.start_s,
            )
            for one, run in zip(found.jobs, runs, strict=True)
        ),
        preemptions=sum(one.preemptions for one in found.jobs),
        predicted_preemptions=sum(run.preemptions for run in runs),
        packlimits=packlimits({name: domain.history for name, domain in simulation.domains.items()}),
    )


def _times(
    make_times: Callable[[], LearnedTimes | None], leads_s: Sequence[float], pauses: Sequence[tuple[float, float]]
) -> RestartedTimes | None:
    """The manager's estimators, one after the other; None: its policy asks for none."""
    first = make_times()
    if first is None:
        return None
    # Where nobody decided until one took the lead, what it learned is there when decisions go on.
    restarts_s = [next((begin_s for begin_s, end_s in pauses if begin_s <= at_s <= end_s), at_s) for at_s in leads_s]
    return RestartedTimes(first, make_times, restarts_s)


def _needed(found: Recording, first_s: float) -> Sequence[Resize]:
    """Resizes after the first submission, and the size at that time."""
    before = {resize.vc: resize for resize in found.resizes if resize.at_s <= first_s}
    return [replace(resize, at_s=first_s) for resize in before.values()] + [
        resize for resize in found.resizes if resize.at_s > first_s
    ]
