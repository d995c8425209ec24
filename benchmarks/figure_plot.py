"""Plots of reproduced figures, as files."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from benchmarks.figure import Plot

_MARKS = "osv^xdP"


def save_plot(plot: Plot, folder: Path) -> Path:
    """Draws a plot into ``folder``, as SVG; its path. The same points give the same file."""
    canvas = Canvas(figsize=(6.5, 4.2), layout="constrained")
    axes = canvas.subplots()
    for at, line in enumerate(plot.lines):
        style: dict[str, Any] = (
            {"linestyle": "none", "markersize": 1.5, "alpha": 0.4} if line.is_cloud else {"markersize": 4}
        )
        axes.plot(line.x, line.y, marker=_MARKS[at % len(_MARKS)], label=line.name, **style)
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    if plot.is_log_x:
        axes.set_xscale("log")
    if plot.is_log_y:
        axes.set_yscale("log")
    if plot.ticks:
        axes.set_xticks(range(len(plot.ticks)), plot.ticks)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{plot.name}.svg"
    with mpl.rc_context({"svg.hashsalt": "farside", "svg.fonttype": "none"}):
        canvas.savefig(path, format="svg", metadata={"Date": None})
    return path
