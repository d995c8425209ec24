"""Waiting times of a log's GPU jobs in the simulator, under FIFO or another policy. PURE."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.defaults import PlainOrder
from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.policy import OrderPolicy, OrderTraits
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.sim.characterise.cluster_size import Sizes
from farside.scheduler.sim.cluster import WHOLE, VcSize, build_site, misfits
from farside.scheduler.sim.estimator import Foreknown
from farside.scheduler.sim.simulation import Simulation
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.log import Codes, JobLog
from farside.scheduler.state import Action, Job, Start
from farside.scheduler.table import Floats, JobColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Jobs and the cluster that they are replayed on.

    Attributes:
        log: Of GPU jobs that fit.
        sizes: The cluster as it is at its largest.
        left_out: Jobs that fit nowhere.
    """

    log: JobLog
    sizes: Sizes
    left_out: int

    def vc_of(self, row: int) -> str:
        """The part of the cluster that a job runs in."""
        code = int(self.log.vc[row])
        return WHOLE if self.sizes.is_pool or code < 0 else self.log.vcs[code]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadStart(PlainOrder):
    """First come first served, but for a head start that some get: ``predicted_gpu_s`` is when a job counts as come."""

    name = "head-start"
    traits = OrderTraits(is_strict=True)

    def keys(self, jobs: JobColumns) -> tuple[Floats, ...]:
        """When each counts as come."""
        return (jobs.predicted_gpu_s,)

    def why(self, first: JobColumns, second: JobColumns) -> str:
        """The head start."""
        return f"counts as come {second.predicted_gpu_s[0] - first.predicted_gpu_s[0]:.0f} s earlier"


def stage(log: JobLog, sizes: Sizes) -> Stage:
    """The GPU jobs of a log that its cluster can hold."""
    whole = Stage(log=log, sizes=sizes, left_out=0)
    entries = trace_jobs(whole)
    site = build_site(gpus_per_node=sizes.gpus_per_node, vc_sizes=_at_largest(sizes))
    misfit = [entry.job.sequence for entry, _ in misfits(entries, site.cluster, Consolidate())]
    fits = np.ones(len(log), dtype=bool)
    fits[misfit] = False
    return Stage(log=log.of(fits), sizes=sizes, left_out=len(misfit))


def busiest(found: Stage, most: int) -> Stage:
    """The stretch of ``most`` consecutive jobs that asks for most GPU time in its time; all, where there are fewer."""
    log = found.log
    if len(log) <= most:
        return found
    asked = np.concatenate(([0.0], np.cumsum(log.gpus * log.duration_s)))
    # A tenth of the stretch apart: near enough to the busiest one.
    firsts = np.arange(0, len(log) - most + 1, max(1, most // 10))
    span_s = log.submit_s[firsts + most - 1] - log.submit_s[firsts]
    best = int(firsts[np.argmax((asked[firsts + most] - asked[firsts]) / np.maximum(span_s, 1.0))])
    return Stage(log=log.of(np.arange(best, best + most)), sizes=found.sizes, left_out=found.left_out)


def trace_jobs(found: Stage, duration_s: Floats | None = None, vcs: Mapping[int, str] | None = None) -> list[TraceJob]:
    """The jobs for a simulation, numbered by row; with other durations, some in other virtual clusters."""
    log = found.log
    lasting = (log.duration_s if duration_s is None else duration_s).tolist()
    elsewhere = vcs or {}
    columns = zip(log.submit_s.tolist(), log.gpus.tolist(), lasting, strict=True)
    return [
        TraceJob(
            job=Job(
                job_id=str(row), sequence=row, submit_s=submit_s, gpus=gpus, vc=elsewhere.get(row) or found.vc_of(row)
            ),
            duration_s=one_s,
        )
        for row, (submit_s, gpus, one_s) in enumerate(columns)
    ]


def waits_s(
    found: Stage,
    *,
    jobs: list[TraceJob] | None = None,
    vc_sizes: Iterable[VcSize] = (),
    is_lending: bool = False,
    head_starts: "HeadStarts | None" = None,
) -> Floats:
    """How long each job waits on an empty cluster, strictly first come first served within its virtual cluster.

    All of it, where a job gives lent nodes back and waits again.
    """
    order: OrderPolicy = Fifo() if head_starts is None else HeadStart()
    sizes = tuple(vc_sizes) or _at_largest(found.sizes)
    site = build_site(gpus_per_node=found.sizes.gpus_per_node, vc_sizes=sizes)
    entries = jobs if jobs is not None else trace_jobs(found)
    simulation = Simulation(
        site.cluster,
        Rules(order=order, placement=Consolidate()),
        entries,
        is_lending=is_lending,
        estimator=None if head_starts is None else Foreknown(head_starts, entries),
        observers=() if head_starts is None else (head_starts.observe,),
    )
    ended = zip(simulation.run(), entries, strict=True)
    return np.array([max(0.0, run.end_s - entry.job.submit_s - entry.duration_s) for run, entry in ended])


def _at_largest(sizes: Sizes) -> tuple[VcSize, ...]:
    return tuple(VcSize(vc=name, gpus=gpus) for name, gpus in sizes.largest.items() if gpus)


class HeadStarts:
    """Users with a head start: those whose jobs waited longest so far, by their average wait.

    Only what has happened by the time a job comes counts. [helios Implication 7: "dynamically adjust temporary
    priorities to users, especially to the marquee ones"; how is ours]
    """

    def __init__(self, user: Codes, users: int, part: float) -> None:
        self._user = user
        self._waited_s = np.zeros(users)
        self._jobs = np.zeros(users)
        self._submit_s: dict[int, float] = {}
        self._most = max(1, round(part * users))
        self._bar_s = np.inf
        self._seen = 0

    def __call__(self, entry: TraceJob) -> float:
        """When a job counts as come."""
        job = entry.job
        self._submit_s[job.sequence] = job.submit_s
        self._raise_bar()
        user = int(self._user[job.sequence])
        if user < 0 or self._waited_s[user] < self._bar_s:
            return job.submit_s
        return job.submit_s - float(self._waited_s[user] / self._jobs[user])

    def observe(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        """Jobs started: their waits count from now on."""
        for action in actions:
            if isinstance(action, Start):
                user = int(self._user[action.row])
                if user >= 0:
                    self._waited_s[user] += now_s - self._submit_s.pop(action.row)
                    self._jobs[user] += 1

    def _raise_bar(self) -> None:
        """What the marquee users have waited at least; with thousands of users not looked up for every job."""
        self._seen += 1
        if self._seen % (1 + len(self._waited_s) // 1000) == 0:
            bar_s = float(np.partition(self._waited_s, -self._most)[-self._most])
            self._bar_s = bar_s if bar_s > 0 else np.inf
