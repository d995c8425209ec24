"""The page of a report: tables, pictures and the words around them, as one HTML text that needs nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from farside.scheduler.sim.experiment import Outcome
from farside.scheduler.sim.result.column import COLUMNS, FEW_COLUMNS, Column, best_of
from farside.scheduler.sim.result.figures import Figures

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --faint: #6b7280; --line: #d9dce1; --mark: #0b6e4f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e7ea; --paper: #15171a; --faint: #9aa0aa; --line: #33373d; --mark: #5fd3a4; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin-bottom: .3rem; } p.facts, caption, .faint { color: var(--faint); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, td.name { text-align: left; } thead th { color: var(--faint); font-weight: 600; }
td.best { color: var(--mark); font-weight: 700; } td.best::after { content: " *"; }
svg { width: 100%; height: auto; } dt { font-weight: 600; float: left; clear: left; min-width: 8rem; }
dd { margin-left: 8.5rem; } code { font-size: .9em; }
"""


def page(
    *,
    title: str,
    facts: Sequence[str],
    outcomes: Sequence[Outcome],
    pictures: Sequence[tuple[str, str, str]],
    timelines: Sequence[tuple[str, str, str]],
) -> str:
    """The whole page.

    Args:
        title: Of the page.
        facts: What was run on what, a line each.
        outcomes: What came out.
        pictures: Title, what is seen there, and SVG.
        timelines: The same of the nodes, one a policy.
    """
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            f"<h1>{escape(title)}</h1>",
            *(f'<p class="facts">{escape(fact)}</p>' for fact in facts),
            "<h2>Figures</h2>",
            _overview(outcomes),
            _glossary(),
            *(_picture(*picture) for picture in pictures),
            "<h2>By group</h2>",
            *_groups(outcomes),
            *(["<h2>Nodes over time</h2>"] if timelines else []),
            *(_picture(*picture, level=3) for picture in timelines),
            "<h2>Settings</h2>",
            _settings(outcomes),
            "</body>\n</html>\n",
        )
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


def _picture(title: str, told: str, svg: str, level: int = 2) -> str:
    caption = f'<figcaption class="faint">{escape(told)}</figcaption>'
    return f"<h{level}>{escape(title)}</h{level}>\n<figure>{svg}{caption}</figure>"


def _settings(outcomes: Sequence[Outcome]) -> str:
    lines = []
    for outcome in outcomes:
        for part, fields in outcome.experiment.settings().items():
            told = ", ".join(f"{name}={value}" for name, value in fields.items() if name != "name")
            row = (outcome.experiment.name, part, str(fields["name"]), told or "-")
            lines.append("<tr>" + "".join(f'<td class="name">{escape(cell)}</td>' for cell in row) + "</tr>")
    head = "".join(f"<th>{title}</th>" for title in ("run", "part", "name", "settings"))
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
