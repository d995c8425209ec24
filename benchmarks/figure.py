"""A reproduced figure or table: ours beside the paper's, as data and as text. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with a caption; the first column names what the others measure."""

    caption: str
    header: Row
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points of a plot; ``is_cloud``: told apart by eye only, not joined."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    is_cloud: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture to be saved: lines over one pair of axes. ``name`` is that of its file, ``ticks`` words for x."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    is_log_x: bool = False
    is_log_y: bool = False
    ticks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What one of the paper's figures is here: tables, a picture in text where it helps, and what to make of it."""

    key: str
    title: str
    source: str  # where in the paper
    tables: tuple[Table, ...]
    picture: str = ""
    plots: tuple[Plot, ...] = ()
    notes: tuple[str, ...] = ()


def as_text(figure: Figure) -> str:
    """The figure for a terminal."""
    parts = [f"{figure.title}  [{figure.source}]", *[_table_text(table) for table in figure.tables]]
    if figure.picture:
        parts.append(figure.picture)
    if figure.notes:
        parts.append("\n".join(f"* {note}" for note in figure.notes))
    return "\n\n".join(parts)


def _table_text(table: Table) -> str:
    body = [table.header, *table.rows]
    widths = [max(len(row[i]) for row in body) for i in range(len(table.header))]
    lines = [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in body
    ]
    return "\n".join([f"{table.caption}:", *[f"  {line.rstrip()}" for line in lines]])


def curve(series: Sequence[tuple[str, Sequence[float]]], *, height: int = 12, top: float = 1.0) -> str:
    """Curves over the same evenly spaced places, each drawn with the first letter of its name; 0 at the bottom."""
    width = max(len(values) for _, values in series)
    grid = [[" "] * width for _ in range(height + 1)]
    for name, values in series:
        for x, value in enumerate(values):
            y = round(min(1.0, max(0.0, value / top)) * height)
            grid[height - y][x] = name[0] if grid[height - y][x] == " " else "*"
    labels = [f"{top * (height - y) / height:5.2f} |" for y in range(height + 1)]
    return "\n".join(label + "".join(row).rstrip() for label, row in zip(labels, grid, strict=True))
