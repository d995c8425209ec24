"""Measure how good QSSF's estimates are, and how much each of its constants matters."""

import math
from dataclasses import replace

import numpy as np

from benchmarks.figure import Figure, Line, Plot, Row, Table
from benchmarks.qssf_runs import Lesson, lesson
from farside.scheduler.predict.estimate_quality import quality, quantiles, ranks
from farside.scheduler.predict.gpu_time import GpuTimeParams
from farside.scheduler.predict.job_history import Past, rolling_trial
from farside.scheduler.predict.rolling_estimate import LEARNED, RollingParams
from farside.scheduler.sim.estimator import Learner
from farside.scheduler.table import Floats

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
CONSTANTS = {
    "similarity": (0.7, 0.8, 0.9, 1.0),
    "decay": (0.5, 0.7, 0.9, 0.97, 1.0),
    "prior_jobs": (0.0, 0.3, 1.0, 3.0, 10.0, LEARNED),
}
ESTIMATORS = ("model", "rolling", "gpus")
LAMBDAS = (0.0, 0.25, 0.5, 0.75, 1.0)


def figure(*, jobs: int, seed: int) -> Figure:
    """Estimates of jobs that the estimators did not know, then sensitivity to one constant at a time."""
    drawn = lesson(jobs, seed)
    past = (*drawn.past, *((job.job, job.duration_s) for job in drawn.scene.jobs))
    judged, constants, lambdas = _judged(past), _sensitivity(past), _lambdas(drawn)
    return Figure(
        key="qssf-estimates",
        title="QSSF's estimates of GPU time",
        source="helios §4.2; the text has no constants",
        tables=(_errors(judged), constants[0], lambdas[0]),
        plots=(*_error_plots(judged), *constants[1], lambdas[1]),
        notes=(
            f"{jobs:,} jobs of users that repeat themselves; each judged by what was expected when it came.",
            "Expectations are means, so their median lies above the truth's. A constant is learned from history where"
            " nothing is set.",
        ),
    )


def _judged(past: tuple[Past, ...]) -> Floats:
    """Of all jobs of which all three expected something: model, rolling estimate, GPUs and truth, GPU seconds."""
    learner = Learner(GpuTimeParams(judged_jobs=len(past)), RollingParams(), past)
    judged = np.array([(one.model, one.rolling, one.gpus, one.true) for one in learner.service.judge.judged])
    found: Floats = judged[~np.isnan(judged[:, 0])]
    return found


def _errors(judged: Floats) -> Table:
    rows: list[Row] = []
    for at, name in enumerate(ESTIMATORS):
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


def _error_plots(judged: Floats) -> tuple[Plot, ...]:
    """Quantiles of the error; and where the truth's places lie by the expected place."""
    shares = tuple(np.linspace(0.01, 0.99, 99).tolist())
    lines = [
        Line(name=name, x=shares, y=tuple(quantiles(judged[:, at], judged[:, 3], shares).tolist()))
        for at, name in enumerate(ESTIMATORS)
    ]
    count = len(judged)
    places = [
        Line(
            name=f"{name}: rank correlation {quality(judged[:, at], judged[:, 3]).spearman:.2f}",
            x=tuple((ranks(judged[:, at]) / count).tolist()),
            y=tuple((ranks(judged[:, 3]) / count).tolist()),
            is_cloud=True,
        )
        for at, name in enumerate(ESTIMATORS[:1])
    ]
    return (
        Plot(name="qssf-error-quantiles", title="Expected over true GPU time", x_label="share of jobs",
             y_label="factor", lines=tuple(lines), is_log_y=True),
        Plot(name="qssf-ranks", title="Places by GPU time, of all jobs", x_label="expected place",
             y_label="true place", lines=tuple(places)),
    )  # fmt: skip


def _sensitivity(past: tuple[Past, ...]) -> tuple[Table, tuple[Plot, ...]]:
    rows: list[Row] = []
    plots: list[Plot] = []
    for name, values in CONSTANTS.items():
        trials = [rolling_trial(past, replace(RollingParams(), **{name: value})) for value in values]
        words = tuple("learned" if value == LEARNED else f"{value:g}" for value in values)
        for value, word, trial in zip(values, words, trials, strict=True):
            is_default = value == getattr(RollingParams(), name)
            rows.append((f"{name} {word}", f"{trial.saving:.3f}", f"{math.sqrt(trial.square_error):.3f}",
                         "default" if is_default else ""))  # fmt: skip
        at = tuple(float(place) for place in range(len(values)))
        lines = (
            Line(name="worth of the order", x=at, y=tuple(trial.saving for trial in trials)),
            Line(name="error, logarithm", x=at, y=tuple(math.sqrt(trial.square_error) for trial in trials)),
        )
        title = f"Rolling estimate by {name}"
        plots.append(Plot(name=f"qssf-{name.replace('_', '-')}", title=title, x_label=name, y_label="", lines=lines,
                          ticks=words))  # fmt: skip
    header = ("", "worth", "error, ln", "")
    table = Table(caption="Rolling estimate alone, one constant changed", header=header, rows=tuple(rows))
    return table, tuple(plots)


def _lambdas(drawn: Lesson) -> tuple[Table, Plot]:
    saved = []
    for weight in LAMBDAS:
        learner = Learner(GpuTimeParams(rolling_weight=weight), RollingParams(), drawn.past)
        saved.append(learner.service.judge.savings.get("model", math.nan))
    rows = [(f"lambda {weight:g}", f"{saving:.3f}") for weight, saving in zip(LAMBDAS, saved, strict=True)]
    learned = Learner(GpuTimeParams(), RollingParams(), drawn.past).service
    rows.append((f"learned: {learned.weight:g}", f"{learned.judge.savings.get('model', math.nan):.3f}"))
    caption = "Model by what the rolling estimate counts, square roots"
    plot = Plot(name="qssf-lambda", title=caption, x_label="lambda", y_label="worth of the order",
                lines=(Line(name="model", x=LAMBDAS, y=tuple(saved)),))  # fmt: skip
    return Table(caption=caption, header=("", "worth"), rows=tuple(rows)), plot
