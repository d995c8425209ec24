"""Columns of result tables, in the terminal and in the report: titles, digits, best value. PURE."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from farside.scheduler.sim.result.figures import Figures


class Best(Enum):
    """Direction of a column: which value is the best."""

    LEAST = "least"
    GREATEST = "greatest"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a result table. ``title`` has the unit; ``meaning`` is a sentence for the report."""

    title: str
    of: Callable[[Figures], float]
    best: Best = Best.LEAST
    digits: int = 0
    meaning: str = ""

    def text(self, value: float) -> str:
        """The value as tables show it: thousands apart; a dash where there is none."""
        return "-" if math.isnan(value) else f"{value:,.{self.digits}f}"


COLUMNS = (
    Column(title="avg JCT s", of=lambda f: f.avg_jct_s, meaning="from submission to end, on average"),
    Column(title="median JCT s", of=lambda f: f.median_jct_s),
    Column(title="p95 JCT s", of=lambda f: f.p95_jct_s, meaning="95 of 100 jobs took at most this"),
    Column(title="p99 JCT s", of=lambda f: f.p99_jct_s),
    Column(title="avg queue s", of=lambda f: f.avg_queue_s, meaning="of the JCT, the time without GPUs"),
    Column(title="p95 queue s", of=lambda f: f.p95_queue_s),
    Column(title="queued", of=lambda f: f.queued_jobs, meaning="jobs that waited at all"),
    Column(title="preempted", of=lambda f: f.preemptions, meaning="how often a running job lost its GPUs"),
    Column(title="cost s", of=lambda f: f.preemption_cost_s, meaning="what that cost: pausing, saving, resuming"),
    Column(title="makespan s", of=lambda f: f.makespan_s, meaning="from the first submission to the last end"),
    Column(
        title="avg rho",
        of=lambda f: f.avg_rho,
        digits=2,
        meaning="finish-time fairness: JCT over that with an equal share of the GPUs",
    ),
    Column(
        title="Jain", of=lambda f: f.jain, best=Best.GREATEST, digits=3, meaning="1 where rho is the same for all jobs"
    ),
)
# The columns for bins, groups and virtual clusters.
FEW_COLUMNS = (
    Column(title="jobs", of=lambda f: f.jobs, best=Best.NONE),
    *(column for column in COLUMNS if column.title in {"avg JCT s", "p95 JCT s", "avg queue s", "queued", "preempted"}),
)


def best_of(column: Column, values: Sequence[float]) -> set[int]:
    """Indices of the best values, all that look alike; none if all are best, or there is only one."""
    texts = [column.text(value) for value in values]
    known = [value for value in values if not math.isnan(value)]
    if column.best is Best.NONE or len(set(texts)) < 2 or not known:
        return set()
    best = min(known) if column.best is Best.LEAST else max(known)
    return {at for at, text in enumerate(texts) if text == column.text(best)}
