"""Tables of figures, and what else is printed of names that users and logs chose."""

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text


def figure_table(*names: str | Text, title: str | None = None, texts: int = 1) -> Table:
    """An empty table: the first ``texts`` columns hold text, the others figures."""
    table = Table(title=title, title_justify="left")
    for at, name in enumerate(names):
        table.add_column(name, justify="left" if at < texts else "right")
    return table


def print_plain(*parts: RenderableType) -> None:
    """Prints tables and lines; nothing in them is markup."""
    # Rich would take [red] or :smile: in the name of a job for its own.
    console = Console(markup=False, emoji=False, highlight=False)
    for part in parts:
        console.print(part)
