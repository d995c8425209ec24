"""Load of a cluster by hour of day and by month. PURE. [helios §3.1.1, §3.1.2; Figures 2, 3]"""

from dataclasses import dataclass

import numpy as np

from farside.scheduler.sim.characterise.cluster_size import Sizes
from farside.scheduler.sim.characterise.usage_over_time import edges, mean_use
from farside.scheduler.sim.trace.log import JobLog
from farside.scheduler.table import Floats

HOUR_S, DAY_S = 3600.0, 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """Average day of a cluster, by hour: GPU use and submissions.

    Attributes:
        days: Whole days that the log covers.
        submissions: Jobs submitted in an hour, on average, by hour of day.
        utilisation: GPUs in use, of all, by hour of day; None where it is not known.
        submissions_pattern: Of how the logarithm of submissions differs within days, the share that the hour of day
            explains, less what chance would; ``utilisation_pattern``: likewise, of use.
    """

    days: int
    submissions: Floats
    utilisation: Floats | None
    submissions_pattern: float
    utilisation_pattern: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """Month of GPU jobs: submissions, and shares of GPU use."""

    name: str
    days: float
    single: int
    multi: int
    use_single: float | None
    use_multi: float | None

    @property
    def utilisation(self) -> float | None:
        """Share of all GPUs in use."""
        return None if self.use_single is None or self.use_multi is None else self.use_single + self.use_multi


def diurnal(log: JobLog, sizes: Sizes | None) -> Diurnal:
    """Average day by hour. ``log``: GPU jobs only."""
    hours_s = _whole_days(log)
    counts = np.histogram(log.submit_s, hours_s)[0].astype(float).reshape(-1, 24)
    use = None
    if sizes is not None:
        busy = mean_use(log.start_s, log.duration_s, log.gpus.astype(float), hours_s)
        use = (busy / sizes.at(hours_s[:-1])).reshape(-1, 24)
    return Diurnal(
        days=len(counts),
        submissions=counts.mean(axis=0),
        utilisation=None if use is None else use.mean(axis=0),
        submissions_pattern=pattern(np.log1p(counts)),  # a sweep of a thousand jobs is not a thousand decisions
        utilisation_pattern=None if use is None else pattern(use),
    )


def _whole_days(log: JobLog) -> Floats:
    """Edges of the hours of all days that lie between the first and the last submission, at least of one day."""
    first_s = np.ceil(log.submit_s[0] / DAY_S) * DAY_S
    last_s = np.floor(log.submit_s[-1] / DAY_S) * DAY_S
    if last_s <= first_s:
        first_s = np.floor(log.submit_s[0] / DAY_S) * DAY_S
        last_s = first_s + DAY_S
    return edges(float(first_s), float(last_s), HOUR_S)


def pattern(days: Floats) -> float:
    """The share of the variance within days that the hour explains, less what it would by chance; 0 to 1.

    ``days``: a row a day, a column an hour. [helios §3.1.1 sees the pattern by eye; the statistic is ours]
    """
    # Within days: a busy week does not count as a pattern.
    within = days - days.mean(axis=1, keepdims=True)
    total = float((within**2).sum())
    if len(days) < 2 or total <= 0:
        return 0.0
    explained = float(len(days) * (within.mean(axis=0) ** 2).sum())
    by_chance = (total - explained) / (len(days) - 1)
    return max(0.0, (explained - by_chance) / total)


def months(log: JobLog, sizes: Sizes | None) -> tuple[Month, ...]:
    """Months of the calendar. ``log``: GPU jobs, with a calendar."""
    first_s, last_s = float(log.submit_s[0]), float(log.submit_s[-1])
    first, last = _month(first_s), _month(last_s)
    starts = np.arange(first, last + 2).astype("datetime64[M]")
    bounds_s = starts.astype("datetime64[s]").astype(float)
    # The outer months are cut to the log; just after its last submission, so that this lies within.
    bounds_s[0], bounds_s[-1] = first_s, np.nextafter(last_s, np.inf)
    is_single = log.gpus == 1
    single, multi = (np.histogram(log.submit_s[rows], bounds_s)[0] for rows in (is_single, ~is_single))
    use = None if sizes is None else [_use(log.of(rows), bounds_s, sizes) for rows in (is_single, ~is_single)]
    return tuple(
        Month(
            name=str(starts[at]),
            days=float(bounds_s[at + 1] - bounds_s[at]) / DAY_S,
            single=int(single[at]),
            multi=int(multi[at]),
            use_single=None if use is None else float(use[0][at]),
            use_multi=None if use is None else float(use[1][at]),
        )
        for at in range(len(starts) - 1)
    )


def _month(at_s: float) -> int:
    """Months since January 1970."""
    return int(np.array(int(at_s), dtype="datetime64[s]").astype("datetime64[M]").astype(int))


def _use(log: JobLog, bounds_s: Floats, sizes: Sizes) -> Floats:
    hours_s = edges(float(bounds_s[0]), float(bounds_s[-1]), HOUR_S)
    gpus = float(sizes.at(hours_s[:-1]).mean())
    return mean_use(log.start_s, log.duration_s, log.gpus.astype(float), bounds_s) / gpus
