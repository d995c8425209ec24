"""Figures 3, 6 and 10: latency by batch and part, what co-runs cost, and how well that is predicted."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.figure import Figure, Table
from benchmarks.glet_tables import FOLDER, missing
from farside.scheduler.sharing.glet.fit import (
    FORMS,
    CoRun,
    Errors,
    Form,
    error_of,
    fit,
    fit_form,
    measured_by_predicted,
)
from farside.serve.table import CoRuns, read_co_runs, read_latencies

MEASURED = "mps"
FROM = (
    "Measured on an unnamed GPU at shares of 20 to 100 % (shared/data/glet/README.txt), not by the authors and not on "
    "their models: figures can be compared with the paper's in form, not in value."
)
SHOWN = ("vgg16", "resnet50", "inception", "mobilenet")
BATCHES, PARTS = (1, 2, 4, 8, 16, 32), (20, 40, 60, 80, 100)


def latency(data: Path) -> Figure:
    """Figure 3."""
    key, title, source = "glet-latency", "Latency by batch and part", "glet Figure 3, §3.1"
    folder = data / FOLDER
    if not folder.is_dir():
        return missing(key, title, source, data)
    grid = read_latencies(folder, MEASURED)
    shown = [
        Table(
            caption=f"{name}, ms",
            header=("batch", *(f"{part} %" for part in PARTS)),
            rows=tuple((f"{batch}", *(f"{grid[name, part][batch]:.2f}" for part in PARTS)) for batch in BATCHES),
        )
        for name in SHOWN
    ]
    gains = [grid[name, 20][batch] / grid[name, 100][batch] for name in SHOWN for batch in (1, 32)]
    small, large = float(np.mean(gains[::2])), float(np.mean(gains[1::2]))
    return Figure(
        key=key,
        title=title,
        source=source,
        tables=tuple(shown),
        notes=(
            FROM,
            f"On a fifth of the device a batch of 1 takes {small:.2f} times as long, one of 32 {large:.2f} times. The "
            "paper's curves have no values; they say that a small batch is hardly affected.",
        ),
    )


def interference(data: Path, *, seeds: Sequence[int]) -> Figure:
    """Figures 6 and 10."""
    key, title, source = "glet-interference", "Interference of co-runs", "glet Figures 6, 10, §3.4, §4.4"
    folder = data / FOLDER
    if not folder.is_dir():
        return missing(key, title, source, data)
    measured = read_co_runs(folder, MEASURED)
    return Figure(
        key=key,
        title=title,
        source=source,
        tables=(_slowdown(measured.co_runs), _split_table(measured, seeds), _left_out_table(measured)),
        notes=(
            FROM,
            "Errors are those of the predicted factor, relative to what was measured, on co-runs that were kept out of "
            "the fit. The form with the least error at the 90th percentile is used.",
            "With a model left out no co-run of it, on either side, is in the fit: no form knows a model that was "
            "never co-run.",
        ),
    )


def _slowdown(co_runs: Sequence[CoRun]) -> Table:
    factors = np.array([one.factor for one in co_runs])
    rows = [
        (f"{100 * share:.0f} %", f"{100 * (float(np.quantile(factors, share)) - 1):.1f} %", paper)
        for share, paper in ((0.5, "-"), (0.9, "18 %"), (0.95, "-"), (1.0, "-"))
    ]
    return Table(
        caption=f"Slower by less than this, of {len(co_runs):,} co-runs (Figure 6)",
        header=("share of co-runs", "ours", "paper"),
        rows=tuple(rows),
    )


def _percents(errors: Sequence[Errors]) -> tuple[str, ...]:
    quantiles = zip(*((one.p50, one.p90, one.p95) for one in errors), strict=True)
    return tuple(f"{100 * float(np.median(each)):.1f} %" for each in quantiles)


def _split_table(measured: CoRuns, seeds: Sequence[int]) -> Table:
    fits = [fit(measured.co_runs, measured.utilisation, random.Random(seed)) for seed in seeds]
    rows = [(form, *_percents([one.errors[form] for one in fits])) for form in FORMS]
    chosen = fits[0]
    rows.append((f"used: {chosen.form}", *_percents([one.errors[one.form] for one in fits])))
    rows.append(("paper, five terms, its own co-runs", "-", "10.3 %", "14.0 %"))
    return Table(
        caption=f"Error on a random 30 %, median of {len(seeds)} splits (Figure 10)",
        header=("form", "p50", "p90", "p95"),
        rows=tuple(rows),
    )


def _left_out_table(measured: CoRuns) -> Table:
    names = sorted({one.pair.model for one in measured.co_runs})
    errors: Mapping[Form, list[Errors]] = {form: [] for form in FORMS}
    for name in names:
        known = [one for one in measured.co_runs if name not in (one.pair.model, one.pair.other)]
        unknown = [one for one in measured.co_runs if one.pair.model == name]
        for form in FORMS:
            predict = fit_form(form, known, measured.utilisation)
            errors[form].append(error_of(measured_by_predicted(predict, unknown)))
    rows = tuple((form, *_percents(found)) for form, found in errors.items())
    return Table(
        caption=f"Error on a model that is left out, median of {', '.join(names)}",
        header=("form", "p50", "p90", "p95"),
        rows=rows,
    )
