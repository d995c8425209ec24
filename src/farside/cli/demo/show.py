"""Output of the demo: a line for each step while it runs, and the table at the end."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from farside.cli.demo.report import Outcome, faults, rows

LINES_PER_S = 5


class Show:
    """The progress display: finished acts, and the running act with its traffic. Plain lines in a pipe."""

    def __init__(self, console: Console, beside: Callable[[], str]) -> None:
        """``beside``: text beside the running act."""
        self._console = console
        self._beside = beside
        self._began_s = time.monotonic()
        self._title = ""
        self._live = Live(get_renderable=self._line, console=console, refresh_per_second=LINES_PER_S, transient=True)

    def __enter__(self) -> Self:
        # In a pipe each redrawn line would be one line more.
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    @property
    def took_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began_s

    def begin(self, title: str) -> None:
        """Show that an act begins."""
        self._title = title

    def end(self, said: str, *, is_good: bool = True) -> None:
        """Show that the act has ended; `said` is its result."""
        mark = Text("ok   ", style="green") if is_good else Text("FAIL ", style="bold red")
        self._console.print(
            Text(f"{self.took_s:5.1f} s  ") + mark + Text(f"{self._title}: {said}"), highlight=False, soft_wrap=True
        )

    def _line(self) -> Text:
        beside = self._beside()
        return Text(f"{self.took_s:5.1f} s  ...  {self._title}" + (f"   ({beside})" if beside else ""))


def print_outcome(console: Console, found: Outcome) -> None:
    """Prints the table, and what was wrong if anything was."""
    table = Table("what", "how much", "", title="what happened", title_justify="left", header_style="bold")
    table.columns[1].justify = "right"
    for row in rows(found):
        table.add_row(*row)
    console.print(table)
    for fault in faults(found):
        console.print(Text("FAIL ", style="bold red") + Text(fault), highlight=False, soft_wrap=True)
