"""Description of a trace in figures: sizes, lengths, arrivals and demand of its jobs. PURE."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from farside.scheduler.sim.trace.bins import BINS, CUTS
from farside.scheduler.sim.trace.job import Trace, TraceJob
from farside.scheduler.table import Floats

PERCENTILES = (5, 25, 50, 75, 90, 95, 99)
HOUR_S = 3600
DAY_S = 24 * HOUR_S
_THURSDAY = 3  # the first of January 1970, counted from Monday


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How figures spread. ``percentiles``: as many as `PERCENTILES`, between neighbours linearly."""

    mean: float
    lowest: float
    highest: float
    percentiles: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of the trace: its jobs, and the GPU seconds that they run for."""

    name: str
    jobs: int
    gpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the trace asks of a cluster.

    Attributes:
        gpus: Of the cluster.
        offered: GPU seconds of all jobs, by the GPU seconds that the cluster has between the first submission and the
            last. Above 1 the queue grows as long as jobs come. None where all come at once.
        too_large: Jobs with more GPUs than the cluster.
    """

    gpus: int
    offered: float | None
    too_large: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A trace in figures.

    Attributes:
        users: Different ones; 0 where the trace names none. ``names``: of jobs, likewise.
        first_s: The first submission, ``last_s`` the last, on the trace's time line.
        gpu_s: GPU seconds of all jobs.
        duration_s: How long jobs run.
        gap_s: Between one submission and the next; None for a single job.
        by_gpus: By the number of GPUs.
        by_vc: By virtual cluster, the largest share of GPU seconds first.
        by_bin: By size and length, for each way to cut (`CUTS`).
        by_hour: Submissions by hour of day. Where the trace has no calendar, by hour since midnight of a day that
            begins with its time line.
        by_day: Submissions by day of week from Monday on; empty where the trace has no calendar.
        load: None unless a cluster was named.
    """

    path: str
    fmt: str
    jobs: int
    skipped: int
    notes: tuple[tuple[int, str], ...]
    has_calendar: bool
    users: int
    names: int
    first_s: float
    last_s: float
    gpu_s: float
    duration_s: Spread
    gap_s: Spread | None
    by_gpus: tuple[Share, ...]
    by_vc: tuple[Share, ...]
    by_bin: tuple[tuple[str, tuple[Share, ...]], ...]
    by_hour: tuple[int, ...]
    by_day: tuple[int, ...]
    load: Load | None


def describe(trace: Trace, *, gpus: int = 0) -> Description:
    """A trace in figures; ``gpus``: of the cluster that it is meant for, 0 when there is none."""
    jobs = trace.jobs
    assert jobs, "readers give at least one"
    submit_s = np.array([entry.job.submit_s for entry in jobs])
    duration_s = np.array([entry.duration_s for entry in jobs])
    gpu_s = duration_s * np.array([entry.job.gpus for entry in jobs])
    hours = (submit_s // HOUR_S % 24).astype(int)
    days = ((submit_s // DAY_S + _THURSDAY) % 7).astype(int)
    return Description(
        path=trace.path,
        fmt=trace.fmt,
        jobs=len(jobs),
        skipped=trace.skipped,
        notes=trace.notes,
        has_calendar=trace.has_calendar,
        users=len({entry.job.user for entry in jobs} - {""}),
        names=len({entry.job.name for entry in jobs} - {""}),
        first_s=float(submit_s[0]),
        last_s=float(submit_s[-1]),
        gpu_s=float(gpu_s.sum()),
        duration_s=_spread(duration_s),
        gap_s=_spread(np.diff(submit_s)) if len(jobs) > 1 else None,
        by_gpus=tuple(sorted(_shares([str(entry.job.gpus) for entry in jobs], gpu_s), key=lambda one: int(one.name))),
        by_vc=tuple(sorted(_shares([entry.job.vc for entry in jobs], gpu_s), key=lambda one: (-one.gpu_s, one.name))),
        by_bin=tuple((name, _by_bin(jobs, gpu_s, name)) for name in CUTS),
        by_hour=tuple(np.bincount(hours, minlength=24).tolist()),
        by_day=tuple(np.bincount(days, minlength=7).tolist()) if trace.has_calendar else (),
        load=_load(jobs, gpus) if gpus else None,
    )


def offered_load(jobs: Sequence[TraceJob], gpus: int) -> float | None:
    """GPU seconds that jobs need, by those that a cluster has while they come; None where all come at once."""
    span_s = jobs[-1].job.submit_s - jobs[0].job.submit_s
    if not span_s:
        return None
    return math.fsum(entry.job.gpus * entry.duration_s for entry in jobs) / (span_s * gpus)


def _load(jobs: Sequence[TraceJob], gpus: int) -> Load:
    too_large = sum(entry.job.gpus > gpus for entry in jobs)
    return Load(gpus=gpus, offered=offered_load(jobs, gpus), too_large=too_large)


def _spread(values: Floats) -> Spread:
    return Spread(
        mean=float(values.mean()),
        lowest=float(values.min()),
        highest=float(values.max()),
        percentiles=tuple(np.percentile(values, PERCENTILES).tolist()),
    )


def _shares(names: Sequence[str], gpu_s: Floats) -> list[Share]:
    jobs = Counter(names)
    total = dict.fromkeys(jobs, 0.0)
    for name, one in zip(names, gpu_s.tolist(), strict=True):
        total[name] += one
    return [Share(name=name, jobs=jobs[name], gpu_s=total[name]) for name in jobs]


def _by_bin(jobs: Sequence[TraceJob], gpu_s: Floats, cut: str) -> tuple[Share, ...]:
    bins = CUTS[cut]
    found = {share.name: share for share in _shares([bins.of(one.job.gpus, one.duration_s) for one in jobs], gpu_s)}
    return tuple(found.get(name, Share(name=name, jobs=0, gpu_s=0.0)) for name in BINS)
