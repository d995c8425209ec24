"""The command `farside predict fit`: trains a model of GPU time, and tests it on later jobs."""

from pathlib import Path
from typing import Literal

import numpy as np
from rich.table import Table

from farside.cli.figure_table import figure_table
from farside.scheduler.predict.estimate_quality import quality, quantiles
from farside.scheduler.predict.gpu_time import GpuTimeParams
from farside.scheduler.predict.rolling_estimate import RollingParams
from farside.scheduler.predict.service import ModelRecord
from farside.scheduler.sim.estimator import Learner, past_of
from farside.scheduler.sim.trace.read import read_trace

SHARES = (0.1, 0.5, 0.9)


def fit_gpu_time(log: Path, fmt: str, on_bad: Literal["refuse", "skip"]) -> tuple[Learner, ModelRecord | None]:
    """A learner that has read a log, and its model; None: there were too few jobs for one.

    Raises:
        ConfigError: The log cannot be used.
    """
    learner = Learner(GpuTimeParams(), RollingParams(), past_of(read_trace(log, fmt=fmt, on_bad=on_bad).jobs))
    return learner, learner.orchestrator.updates[-1].record


def quality_table(learner: Learner) -> Table:
    """Each estimator on the newest jobs, none of which it had known when it was asked."""
    judge = learner.service.judge
    judged = np.array([(one.model, one.rolling, one.gpus, one.true) for one in judge.judged]).reshape(-1, 4)
    title = f"{len(judged)} newest jobs; believed: {learner.service.source}"
    columns = ("estimator", "order worth", "ranks", "within x2", "10 %", "median", "90 %")
    table = figure_table(*columns, title=title)
    for at, name in enumerate(("model", "rolling", "gpus")):
        known = judged[~np.isnan(judged[:, at])]
        if len(known) < 2:
            continue
        found, off = quality(known[:, at], known[:, 3]), quantiles(known[:, at], known[:, 3], SHARES)
        table.add_row(
            name, f"{found.saving:.2f}", f"{found.spearman:.2f}", f"{found.within_2:.0%}",
            *(f"x{one:.3g}" for one in off.tolist()),
        )  # fmt: skip
    return table
