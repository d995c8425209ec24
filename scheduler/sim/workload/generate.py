"""Random traces: recipes for workloads, and the jobs of a recipe. PURE; the random source is an argument.

How it works
  Jobs belong to submissions (arrivals.py), and those of one submission share user, name and GPUs. A user has a few
  names that recur, some far more often than others, and a name has its own typical length, so that history tells
  something of the next job with it, as in real clusters [helios §4.2]. That is done by ranks: each job gets a score
  from its name's, its own and its size's part, and the longest duration goes to the highest score. So durations are
  distributed exactly as the recipe says, whoever they go to.

  The span of the trace follows from the load that it is to offer: what all jobs need, by what the cluster has a second.

  Everything is done for all jobs at once, in numpy; a million take seconds.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from farside.errors import ConfigError
from farside.scheduler.sim.trace.job import Trace, TraceJob
from farside.scheduler.sim.workload.arrivals import Arrivals, submissions, submit_times_s
from farside.scheduler.sim.workload.durations import Lognormal, Service
from farside.scheduler.sim.workload.naming import Naming, recurring_name, single_name, with_day, with_slip
from farside.scheduler.state import Job
from farside.scheduler.table import Floats
from farside.units import CALENDAR_UNTIL_S

Whole = NDArray[np.intp]
# GPUs and how many jobs ask for so many, relative to each other; likewise virtual clusters.
GpuMix = tuple[tuple[int, float], ...]
VcMix = tuple[tuple[str, float], ...]

MONDAY_S = 1704067200.0  # the first of January 2024
CENTURY_S = 36525 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A recipe for a trace.

    Attributes:
        jobs: How many.
        arrivals: When they come.
        service: How long they run.
        gpu_mix: What they ask for.
        vc_mix: Where they go, by virtual cluster. A user belongs to one.
        cluster_gpus: Of the cluster that the trace is to load.
        load: GPU seconds of all jobs, by those of the cluster from the first submission to the last.
        interval_s: Instead of a load, the mean time between two jobs; 0: the load decides.
        start_s: Of the first submission, seconds since 1970.
        users: In each virtual cluster.
        names: Of jobs, by user and number of GPUs.
        inequality: How unequal users and names are: the n-th comes as often as n to the power of minus this.
        recurrence: What part of durations' differences goes with the name of the job, from 0 (none) to 1 (all).
        growth: How much longer jobs of many GPUs run, against chance, with each doubling. 0: as long as others.
        repeats: The share of submissions whose name recurs. The names of the others come once, and tell nothing.
        newcomers: The share of users of whom nothing comes in the first half of the trace.
        is_sized_by_name: A name always asks for the same GPUs; otherwise each submission with it draws anew.
        naming: How names are written; none: as short as can be.
    """

    jobs: int = 1000
    arrivals: Arrivals = field(default_factory=Arrivals)
    service: Service = field(default_factory=Lognormal)
    gpu_mix: GpuMix = ((1, 0.5), (2, 0.1), (4, 0.2), (8, 0.2))
    vc_mix: VcMix = (("", 1.0),)
    cluster_gpus: int = 64
    load: float = 0.8
    interval_s: float = 0.0
    start_s: float = MONDAY_S
    users: int = 40
    names: int = 5
    inequality: float = 1.0
    recurrence: float = 0.5
    growth: float = 0.2
    repeats: float = 1.0
    newcomers: float = 0.0
    is_sized_by_name: bool = False
    naming: Naming | None = None

    def __post_init__(self) -> None:
        largest = max((gpus for gpus, _ in self.gpu_mix), default=0)
        if not 1 <= self.jobs <= 10_000_000:
            raise ValueError(f"jobs must be from 1 to 10000000, is {self.jobs}")
        if not all(gpus >= 1 and weight > 0 for gpus, weight in self.gpu_mix) or not self.gpu_mix:
            raise ValueError("gpu_mix must have numbers of GPUs from 1 on, with weights above 0")
        if not all(weight > 0 for _, weight in self.vc_mix) or not self.vc_mix:
            raise ValueError("vc_mix must have weights above 0")
        if largest > self.cluster_gpus:
            raise ValueError(f"the cluster of {self.cluster_gpus} GPUs is too small for jobs of {largest}")
        if not (self.load > 0 or self.interval_s > 0) or min(self.load, self.interval_s) < 0:
            raise ValueError(f"load must be above 0, is {self.load:g}")
        if self.users < 1 or self.names < 1 or not 0 <= self.recurrence <= 1:
            raise ValueError("users and names must be at least 1, and recurrence from 0 to 1")
        if not (0 <= self.repeats <= 1 and 0 <= self.newcomers < 1):
            raise ValueError("repeats must be from 0 to 1, newcomers from 0 to below 1")


@dataclass(frozen=True, slots=True)
class Drawn:
    """Jobs as columns, by submit time; ``vc``, ``user`` and ``name`` are numbers.

    A name below 0 comes once. ``slip``: which slip is in the written name; below 0 none.
    """

    submit_s: Floats
    duration_s: Floats
    gpus: Whole
    vc: Whole
    user: Whole
    name: Whole
    slip: Whole


def generate(workload: Workload, rng: np.random.Generator) -> Trace:
    """Jobs of a recipe. The result depends on the seed alone.

    Raises:
        ConfigError: They would come over more than a century, or after the year 9999.
    """
    drawn = draw(workload, rng)
    if drawn.submit_s[-1] >= CALENDAR_UNTIL_S:
        raise ConfigError("the trace would go on after the year 9999", hint="give an earlier --start, or fewer jobs")
    return to_trace(workload, drawn)


