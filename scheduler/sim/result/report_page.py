"""HTML page of a report: tables, pictures and text in one file."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from farside.scheduler.sim.experiment import Outcome
from farside.scheduler.sim.result.column import COLUMNS, FEW_COLUMNS, Column, best_of
from farside.scheduler.sim.result.figures import Figures
from farside.scheduler.sim.result.report_html import render


class _Table(NamedTuple):
    titles: Sequence[str]
    rows: Sequence[tuple[str, Sequence[tuple[str, bool]]]]  # name, and of each cell its text and whether it is the best


def page(
    *,
    title: str,
    facts: Sequence[str],
    outcomes: Sequence[Outcome],
    pictures: Sequence[tuple[str, str, str]],
    timelines: Sequence[tuple[str, str, str]],
) -> str:
    """HTML of the whole page.

    Args:
        title: Of the page.
        facts: What was run on what, a line each.
        outcomes: What came out.
        pictures: Title, what is seen there, and SVG.
        timelines: The same of the nodes, one a policy.
    """
    values = {
        "title": title, "facts": facts, "overview": _overview(outcomes), "glossary": _glossary(), "pictures": pictures,
        "groups": list(_groups(outcomes)), "timelines": timelines, "settings": list(_settings(outcomes)),
    }  # fmt: skip
    return render("report.html", values)


def _overview(outcomes: Sequence[Outcome]) -> _Table:
    table = _table([(outcome.experiment.name, outcome.results.all) for outcome in outcomes], COLUMNS)
    rows = []
    for outcome, (name, cells) in zip(outcomes, table.rows, strict=True):
        found = outcome.recording
        more = (f"{found.utilisation:.1%}", f"{found.fragmentation:.1%}", f"{found.series.peak[2]:,.0f}")
        rows.append((name, [*cells, *((text, False) for text in more)]))
    return _Table((*table.titles, "utilisation", "stranded", "longest queue"), rows)


def _groups(outcomes: Sequence[Outcome]) -> Iterable[tuple[str, str, list[tuple[str, _Table]]]]:
    results = [outcome.results for outcome in outcomes]
    kinds = (
        ("Bins", "short: under 4 h; small: at most 8 GPUs; SL is small and long", [o.by_bin for o in results]),
        (
            "Bins of the paper's testbed",
            "short: under 800 s; small: at most 4 GPUs",
            [o.by_scaled_bin for o in results],
        ),
        ("Duration", "short: under 15 min; middle: to 6 h; long: above", [o.by_group for o in results]),
        ("Virtual clusters", "", [o.by_vc for o in results]),
    )
    for title, meaning, found in kinds:
        if title == "Virtual clusters" and list(found[0]) == [""]:
            continue
        tables = []
        for name in found[0]:
            rows = [(outcome.experiment.name, groups[name]) for outcome, groups in zip(outcomes, found, strict=True)]
            if rows[0][1].jobs:
                tables.append((name or "(none)", _table(rows, FEW_COLUMNS)))
        yield title, meaning, tables


def _table(rows: Sequence[tuple[str, Figures]], columns: Sequence[Column]) -> _Table:
    values = [[column.of(figures) for _, figures in rows] for column in columns]
    best = [best_of(column, of) for column, of in zip(columns, values, strict=True)]
    return _Table(
        ("policy", *(column.title for column in columns)),
        [
            (name, [(column.text(of[at]), at in good) for column, of, good in zip(columns, values, best, strict=True)])
            for at, (name, _) in enumerate(rows)
        ],
    )


def _glossary() -> list[tuple[str, str]]:
    return [
        *((column.title, column.meaning) for column in COLUMNS if column.meaning),
        ("stranded", "GPUs that were free and yet of no use to a job of a whole node, as a share of all"),
        ("longest queue", "the most jobs that ever waited at once"),
        ("*", "the best of its column"),
    ]


def _settings(outcomes: Sequence[Outcome]) -> Iterable[tuple[str, str, str, str]]:
    for outcome in outcomes:
        for part, fields in outcome.experiment.settings().items():
            told = ", ".join(f"{name}={value}" for name, value in fields.items() if name != "name")
            yield outcome.experiment.name, part, str(fields["name"]), told or "-"
