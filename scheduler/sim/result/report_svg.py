"""SVG pictures inside an HTML page: shared code of all reports.

Lines and letters take the page's own colour, so that they are readable on light and on dark; other colours are of
middle brightness for the same reason. Nothing in a picture points outside of it.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#2f7fd1", "#e07b1f", "#2b9f6b", "#c94f8c", "#8a6fd8", "#b39312", "#3aa6b9", "#d1495b")
DASHES = ("solid", "dashed", "dashdot", "dotted")
# A distribution's curve needs no more points than its picture is wide.
CURVE_POINTS = 600
# A stand-in: no other colour of ours is written like it.
_INK = "#010203"
_WIDTH_IN = 9.6
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


@contextmanager
def style(salt: str, *, has_grid: bool = True) -> Iterator[None]:
    """How pictures look. ``salt``: names in one picture must not be those of another on the same page."""
    with mpl.rc_context({**_SETTINGS, "svg.hashsalt": salt, "axes.grid": has_grid}):
        yield


def new_figure(height_in: float) -> Figure:
    """New figure, as wide as the page."""
    figure = Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")
    figure.patch.set_alpha(0.0)
    return figure


def new_axes(figure: Figure, rows: int = 1, row: int = 0, columns: int = 1) -> Axes:
    """One of the figure's, counted along its rows."""
    axes = figure.add_subplot(rows, columns, row + 1)
    axes.patch.set_alpha(0.0)
    return axes


def svg(figure: Figure) -> str:
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