def draw(workload: Workload, rng: np.random.Generator) -> Drawn:
    """The jobs of a recipe, as columns; to the millisecond."""
    of = submissions(workload.arrivals, workload.jobs, rng)
    count = int(of[-1]) + 1
    mix = np.array([gpus for gpus, _ in workload.gpu_mix])
    gpu_class = _pick([weight for _, weight in workload.gpu_mix], count, rng)
    vc = _pick([weight for _, weight in workload.vc_mix], count, rng)
    user = _pick(_ranked(workload.users, workload.inequality), count, rng)
    name = _pick(_ranked(workload.names, workload.inequality), count, rng)
    if workload.newcomers:
        user = _without_newcomers(workload, user, rng)
    if workload.is_sized_by_name:
        named = len(workload.vc_mix) * workload.users * workload.names
        gpu_class = _pick([weight for _, weight in workload.gpu_mix], named, rng)[
            (vc * workload.users + user) * workload.names + name
        ]
    # One number for each name of each user, in each size.
    kind = ((vc * workload.users + user) * workload.names + name) * len(mix) + gpu_class
    if workload.repeats < 1:
        once = rng.random(count) >= workload.repeats
        name = np.where(once, -1 - np.arange(count), name)
        kind = np.where(once, name, kind)
    gpus = mix[gpu_class][of]
    duration_s = np.round(_durations(workload, kind[of], gpus, rng), 3)
    span_s = _span_s(workload, duration_s, gpus)
    submit_s = np.round(submit_times_s(workload.arrivals, of, start_s=workload.start_s, span_s=span_s, rng=rng), 3)
    order = np.argsort(submit_s, kind="stable")
    at = of[order]
    slip = np.full(workload.jobs, -1)
    if workload.naming is not None:
        slip = np.where(rng.random(workload.jobs) < workload.naming.typos, rng.integers(1 << 30, size=len(at)), slip)
    return Drawn(submit_s[order], duration_s[order], gpus[order], vc[at], user[at], name[at], slip)


def _without_newcomers(workload: Workload, user: Whole, rng: np.random.Generator) -> Whole:
    """Give submissions by newcomers in the first half of all submissions to other users."""
    is_new = np.zeros(workload.users, dtype=bool)
    is_new[rng.permutation(workload.users)[: int(workload.newcomers * workload.users)]] = True
    weights = np.where(is_new, 0.0, _ranked(workload.users, workload.inequality))
    early = is_new[user] & (np.arange(len(user)) < len(user) // 2)
    found: Whole = np.where(early, _pick(weights.tolist(), len(user), rng), user)
    return found


def _pick(weights: list[float], count: int, rng: np.random.Generator) -> Whole:
    """Places in the list of weights, each as often as its weight says."""
    edges = np.cumsum(weights)
    places: Whole = np.searchsorted(edges, rng.random(count) * edges[-1], side="right")
    return np.minimum(places, len(weights) - 1)


def _ranked(count: int, inequality: float) -> list[float]:
    return [rank**-inequality for rank in range(1, count + 1)]


def _durations(workload: Workload, kind: Whole, gpus: Whole, rng: np.random.Generator) -> Floats:
    jobs = workload.jobs
    names, at = np.unique(kind, return_inverse=True)
    score = np.sqrt(workload.recurrence) * rng.standard_normal(len(names))[at]
    score += np.sqrt(1 - workload.recurrence) * rng.standard_normal(jobs)
    score += workload.growth * np.log2(gpus)
    rank = np.empty(jobs)
    # The order of the scores decides which job is long, and the quantiles how long: so scores of any kind leave the
    # distribution as it is.
    rank[np.argsort(score, kind="stable")] = np.arange(jobs)
    return workload.service.quantile_s((rank + rng.random(jobs)) / jobs)


def _span_s(workload: Workload, duration_s: Floats, gpus: Whole) -> float:
    span_s = workload.interval_s * (workload.jobs - 1)
    if not span_s:
        span_s = float((duration_s * gpus).sum()) / (workload.load * workload.cluster_gpus)
    if span_s > CENTURY_S:
        years = span_s / CENTURY_S * 100
        told = f"{years:,.0f}" if years < 1e6 else "more than a million"
        faster = "a shorter interval" if workload.interval_s else "a higher load"
        raise ConfigError(f"the trace would last {told} years", hint=f"ask for {faster}, or for fewer jobs")
    return span_s


def to_trace(workload: Workload, drawn: Drawn) -> Trace:
    """Columns as jobs."""
    users = [f"{vc}-u{user}" if vc else f"u{user}" for vc, _ in workload.vc_mix for user in range(workload.users)]
    rows = zip(*(column.tolist() for column in _columns(drawn)), strict=True)
    return Trace(
        jobs=tuple(
            TraceJob(
                job=Job(
                    job_id=str(at),
                    sequence=at,
                    submit_s=submit_s,
                    gpus=gpus,
                    vc=workload.vc_mix[vc][0],
                    user=users[vc * workload.users + user],
                    name=_written(workload, vc * workload.users + user, name, gpus, submit_s, slip),
                ),
                duration_s=duration_s,
            )
            for at, (submit_s, duration_s, gpus, vc, user, name, slip) in enumerate(rows)
        )
    )


def _written(workload: Workload, user: int, name: int, gpus: int, submit_s: float, slip: int) -> str:
    if workload.naming is None:
        return f"train{name}x{gpus}" if name >= 0 else f"once{-name}"
    if name < 0:
        return single_name(-name)
    text = recurring_name(workload.naming, user * workload.names + name, gpus)
    return with_day(text if slip < 0 else with_slip(text, slip), submit_s)


def _columns(drawn: Drawn) -> tuple[Floats | Whole, ...]:
    return drawn.submit_s, drawn.duration_s, drawn.gpus, drawn.vc, drawn.user, drawn.name, drawn.slip
