"""Pictures of a simulation's report, as SVG."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from farside.scheduler.sim.experiment import Outcome
from farside.scheduler.sim.result.record import CAPACITY, STRANDED, USED, WAITING
from farside.scheduler.sim.result.report_svg import COLOURS, CURVE_POINTS, DASHES, new_axes, new_figure, style, svg
from farside.scheduler.table import Floats
from farside.units import CALENDAR_FROM_S

# Colours of jobs by GPUs: up to how many, and the name in the legend.
_SIZES = ((1, "1 GPU"), (4, "2 to 4"), (8, "5 to 8"), (16, "9 to 16"), (10**9, "more"))
_SIZE_COLOURS = ("#7fb2e5", "#2f7fd1", "#2b9f6b", "#e0a11f", "#d1495b")


def jct_distribution(outcomes: Sequence[Outcome]) -> str:
    """Distribution of JCTs by policy, on a logarithmic time axis."""
    with style("jct"):
        figure = new_figure(3.8)
        axes = new_axes(figure)
        for at, outcome in enumerate(outcomes):
            shares = np.linspace(0.0, 1.0, CURVE_POINTS)
            axes.plot(np.quantile(np.maximum(outcome.results.jct_s, 1.0), shares), shares, **_line(at, outcome))
        axes.set(xscale="log", xlabel="job completion time, s", ylabel="share of jobs", ylim=(0, 1))
        _legend(figure, axes)
        return svg(figure)


def utilisation_over_time(outcomes: Sequence[Outcome]) -> str:
    """Share of GPUs in use over time, one strip for each policy."""
    return _strips(outcomes, "utilisation", USED)


def fragmentation_over_time(outcomes: Sequence[Outcome]) -> str:
    """Share of stranded GPUs over time, one strip for each policy."""
    return _strips(outcomes, "fragmentation", STRANDED)


def queue_over_time(outcomes: Sequence[Outcome]) -> str:
    """Number of waiting jobs over time."""
    with style("queue"):
        figure = new_figure(2.8)
        axes = new_axes(figure)
        for at, outcome in enumerate(outcomes):
            series = outcome.recording.series
            axes.step(_times(axes, series.at_s, outcome), series.means[:, WAITING], where="post", **_line(at, outcome))
        axes.set(ylabel="jobs that wait", ylim=(0, None), xlim=_span(axes, outcomes))
        _legend(figure, axes)
        return svg(figure)


def node_timeline(outcomes: Sequence[Outcome], at: int, gpus_of: Sequence[int]) -> str:
    """Jobs on the GPUs of each node over time, for one of the outcomes; the colour shows the job's size.

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
    with style(f"nodes{at}", has_grid=False):
        figure = new_figure(min(10.0, max(1.6, 0.24 * len(tops) + 0.8)))
        axes = new_axes(figure)
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
        return svg(figure)


def _strips(outcomes: Sequence[Outcome], salt: str, what: int) -> str:
    """A share of all GPUs over time. Lines that jump between 0 and 1 would hide each other in one picture."""
    shares = [
        outcome.recording.series.means[:, what] / np.maximum(outcome.recording.series.means[:, CAPACITY], 1e-9)
        for outcome in outcomes
    ]
    top = max(0.02, *(float(share.max(initial=0.0)) for share in shares))
    with style(salt):
        figure = new_figure(0.6 + 0.75 * len(outcomes))
        for at, (outcome, share) in enumerate(zip(outcomes, shares, strict=True)):
            axes = new_axes(figure, len(outcomes), at)
            x = _times(axes, outcome.recording.series.at_s, outcome)
            axes.fill_between(x, share, step="post", color=COLOURS[at % len(COLOURS)], alpha=0.75, linewidth=0)
            axes.set(ylim=(0, top), xlim=_span(axes, outcomes))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0 if top > 0.05 else 1))
            axes.set_ylabel(outcome.experiment.name, rotation=0, ha="right", va="center", labelpad=12)
            if at + 1 < len(outcomes):
                axes.tick_params(labelbottom=False)
                axes.xaxis.get_offset_text().set_visible(False)
                axes.set_xlabel("")
        return svg(figure)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(handles) > 1:
        figure.legend(handles, labels, loc="outside upper right", ncols=8, fontsize=9)


def _span(axes: Axes, outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """All of the time, the same in every picture."""
    starts = [float(outcome.recording.series.at_s[0]) for outcome in outcomes]
    ends = [outcome.recording.series.until_s for outcome in outcomes]
    first, last = _times(axes, np.array([min(starts), max(ends)]), outcomes[0])
    return float(first), float(last if last > first else first + 1 / 3600)  # an axis has a length


def _line(at: int, outcome: Outcome) -> dict[str, Any]:
    return {
        "label": outcome.experiment.name,
        "color": COLOURS[at % len(COLOURS)],
        "linestyle": DASHES[at // len(COLOURS) % len(DASHES)],
        "linewidth": 1.3,
        "alpha": 0.9,
    }


def _times(axes: Axes, at_s: Floats, outcome: Outcome) -> Floats:
    """Ticks on the time axis: dates if the trace has a calendar, otherwise hours since its first job."""
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
