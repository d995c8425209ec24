"""Writes docs/benchmarks-apps.md and the curve of Figure 2.17."""

from pathlib import Path

from benchmarks.apps.plan import RETREATING
from benchmarks.apps.render import document
from benchmarks.apps.result import Moment, Results, Workload, retreat_key
from benchmarks.figure import Line, Plot
from benchmarks.figure_plot import save_plot

DOCS = Path(__file__).parents[2] / "docs"
REMARKS = Path(__file__).parent / "remarks.md"  # by hand
MIB = 1 << 20


def write_document(results: Results, source: Path) -> None:
    """The document and its plots, from these results alone."""
    for plot in _plots(results):
        save_plot(plot, DOCS / "plots")
    target = DOCS / "benchmarks-apps.md"
    target.write_text(text(results, source))
    print(f"wrote {target}")


def text(results: Results, source: Path) -> str:
    """The document alone."""
    root = DOCS.parent
    name = source.resolve().relative_to(root) if source.resolve().is_relative_to(root) else source
    curves = [f"plots/{plot.name}.svg" for plot in _plots(results)]
    return document(results, source=str(name), curves=curves, remarks=REMARKS.read_text())


def _plots(results: Results) -> list[Plot]:
    found = [(workload, results.retreats.get(retreat_key(workload, is_lending=True))) for workload in RETREATING]
    return [memory_plot(workload, one.moments) for workload, one in found if one is not None and one.moments]


def memory_plot(workload: Workload, moments: tuple[Moment, ...]) -> Plot:
    """Figure 2.17: what the cache has, what is lent, what nobody has."""
    x = tuple(moment.now_s for moment in moments)
    series = (
        ("Memcached", tuple(moment.cache_bytes / MIB for moment in moments)),
        ("slabs, lent or kept ready", tuple(moment.lent_bytes / MIB for moment in moments)),
        ("free", tuple(moment.free_bytes / MIB for moment in moments)),
    )
    return Plot(
        name=f"retreat-{workload}",
        title=f"A donor gives way to a growing Memcached ({workload.upper()})",
        x_label="seconds",
        y_label="MiB",
        lines=tuple(Line(name=name, x=x, y=y) for name, y in series),
    )
