"""Figures of a simulation: for all jobs and for groups of them. PURE.

JCT is from submission to the end, the queueing delay is all of it that the job did not hold GPUs, waiting again after a
preemption included.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farside.scheduler.sim.simulation import Run
from farside.scheduler.sim.trace.bins import BINS, ORIGINAL, SCALED, JobBins
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Cluster, Resize, VirtualCluster
from farside.scheduler.table import Floats

# A shorter queueing delay is the rounding of sums, not a wait.
QUEUED_S = 1e-3
# Helios's groups by duration. [helios §4.2]
HELIOS_SHORT_S, HELIOS_LONG_S = 15 * 60.0, 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of a group of jobs; NaN if the group is empty. Times in seconds.

    ``queued_jobs`` waited at any time, ``makespan_s`` is from the first submission to the last end, ``avg_rho`` and
    ``jain`` are finish-time fairness and Jain's index of it.
    """

    jobs: int
    avg_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    p99_jct_s: float
    max_jct_s: float
    avg_queue_s: float
    median_queue_s: float
    p95_queue_s: float
    p99_queue_s: float
    queued_jobs: int
    preemptions: int
    preemption_cost_s: float
    makespan_s: float
    avg_rho: float
    jain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Results of a simulation: columns of all jobs, in the order of the trace, and figures."""

    submit_s: Floats
    start_s: Floats
    end_s: Floats
    duration_s: Floats
    gpus: Floats
    held_s: Floats
    preemptions: Floats
    cost_s: Floats
    all: Figures
    by_vc: Mapping[str, Figures]
    by_bin: Mapping[str, Figures]
    by_scaled_bin: Mapping[str, Figures]
    by_group: Mapping[str, Figures]

    @property
    def jct_s(self) -> Floats:
        """Submission to end."""
        return self.end_s - self.submit_s

    @property
    def queue_s(self) -> Floats:
        """Part of the JCT in which the job had no GPUs."""
        return self.jct_s - self.held_s


def average_jobs(submit_s: Floats, end_s: Floats) -> Floats:
    """Average number of jobs, running or waiting, over each job's JCT; at least 1."""
    at_s = np.concatenate((submit_s, end_s))
    change = np.concatenate((np.ones(len(submit_s)), -np.ones(len(end_s))))
    order = np.argsort(at_s, kind="stable")
    at_s, count = at_s[order], np.cumsum(change[order])
    area = np.concatenate(([0.0], np.cumsum(count[:-1] * np.diff(at_s)))) if len(at_s) else at_s
    span_s = end_s - submit_s
    areas = np.interp(end_s, at_s, area) - np.interp(submit_s, at_s, area) if len(at_s) else span_s
    average: Floats = np.divide(areas, span_s, out=np.ones(len(span_s)), where=span_s > 0)
    return np.maximum(average, 1.0)


def average_gpus(vc: VirtualCluster, resizes: Sequence[Resize], submit_s: Floats, end_s: Floats) -> Floats:
    """Average GPUs of a virtual cluster over each job's JCT; at least 1."""
    changes = [one for one in resizes if one.vc == vc.name]
    counts = np.array([vc.gpus, *(sum(node.gpus for node in one.nodes) for one in changes)], dtype=np.float64)
    changed_s = np.array([one.at_s for one in changes])
    average: Floats = counts[np.searchsorted(changed_s, submit_s, side="right")]
    if changes and len(submit_s):
        first_s, last_s = min(submit_s.min(), changed_s[0]), max(end_s.max(), changed_s[-1])
        at_s = np.concatenate(([first_s], changed_s, [last_s]))
        area = np.concatenate(([0.0], np.cumsum(counts * np.diff(at_s))))
        span_s = end_s - submit_s
        areas = np.interp(end_s, at_s, area) - np.interp(submit_s, at_s, area)
        average = np.divide(areas, span_s, out=average, where=span_s > 0)
    return np.maximum(average, 1.0)


def finish_time_fairness(
    submit_s: Floats, end_s: Floats, duration_s: Floats, gpus: Floats, cluster_gpus: Floats | int
) -> Floats:
    """Finish-time fairness rho of each job: its JCT over its JCT with an equal share of the GPUs.

    The share is that of the jobs that there were during its life, on average; with fewer GPUs than it needs a job takes
    longer in proportion, with more no less. Above 1 it did worse than sharing equally, as Themis defines it.
    ``cluster_gpus``: of the cluster; where its size changes, what it had during each job's life.
    """
    share = cluster_gpus / average_jobs(submit_s, end_s)
    alone_s = np.maximum(duration_s, 1.0) * np.maximum(1.0, gpus / share)
    rho: Floats = (end_s - submit_s) / alone_s
    return rho


