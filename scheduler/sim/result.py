"""What a simulation came to: figures of all jobs and of groups of them. PURE.

JCT is from submission to the end, the queueing delay is all of it that the job did not hold GPUs, waiting again after a
preemption included. Utilisation is GPU time held over GPU time there, from the first submission to the last end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farside.scheduler.sim.simulation import Run
from farside.scheduler.sim.trace import TraceJob
from farside.scheduler.state import Cluster
from farside.scheduler.table import Floats

# Bins of the paper's testbed (4-GPU machines, scaled down) and of the original trace. [tiresias §3.5.1]
TESTBED_SMALL_GPUS, TESTBED_SHORT_S = 4, 800.0
ORIGINAL_SMALL_GPUS, ORIGINAL_SHORT_S = 8, 4 * 3600.0
# Helios's groups by duration. [helios §4.2]
HELIOS_SHORT_S, HELIOS_LONG_S = 15 * 60.0, 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of a group of jobs; NaN where it is empty. Times in seconds."""

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
    """All jobs' columns, in the order of the trace, and the figures made of them."""

    submit_s: Floats
    start_s: Floats
    end_s: Floats
    duration_s: Floats
    gpus: Floats
    held_s: Floats
    preemptions: Floats
    cost_s: Floats
    utilisation: float
    all: Figures
    by_vc: Mapping[str, Figures]
    by_bin: Mapping[str, Figures]
    by_group: Mapping[str, Figures]

    @property
    def jct_s(self) -> Floats:
        """Submission to end."""
        return self.end_s - self.submit_s

    @property
    def queue_s(self) -> Floats:
        """Of the JCT, the time without GPUs."""
        return self.jct_s - self.held_s


def finish_time_fairness(jct_s: Floats, duration_s: Floats, contention: float) -> Floats:
    """rho: a job's JCT over what it would be with an equal share of the cluster, its duration times ``contention``.

    Above 1 a job did worse than sharing equally. ``contention`` is the average number of jobs that competed for each
    share, at least 1.
    """
    shared: Floats = np.maximum(duration_s, 1.0) * max(1.0, contention)
    return jct_s / shared


def jain_index(values: Floats) -> float:
    """Jain's index of fairness: 1 where all are equal, 1/n where one has all; NaN of nothing."""
    if not len(values):
        return float("nan")
    squares = float(np.sum(values**2))
    return float(np.sum(values)) ** 2 / (len(values) * squares) if squares else 1.0


def results(jobs: Sequence[TraceJob], runs: Sequence[Run], cluster: Cluster) -> Results:
    """The figures of a simulation that has ended."""
    submit_s = np.array([job.job.submit_s for job in jobs])
    gpus = np.array([float(job.job.gpus) for job in jobs])
    duration_s = np.array([job.duration_s for job in jobs])
    start_s = np.array([run.start_s for run in runs])
    end_s = np.array([run.end_s for run in runs])
    held_s = np.array([run.held_s for run in runs])
    preemptions = np.array([float(run.preemptions) for run in runs])
    cost_s = np.array([run.cost_s for run in runs])
    span_s = float(np.max(end_s) - np.min(submit_s)) if len(jobs) else 0.0
    capacity = span_s * cluster.gpus
    offered = float(np.sum(gpus * duration_s)) / capacity if capacity else 0.0
    jct_s = end_s - submit_s
    rho = finish_time_fairness(jct_s, duration_s, offered)

    def figures(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Figures:
        return _figures(
            jct_s=jct_s[chosen], queue_s=(jct_s - held_s)[chosen], submit_s=submit_s[chosen], end_s=end_s[chosen],
            preemptions=preemptions[chosen], cost_s=cost_s[chosen], rho=rho[chosen],
        )  # fmt: skip

    vcs = np.array([job.job.vc for job in jobs], dtype=object)
    short, small = duration_s < TESTBED_SHORT_S, gpus <= TESTBED_SMALL_GPUS
    return Results(
        submit_s=submit_s, start_s=start_s, end_s=end_s, duration_s=duration_s, gpus=gpus, held_s=held_s,
        preemptions=preemptions, cost_s=cost_s,
        utilisation=float(np.sum(gpus * held_s)) / capacity if capacity else 0.0,
        all=figures(np.ones(len(jobs), dtype=bool)),
        by_vc={vc.name: figures(vcs == vc.name) for vc in cluster.virtual_clusters},
        by_bin={
            "SS": figures(small & short), "SL": figures(small & ~short),
            "LS": figures(~small & short), "LL": figures(~small & ~short),
        },
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
        queued_jobs=int(np.sum(queue_s > 0)),
        preemptions=int(np.sum(preemptions)),
        preemption_cost_s=float(np.sum(cost_s)),
        makespan_s=0.0 if is_empty else float(np.max(end_s) - np.min(submit_s)),
        avg_rho=float("nan") if is_empty else float(np.mean(rho)),
        jain=jain_index(rho),
    )  # fmt: skip
