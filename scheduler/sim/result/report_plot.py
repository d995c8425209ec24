"""The pictures of a report, as SVG to stand in an HTML page.

Lines and letters take the page's own colour, so that they are readable on light and on dark; the colours of policies
and jobs are of middle brightness for the same reason. Nothing in a picture points outside of it.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from farside.scheduler.sim.experiment import Outcome
from farside.scheduler.sim.result.record import CAPACITY, STRANDED, USED, WAITING
from farside.scheduler.table import Floats
from farside.units import CALENDAR_FROM_S

# A stand-in: no other colour of ours is written like it.
_INK = "#010203"
_COLOURS = ("#2f7fd1", "#e07b1f", "#2b9f6b", "#c94f8c", "#8a6fd8", "#b39312", "#3aa6b9", "#d1495b")
_DASHES = ("solid", "dashed", "dashdot", "dotted")
_WIDTH_IN = 9.6
# A distribution's curve needs no more points than its picture is wide.
_CURVE_POINTS = 600
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10.0,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _INK,
    "grid.alpha": 0.15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
# Colours of jobs by GPUs: up to how many, and the name in the legend.
_SIZES = ((1, "1 GPU"), (4, "2 to 4"), (8, "5 to 8"), (16, "9 to 16"), (10**9, "more"))
_SIZE_COLOURS = ("#7fb2e5", "#2f7fd1", "#2b9f6b", "#e0a11f", "#d1495b")


def jct_distribution(outcomes: Sequence[Outcome]) -> str:
    """Which share of jobs was done after how long, by policy; time on a logarithmic axis."""
    with _style("jct"):
        figure = _figure(3.8)
        axes = _axes(figure)
        for at, outcome in enumerate(outcomes):
            shares = np.linspace(0.0, 1.0, _CURVE_POINTS)
            axes.plot(np.quantile(np.maximum(outcome.results.jct_s, 1.0), shares), shares, **_line(at, outcome))
        axes.set(xscale="log", xlabel="job completion time, s", ylabel="share of jobs", ylim=(0, 1))
        _legend(figure, axes)
        return _svg(figure)


def utilisation_over_time(outcomes: Sequence[Outcome]) -> str:
    """The share of GPUs that were in use, a strip a policy."""
    return _strips(outcomes, "utilisation", USED)


def fragmentation_over_time(outcomes: Sequence[Outcome]) -> str:
    """The share of GPUs that were free and of no use to a job of a whole node, a strip a policy."""
    return _strips(outcomes, "fragmentation", STRANDED)


def queue_over_time(outcomes: Sequence[Outcome]) -> str:
    """How many jobs waited."""
    with _style("queue"):
        figure = _figure(2.8)
        axes = _axes(figure)
        for at, outcome in enumerate(outcomes):
            series = outcome.recording.series
            axes.step(_times(axes, series.at_s, outcome), series.means[:, WAITING], where="post", **_line(at, outcome))
        axes.set(ylabel="jobs that wait", ylim=(0, None), xlim=_span(axes, outcomes))
        _legend(figure, axes)
        return _svg(figure)


def node_timeline(outcomes: Sequence[Outcome], at: int, gpus_of: Sequence[int]) -> str:
    """Who held which GPUs of which node when, in one of the outcomes; the colour tells the job's size.

    ``gpus_of``: of the job of each row.
    """
    recording = outcomes[at].recording
    tops: dict[tuple[str, int], int] = {}
    height = 0
    marks: list[tuple[int, str]] = []
    for vc, nodes in recording.nodes.items():
        for place, (name, gpus) in enumerate(nodes):
            tops[vc, place] = height
            marks.append((height + gpus // 2, name))
            height += gpus + 1
    with _style(f"nodes{at}", has_grid=False):
        figure = _figure(min(10.0, max(1.6, 0.24 * len(tops) + 0.8)))
        axes = _axes(figure)
        at_s = np.array([(one.start_s, one.end_s) for one in recording.segments]).reshape(-1, 2)
        x = _times(axes, at_s, outcomes[at])
        boxes = []
        for (left, right), one in zip(x, recording.segments, strict=True):
            low = tops[one.vc, one.node] + one.first_gpu
            boxes.append(((left, low), (right, low), (right, low + one.gpus), (left, low + one.gpus)))
        colours = [_SIZE_COLOURS[_size(gpus_of[one.row])] for one in recording.segments]
        axes.add_collection(
            PolyCollection(boxes, facecolors=colours, edgecolors="#80808080", linewidths=0.2, rasterized=True)
        )
        step = -(-len(marks) // 40)
        axes.set(xlim=_span(axes, outcomes), ylim=(height, -1), ylabel="node")
        axes.set_yticks([place for place, _ in marks[::step]], [name for _, name in marks[::step]], fontsize=7)
        named = zip(_SIZES, _SIZE_COLOURS, strict=True)
        figure.legend(
            handles=[Patch(color=colour, label=label) for (_, label), colour in named],
            loc="outside upper right", ncols=len(_SIZES), fontsize=9,
        )  # fmt: skip
        return _svg(figure)


def _strips(outcomes: Sequence[Outcome], salt: str, what: int) -> str:
    """A share of all GPUs over time. Lines that jump between 0 and 1 would hide each other in one picture."""
    shares = [
        outcome.recording.series.means[:, what] / np.maximum(outcome.recording.series.means[:, CAPACITY], 1e-9)
        for outcome in outcomes
    ]
    top = max(0.02, *(float(share.max(initial=0.0)) for share in shares))
    with _style(salt):
        figure = _figure(0.6 + 0.75 * len(outcomes))
        for at, (outcome, share) in enumerate(zip(outcomes, shares, strict=True)):
            axes = _axes(figure, len(outcomes), at)
            x = _times(axes, outcome.recording.series.at_s, outcome)
            axes.fill_between(x, share, step="post", color=_COLOURS[at % len(_COLOURS)], alpha=0.75, linewidth=0)
            axes.set(ylim=(0, top), xlim=_span(axes, outcomes))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if top > 0.05 else 1))
            axes.set_ylabel(outcome.experiment.name, rotation=0, ha="right", va="center", labelpad=12)
            if at + 1 < len(outcomes):
                axes.tick_params(labelbottom=False)
                axes.xaxis.get_offset_text().set_visible(False)
                axes.set_xlabel("")
        return _svg(figure)


@contextmanager
def _style(salt: str, *, has_grid: bool = True) -> Iterator[None]:
    """``salt``: names in one picture must not be those of another on the same page."""
    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": salt, "axes.grid": has_grid}):
        yield


def _figure(height_in: float) -> Figure:
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    figure.patch.set_alpha(0.0)
    return figure


def _axes(figure: Figure, rows: int = 1, row: int = 0) -> Axes:
    axes = figure.add_subplot(rows, 1, row + 1)
    axes.patch.set_alpha(0.0)
    return axes


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside upper right", ncols=8, fontsize=9)


def _span(axes: Axes, outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """All of the time, the same in every picture."""
    starts = [float(outcome.recording.series.at_s[0]) for outcome in outcomes]
    ends = [outcome.recording.series.until_s for outcome in outcomes]
    first, last = _times(axes, np.array([min(starts), max(ends)]), outcomes[0])
    return float(first), float(last)


def _line(at: int, outcome: Outcome) -> dict[str, Any]:
    return {
        "label": outcome.experiment.name,
        "color": _COLOURS[at % len(_COLOURS)],
        "linestyle": _DASHES[at // len(_COLOURS) % len(_DASHES)],
        "linewidth": 1.3,
        "alpha": 0.9,
    }


def _times(axes: Axes, at_s: Floats, outcome: Outcome) -> Floats:
    """Places on the axis of time: dates where the trace has a calendar, else hours since its first job."""
    start_s = float(outcome.recording.series.at_s[0])
    if start_s >= CALENDAR_FROM_S:
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
        return at_s / 86400.0
    axes.set_xlabel("hours since the first job")
    return (at_s - start_s) / 3600.0


def _size(gpus: int) -> int:
    return next(at for at, (most, _) in enumerate(_SIZES) if gpus <= most)


def _svg(figure: Figure) -> str:
    """The picture as an element of a page: without a prologue, names of its own, or addresses of anything."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing, dpi=150)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href").replace(_INK, "currentColor")
    # Several pictures stand on one page: names must not meet.
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{mpl.rcParams['svg.hashsalt']}-", text)
