"""How good QSSF's estimates are, and how much each of its constants matters."""

from dataclasses import replace

import numpy as np

from benchmarks.figure import Figure, Row, Table
from benchmarks.qssf_runs import Lesson, lesson
from farside.scheduler.predict.gpu_time import GpuTimeParams
from farside.scheduler.predict.history import Past, rolling_saving
from farside.scheduler.predict.quality import quality, quantiles
from farside.scheduler.predict.rolling import RollingParams
from farside.scheduler.sim.estimator import Learner

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
CONSTANTS = {
    "similarity": (0.7, 0.8, 0.9, 1.0),
    "decay": (0.5, 0.7, 0.9, 0.97, 1.0),
    "prior_jobs": (0.0, 0.3, 1.0, 3.0, 10.0),
}
LAMBDAS = (0.0, 0.25, 0.5, 0.75, 1.0)


def figure(*, jobs: int, seed: int) -> Figure:
    """Estimates of jobs that the estimators did not know, then sensitivity to one constant at a time."""
    drawn = lesson(jobs, seed)
    past = (*drawn.past, *((job.job, job.duration_s) for job in drawn.scene.jobs))
    return Figure(
        key="qssf-estimates",
        title="QSSF's estimates of GPU time",
        source="helios §4.2; the text has no constants",
        tables=(_errors(past), _sensitivity(past), _lambdas(drawn)),
        notes=(
            f"{jobs:,} jobs of users that repeat themselves; each judged by what was expected when it came.",
            "Expectations are means, so their median lies above the truth's. A constant is learned from history where"
            " nothing is set.",
        ),
    )


def _errors(past: tuple[Past, ...]) -> Table:
    learner = Learner(GpuTimeParams(judged_jobs=len(past)), RollingParams(), past)
    judged = np.array([(one.model, one.rolling, one.gpus, one.true) for one in learner.service.judge.judged])
    judged = judged[~np.isnan(judged[:, 0])]
    rows: list[Row] = []
    for at, name in enumerate(("model", "rolling", "gpus")):
        found, off = quality(judged[:, at], judged[:, 3]), quantiles(judged[:, at], judged[:, 3], SHARES)
        rows.append(
            (
                name,
                f"{found.saving:.3f}",
                f"{found.spearman:.3f}",
                f"{found.within_2:.0%}",
                *(f"{one:.3g}" for one in off),
            )
        )
    header = ("", "worth", "ranks", "within x2", *(f"{share:.0%}" for share in SHARES))
    return Table(caption=f"Expected over true, quantiles over {len(judged):,} jobs", header=header, rows=tuple(rows))


def _sensitivity(past: tuple[Past, ...]) -> Table:
    rows: list[Row] = []
    for name, values in CONSTANTS.items():
        for value in values:
            params = replace(RollingParams(), **{name: value})
            is_default = params == RollingParams()
            rows.append((f"{name} {value:g}", f"{rolling_saving(past, params):.3f}", "default" if is_default else ""))
    return Table(caption="Rolling estimate alone, one constant changed", header=("", "worth", ""), rows=tuple(rows))


def _lambdas(drawn: Lesson) -> Table:
    rows: list[Row] = []
    for weight in LAMBDAS:
        learner = Learner(GpuTimeParams(rolling_weight=weight), RollingParams(), drawn.past)
        rows.append((f"lambda {weight:g}", f"{learner.service.judge.savings.get('model', float('nan')):.3f}"))
    learned = Learner(GpuTimeParams(), RollingParams(), drawn.past).service
    rows.append((f"learned: {learned.weight:g}", f"{learned.judge.savings.get('model', float('nan')):.3f}"))
    return Table(
        caption="Model by what the rolling estimate counts, square roots", header=("", "worth"), rows=tuple(rows)
    )
