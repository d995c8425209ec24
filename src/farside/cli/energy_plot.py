"""Pictures of `farside energy`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from farside.scheduler.energy.catalog import Question
from farside.scheduler.sim.energy.replay import Played
from farside.scheduler.sim.energy.sweep import Point
from farside.scheduler.sim.output_files import written

# Told apart by shape as well as by colour.
_MARKS = {"ces": "o", "paper": "s", "rule": "^", "vanilla": "x", "none": "+"}
# Ids that do not change from run to run, and text as text. With the date left out (`_save`), equal data give equal
# bytes.
_SVG: dict[str, Any] = {"svg.hashsalt": "farside", "svg.fonttype": "none"}


def plot_replay(path: Path, question: Question, played: Played, *, title: str) -> None:
    """Nodes that are there, on, and busy, over the window; wake-ups as ticks, gaps in the data grey."""
    series = question.series
    steps = np.arange(question.begin, question.end)
    time = (series.start_s + steps * series.step_s).astype("datetime64[s]")
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.step(time, played.total, where="post", color="tab:red", label="there")
    axes.step(time, played.powered, where="post", color="tab:green", label="on")
    axes.step(time, played.active, where="post", color="tab:blue", linewidth=0.9, label="busy")
    woken = played.woken > 0
    axes.plot(time[woken], played.powered[woken], linestyle="none", marker="v", color="black", label="wake-up")
    gap = series.is_gap[question.begin : question.end]
    axes.fill_between(time, 0, 1, where=gap, transform=axes.get_xaxis_transform(), color="0.85", label="no data")
    axes.set(title=title, ylabel="nodes", ylim=(0, None))
    axes.legend(loc="lower left", ncols=5, frameon=False)
    _save(figure, path)


def plot_points(path: Path, points: Sequence[Point], *, title: str) -> None:
    """Sleeping nodes over wake-ups a day and over missing nodes; a line along what nothing beats."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, (name, label) in zip(
        figure.subplots(1, 2, sharey=True),
        (("wakeups_per_day", "wake-ups a day"), ("short_nodes", "node-intervals short")),
        strict=True,
    ):
        for policy in dict.fromkeys(point.policy for point in points):
            mine = [point for point in points if point.policy == policy]
            mark = _MARKS.get(policy.split()[0], "d")
            drawn = axes.plot(
                [getattr(point, name) for point in mine], [point.sleeping_nodes for point in mine],
                linestyle="none", marker=mark, markersize=4, alpha=0.35,
            )  # fmt: skip
            best = upper_hull([(getattr(point, name), point.sleeping_nodes) for point in mine])
            axes.plot(*zip(*best, strict=True), marker=mark, markersize=5, color=drawn[0].get_color(), label=policy)
        axes.set(xlabel=label, xscale="symlog")
    figure.axes[0].set(ylabel="nodes asleep")
    figure.axes[0].legend(frameon=False)
    figure.suptitle(title)
    _save(figure, path)


def upper_hull(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points (cost, gain) that gain more than every cheaper one, by cost."""
    best: list[tuple[float, float]] = []
    for cost, gain in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or gain > best[-1][1]:
            best.append((cost, gain))
    return best


def _save(figure: Figure, path: Path) -> None:
    kind = path.suffix.lower().removeprefix(".")
    with written(path) as place, mpl.rc_context(_SVG):  # type: ignore[arg-type]
        figure.savefig(place, dpi=120, format=kind, metadata={"Date": None} if kind == "svg" else None)
