"""A real job log with shared aggregation: what is saved of the servers that its jobs would reserve."""

import random
from collections.abc import Sequence
from pathlib import Path

from benchmarks.autops_sharing import ASSUMED
from benchmarks.figure import Figure, Table
from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.pool import PoolSettings
from farside.scheduler.sim.aggregation.job_log import LogResult, aggregating, play
from farside.scheduler.sim.aggregation.models import GPUS_PER_WORKER
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.sim.trace.read import read_trace

LOG = "cluster/jobs/philly_dev.csv.gz"
PERIOD_S, LOSS_LIMIT, SEED = 300.0, 0.1, 1
# (period, loss limit, seed): the middle one, and each changed alone.
CASES = (
    (PERIOD_S, LOSS_LIMIT, SEED), (60.0, LOSS_LIMIT, SEED), (3600.0, LOSS_LIMIT, SEED), (PERIOD_S, 0.05, SEED),
    (PERIOD_S, 0.2, SEED), (PERIOD_S, LOSS_LIMIT, 2), (PERIOD_S, LOSS_LIMIT, 3),
)  # fmt: skip
CORE_YEAR_DOLLARS, TEN_WEEKS_S, YEAR_S = 900.0, 70 * 86400.0, 365 * 86400.0


def figure(data: Path) -> Figure:
    """Figure 4.12, and how it depends on what the text does not say."""
    title, source = "A job log on shared Aggregators", "autops Figure 4.12, §4.5.2.4"
    path = data / LOG
    if not path.exists():
        return Figure(
            key="autops-log", title=title, source=source, tables=(), notes=(f"{path} is not there: skipped.",)
        )
    jobs = read_trace(path).jobs
    played = {case: _play(jobs, *case) for case in CASES}
    first = played[CASES[0]]
    span_s = max(end_s for _, end_s, _ in aggregating(jobs, random.Random(SEED))) - jobs[0].job.submit_s
    saved_cores = (first.asked_core_s - first.held_core_s) / span_s
    dollars = saved_cores * CORE_YEAR_DOLLARS * TEN_WEEKS_S / YEAR_S
    ours = first.ratios
    return Figure(
        key="autops-log",
        title=title,
        source=source,
        tables=(
            Table(
                caption="Ours beside the paper's",
                header=("figure", "ours", "paper"),
                rows=(
                    ("server time saved", f"{100 * first.saved_share:.1f} %", "52.7 %"),
                    ("minutes with fewer Aggregators than servers", f"{100 * _below(first):.1f} %", "over 99 %"),
                    ("most Aggregators by servers", f"{ours[-1]:.2f}", "over 2.5"),
                    ("jobs that aggregate", f"{first.jobs}", "not said"),
                    ("cores saved on average", f"{saved_cores:.1f}", "8,700 follow from its revenue"),
                    ("worth in ten weeks, at 900 $ a core and year", f"{dollars:,.0f} $", "1.5 million $"),
                ),
            ),
            Table(
                caption="By what the text does not say",
                header=("period", "loss limit", "draw", "saved", "minutes with fewer", "most by servers", "most loss"),
                rows=tuple(_row(case, result) for case, result in played.items()),
            ),
        ),
        notes=(
            "The log: 45,036 jobs of Philly over 18 weeks, not the paper's ten; only a part of its virtual clusters is "
            "whole. Jobs of more than one GPU aggregate, and begin when they were submitted.",
            f"A worker has {GPUS_PER_WORKER} GPUs; a job has a server for each worker or for each two, and one of four "
            "models, both drawn. A server counts as one core of work.",
            "Where few jobs run there is little to share: one job alone takes what it asked for, and keeps it for the "
            "rest of the period.",
            ASSUMED,
        ),
    )


def _play(jobs: Sequence[TraceJob], period_s: float, loss_limit: float, seed: int) -> LogResult:
    limits = Limits(loss_limit=loss_limit, period_tolerance=0.0)
    return play(aggregating(jobs, random.Random(seed)), limits, PoolSettings(), period_s)


def _below(result: LogResult) -> float:
    ratios = result.ratios
    return sum(ratio < 1 for ratio in ratios) / len(ratios)


def _row(case: tuple[float, float, int], result: LogResult) -> tuple[str, ...]:
    period_s, loss_limit, seed = case
    return (
        f"{period_s:g} s",
        f"{loss_limit:g}",
        f"{seed}",
        f"{100 * result.saved_share:.1f} %",
        f"{100 * _below(result):.1f} %",
        f"{result.ratios[-1]:.2f}",
        f"{100 * result.most_loss:.1f} %",
    )