def jain_index(values: Floats) -> float:
    """Jain's index of fairness: 1 where all are equal, 1/n where one has all; NaN of nothing."""
    if not len(values):
        return float("nan")
    squares = float(np.sum(values**2))
    return float(np.sum(values)) ** 2 / (len(values) * squares) if squares else 1.0


def results(
    jobs: Sequence[TraceJob],
    runs: Sequence[Run],
    cluster: Cluster,
    *,
    vcs: Sequence[str] | None = None,
    resizes: Sequence[Resize] = (),
) -> Results:
    """Compute the figures of a simulation that has ended.

    Args:
        jobs: The trace.
        runs: What became of each job; all have ended.
        cluster: What they ran on.
        vcs: The virtual cluster that each job counts for; by default the one that it ran in.
        resizes: How the cluster's parts changed in size, by time.
    """
    submit_s = np.array([job.job.submit_s for job in jobs])
    gpus = np.array([float(job.job.gpus) for job in jobs])
    duration_s = np.array([job.duration_s for job in jobs])
    start_s = np.array([run.start_s for run in runs])
    end_s = np.array([run.end_s for run in runs])
    held_s = np.array([run.held_s for run in runs])
    preemptions = np.array([float(run.preemptions) for run in runs])
    cost_s = np.array([run.cost_s for run in runs])
    jct_s = end_s - submit_s
    homes = np.array([job.job.vc for job in jobs], dtype=object)
    rho = np.ones(len(jobs))
    for vc in cluster.virtual_clusters:
        at = homes == vc.name
        has = average_gpus(vc, resizes, submit_s[at], end_s[at])
        rho[at] = finish_time_fairness(submit_s[at], end_s[at], duration_s[at], gpus[at], has)

    def figures(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Figures:
        return _figures(
            jct_s=jct_s[chosen], queue_s=(jct_s - held_s)[chosen], submit_s=submit_s[chosen], end_s=end_s[chosen],
            preemptions=preemptions[chosen], cost_s=cost_s[chosen], rho=rho[chosen],
        )  # fmt: skip

    def binned(bins: JobBins) -> Mapping[str, Figures]:
        of_bin = np.array([bins.of(int(gpus[at]), float(duration_s[at])) for at in range(len(jobs))], dtype=object)
        return {name: figures(of_bin == name) for name in BINS}

    of_vc = homes if vcs is None else np.array(list(vcs), dtype=object)
    return Results(
        submit_s=submit_s, start_s=start_s, end_s=end_s, duration_s=duration_s, gpus=gpus, held_s=held_s,
        preemptions=preemptions, cost_s=cost_s,
        all=figures(np.ones(len(jobs), dtype=bool)),
        by_vc={name: figures(of_vc == name) for name in dict.fromkeys(of_vc.tolist())},
        by_bin=binned(ORIGINAL),
        by_scaled_bin=binned(SCALED),
        by_group={
            "short": figures(duration_s < HELIOS_SHORT_S),
            "middle": figures((duration_s >= HELIOS_SHORT_S) & (duration_s <= HELIOS_LONG_S)),
            "long": figures(duration_s > HELIOS_LONG_S),
        },
    )  # fmt: skip


def _figures(
    *, jct_s: Floats, queue_s: Floats, submit_s: Floats, end_s: Floats, preemptions: Floats, cost_s: Floats, rho: Floats
) -> Figures:
    is_empty = not len(jct_s)

    def of(values: Floats, percent: float) -> float:
        return float("nan") if is_empty else float(np.percentile(values, percent))

    return Figures(
        jobs=len(jct_s),
        avg_jct_s=float("nan") if is_empty else float(np.mean(jct_s)),
        median_jct_s=of(jct_s, 50), p95_jct_s=of(jct_s, 95), p99_jct_s=of(jct_s, 99), max_jct_s=of(jct_s, 100),
        avg_queue_s=float("nan") if is_empty else float(np.mean(queue_s)),
        median_queue_s=of(queue_s, 50), p95_queue_s=of(queue_s, 95), p99_queue_s=of(queue_s, 99),
        queued_jobs=int(np.sum(queue_s > QUEUED_S)),
        preemptions=int(np.sum(preemptions)),
        preemption_cost_s=float(np.sum(cost_s)),
        makespan_s=0.0 if is_empty else float(np.max(end_s) - np.min(submit_s)),
        avg_rho=float("nan") if is_empty else float(np.mean(rho)),
        jain=jain_index(rho),
    )  # fmt: skip
