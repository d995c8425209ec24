"""HTML page of a report: tables, pictures and text in one file."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from farside.scheduler.sim.experiment import Outcome
from farside.scheduler.sim.result.column import COLUMNS, FEW_COLUMNS, Column, best_of
from farside.scheduler.sim.result.figures import Figures
from farside.scheduler.sim.result.report_html import document, figure


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
    return document(
        title,
        facts,
        (
            "<h2>Figures</h2>",
            _overview(outcomes),
            _glossary(),
            *(figure(*picture) for picture in pictures),
            "<h2>By group</h2>",
            *_groups(outcomes),
            *(["<h2>Nodes over time</h2>"] if timelines else []),
            *(figure(*picture, level=3) for picture in timelines),
            "<h2>Settings</h2>",
            _settings(outcomes),
        ),
    )


def _overview(outcomes: Sequence[Outcome]) -> str:
    rows = [(outcome.experiment.name, outcome.results.all) for outcome in outcomes]
    more = [
        (
            f"{outcome.recording.utilisation:.1%}",
            f"{outcome.recording.fragmentation:.1%}",
            f"{outcome.recording.series.peak[2]:,.0f}",
        )
        for outcome in outcomes
    ]
    return _table("", "policy", rows, COLUMNS, ("utilisation", "stranded", "longest queue"), more)


def _groups(outcomes: Sequence[Outcome]) -> Iterable[str]:
    kinds: tuple[tuple[str, str, list[Mapping[str, Figures]]], ...] = (
        ("Bins", "short: under 4 h; small: at most 8 GPUs; SL is small and long", [o.results.by_bin for o in outcomes]),
        (
            "Bins of the paper's testbed",
            "short: under 800 s; small: at most 4 GPUs",
            [o.results.by_scaled_bin for o in outcomes],
        ),
        ("Duration", "short: under 15 min; middle: to 6 h; long: above", [o.results.by_group for o in outcomes]),
        ("Virtual clusters", "", [o.results.by_vc for o in outcomes]),
    )
    for title, meaning, found in kinds:
        if title == "Virtual clusters" and list(found[0]) == [""]:
            continue
        yield f"<h3>{title}</h3>"
        for name in found[0]:
            rows = [(outcome.experiment.name, groups[name]) for outcome, groups in zip(outcomes, found, strict=True)]
            if rows[0][1].jobs:
                yield _table(name or "(none)", "policy", rows, FEW_COLUMNS)
        if meaning:
            yield f'<p class="faint">{escape(meaning)}</p>'


def _table(
    caption: str,
    first: str,
    rows: Sequence[tuple[str, Figures]],
    columns: Sequence[Column],
    more_titles: Sequence[str] = (),
    more: Sequence[Sequence[str]] = (),
) -> str:
    values = [[column.of(figures) for _, figures in rows] for column in columns]
    best = [best_of(column, of) for column, of in zip(columns, values, strict=True)]
    head = "".join(f"<th>{escape(title)}</th>" for title in (first, *(c.title for c in columns), *more_titles))
    lines = []
    for at, (name, _) in enumerate(rows):
        cells = [
            f'<td class="best">{column.text(of[at])}</td>' if at in good else f"<td>{column.text(of[at])}</td>"
            for column, of, good in zip(columns, values, best, strict=True)
        ]
        cells += [f"<td>{escape(text)}</td>" for text in (more[at] if more else ())]
        lines.append(f'<tr><td class="name">{escape(name)}</td>{"".join(cells)}</tr>')
    told = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "\n".join(lines)
    return f'<div class="wide"><table>{told}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'


def _glossary() -> str:
    told = [(column.title, column.meaning) for column in COLUMNS if column.meaning]
    told += [
        ("stranded", "GPUs that were free and yet of no use to a job of a whole node, as a share of all"),
        ("longest queue", "the most jobs that ever waited at once"),
        ("*", "the best of its column"),
    ]
    terms = "".join(f"<dt>{escape(title)}</dt><dd>{escape(meaning)}</dd>" for title, meaning in told)
    return f"<details><summary>What the columns mean</summary><dl>{terms}</dl></details>"


def _settings(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        for part, fields in outcome.experiment.settings().items():
            told = ", ".join(f"{name}={value}" for name, value in fields.items() if name != "name")
            row = (outcome.experiment.name, part, str(fields["name"]), told or "-")
            lines.append("<tr>" + "".join(f'<td class="name">{escape(cell)}</td>' for cell in row) + "</tr>")
    head = "".join(f"<th>{title}</th>" for title in ("run", "part", "name", "settings"))
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
