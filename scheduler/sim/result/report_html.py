"""HTML frame of a report's page: complete in itself, readable on light and on dark."""

from collections.abc import Iterable, Sequence
from html import escape

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
table.words td { white-space: normal; vertical-align: top; } table.words th { text-align: left; }
th:first-child, td:first-child, td.name { text-align: left; } thead th { color: var(--faint); font-weight: 600; }
td.best { color: var(--mark); font-weight: 700; } td.best::after { content: " *"; }
svg { width: 100%; height: auto; } dt { font-weight: 600; float: left; clear: left; min-width: 8rem; }
dd { margin-left: 8.5rem; } code { font-size: .9em; }
"""


def document(title: str, facts: Sequence[str], body: Iterable[str]) -> str:
    """HTML of a whole page. ``facts``: lines about its subject; ``body``: HTML."""
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
            f"<h1>{escape(title)}</h1>",
            *(f'<p class="facts">{escape(fact)}</p>' for fact in facts),
            *body,
            "</body>\n</html>\n",
        )
    )


def figure(title: str, told: str, svg: str, level: int = 2) -> str:
    """A picture with its title and what is seen there."""
    caption = f'<figcaption class="faint">{escape(told)}</figcaption>'
    return f"<h{level}>{escape(title)}</h{level}>\n<figure>{svg}{caption}</figure>"
