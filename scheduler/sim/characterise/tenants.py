"""Comparison of virtual clusters: load, waiting, and imbalance between them. PURE. [helios §3.1.3]"""

import math
from dataclasses import dataclass

import numpy as np

from farside.scheduler.sim.characterise.cluster_size import Sizes, gpus_at
from farside.scheduler.sim.characterise.usage_over_time import bounded_step_s, edges, mean_use
from farside.scheduler.sim.cluster import WHOLE
from farside.scheduler.sim.trace.log import JobLog
from farside.scheduler.table import Floats

MINUTE_S = 60.0
STEP_S = 600.0
# What is counted is bounded, not the log: a thousand virtual clusters for half a year stay at ten minutes.
MOST_CELLS, MOST_MINUTES = 30_000_000, 2_000_000
SHOWN = 10  # the largest ones, as in Figure 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Virtual cluster, with its use and the waits of its jobs.

    Attributes:
        gpus: That it has at its largest.
        jobs: GPU jobs.
        box: Utilisation by minute: lower whisker, first quartile, median, third quartile, upper whisker.
        mean_gpus: Of its GPU jobs.
        mean_wait_s: NaN where no wait is known.
        mean_duration_s: Of its GPU jobs.
    """

    name: str
    gpus: int
    jobs: int
    box: tuple[float, float, float, float, float]
    mean_gpus: float
    mean_wait_s: float
    mean_duration_s: float


def tenants(log: JobLog, sizes: Sizes) -> tuple[Tenant, ...]:
    """The `SHOWN` virtual clusters with most GPUs that have jobs, the highest median utilisation first. [Figure 4]"""
    largest = sizes.largest
    codes = [(code, name) for code, name in enumerate(log.vcs) if largest.get(name) and (log.vc == code).any()]
    codes.sort(key=lambda entry: -largest[entry[1]])
    found = [_tenant(log.of(log.vc == code), name, sizes) for code, name in codes[:SHOWN]]
    return tuple(sorted(found, key=lambda one: -one.box[2]))


def _tenant(log: JobLog, name: str, sizes: Sizes) -> Tenant:
    first_s, last_s = float(log.submit_s[0]), float(log.submit_s[-1])
    minutes_s = edges(first_s, last_s, bounded_step_s(first_s, last_s, MINUTE_S, MOST_MINUTES))
    use = mean_use(log.start_s, log.duration_s, log.gpus.astype(float), minutes_s)
    has = sizes.at(minutes_s[:-1], name)
    share = use[has > 0] / has[has > 0]
    wait_s = log.wait_s
    return Tenant(
        name=name,
        gpus=sizes.largest[name],
        jobs=len(log),
        box=box_of(share),
        mean_gpus=float(log.gpus.mean()),
        mean_wait_s=float(np.nanmean(wait_s)) if not np.isnan(wait_s).all() else math.nan,
        mean_duration_s=float(log.duration_s.mean()),
    )


def box_of(values: Floats) -> tuple[float, float, float, float, float]:
    """A box and its whiskers, which end at the last values within 1.5 times the quartiles' distance."""
    low, middle, high = np.percentile(values, (25, 50, 75))
    reach = 1.5 * (high - low)
    within = values[(values >= low - reach) & (values <= high + reach)]
    return float(within.min()), float(low), float(middle), float(high), float(within.max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """Imbalance: demand that waits in some virtual clusters while others have idle GPUs.

    Attributes:
        waiting_gpu_s: GPU seconds that jobs were waiting for.
        met_gpu_s: Of them, those that idle GPUs of virtual clusters in which nobody waited could have given.
        step_s: The intervals that it was counted by.
    """

    waiting_gpu_s: float
    met_gpu_s: float
    step_s: float = STEP_S

    @property
    def share(self) -> float:
        """Share of waiting that idle GPUs of other virtual clusters could have avoided; 0 if no job waited."""
        return self.met_gpu_s / self.waiting_gpu_s if self.waiting_gpu_s else 0.0


def imbalance(log: JobLog, sizes: Sizes) -> Imbalance:
    """By steps of ten minutes; longer ones where virtual clusters times steps would be more than `MOST_CELLS`.

    ``log``: of GPU jobs whose starts are known, in more than one virtual cluster.
    """
    parts = sizes.parts
    first_s, last_s = float(log.submit_s[0]), float(log.submit_s[-1])
    step_s = bounded_step_s(first_s, last_s, STEP_S, MOST_CELLS // max(1, len(log.vcs)))
    steps_s = edges(first_s, last_s, step_s)
    waiting, idle = np.zeros(len(steps_s) - 1), np.zeros(len(steps_s) - 1)
    wait_s = np.nan_to_num(log.wait_s)
    # Sorted once by virtual cluster, as a comparison with each of a thousand would read the log a thousand times.
    order = np.argsort(log.vc, kind="stable")
    bounds = np.searchsorted(log.vc[order], np.arange(len(log.vcs) + 1))
    for code, name in enumerate(log.vcs):
        if name not in parts or name == WHOLE:
            continue
        rows = order[bounds[code] : bounds[code + 1]]
        gpus = log.gpus[rows].astype(float)
        wants = mean_use(log.submit_s[rows], wait_s[rows], gpus, steps_s)
        uses = mean_use(log.start_s[rows], log.duration_s[rows], gpus, steps_s)
        waiting += wants
        idle += np.where(wants < 1e-9, np.maximum(0.0, gpus_at(parts[name], steps_s[:-1]) - uses), 0.0)
    met = np.minimum(waiting, idle)
    return Imbalance(waiting_gpu_s=float(waiting.sum()) * step_s, met_gpu_s=float(met.sum()) * step_s, step_s=step_s)
