"""Features of a job for the boosted trees, all known at submission. PURE. [helios §4.2.2]

User, virtual cluster and bucket of the name, GPUs and CPUs, month, weekday, hour and minute are the paper's. Ours are
what the rolling estimate knows: with them the trees need not learn each name by heart, and learn instead how far to
trust it.
"""

import math

import numpy as np

from farside.scheduler.predict.rolling_estimate import LEVELS, RollingEstimate
from farside.scheduler.state import Job
from farside.scheduler.table import Floats
from farside.units import CALENDAR_FROM_S, CALENDAR_UNTIL_S

CATEGORIES = ("user", "vc", "bucket")
FEATURES = (
    *CATEGORIES, "gpus", "cpus", "month", "weekday", "hour", "minute",
    "rolling_log_s", "rolling_jobs", "rolling_nearest", *(f"{level}_log_s" for level in LEVELS),
)  # fmt: skip
USER = FEATURES.index("user")
MOST_CATEGORIES = 1000  # of each kind: the most frequent

# 1970-01-01 was a Thursday; Monday is 0.
_DAY_S, _THURSDAY = 86400, 3


def feature_row(job: Job, rolling: RollingEstimate, codes: tuple[float, float, float]) -> list[float]:
    """A job's row. ``codes``: numbers of user, virtual cluster and bucket, NaN where it has none."""
    cpus = job.cpus_per_gpu * job.gpus
    month, weekday, hour, minute = calendar(job.submit_s)
    return [
        *codes, float(job.gpus), cpus if cpus > 0 else math.nan, month, weekday, hour, minute,
        math.log(rolling.duration_s), float(rolling.jobs), float(rolling.nearest), *rolling.log_means,
    ]  # fmt: skip


def calendar(at_s: float) -> tuple[float, float, float, float]:
    """Month from 1, weekday from 0 for Monday, hour and minute; all NaN on a time line that has no dates."""
    if not CALENDAR_FROM_S <= at_s < CALENDAR_UNTIL_S:
        return math.nan, math.nan, math.nan, math.nan
    days, second = divmod(int(at_s), _DAY_S)
    month = int(np.datetime64(days, "D").astype("datetime64[M]").astype(int)) % 12 + 1
    return float(month), float((days + _THURSDAY) % 7), float(second // 3600), float(second // 60 % 60)


class Codes:
    """Names of one kind, numbered from 0 in the order in which they come."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def add(self, name: str) -> float:
        """The number of a name, a new one if need be; NaN of an empty one."""
        return float(self.numbers.setdefault(name, len(self.numbers))) if name else math.nan

    @property
    def names(self) -> list[str]:
        """By number."""
        return list(self.numbers)


def frequent(column: Floats) -> dict[int, int]:
    """Categories for the most frequent numbers of a column, by number, the most frequent is 0."""
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    # Stable: of equally frequent numbers the lower one is kept, so that equal logs give equal tables.
    chosen = np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]
    return {int(values[at]): category for category, at in enumerate(chosen.tolist())}
