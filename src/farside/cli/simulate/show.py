"""Output of `farside sim`: progress on standard error, tables on standard output."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from farside.cli.figure_table import figure_table
from farside.cli.simulate.request import Prepared, size_of
from farside.cli.terminal import note, printable
from farside.scheduler.sim.experiment import Outcome
from farside.scheduler.sim.result.column import COLUMNS, FEW_COLUMNS, Column, best_of
from farside.scheduler.sim.result.figures import Figures

# Of a pipe or a file, so that no table is broken: they have no width of their own.
_WIDTH_ELSEWHERE = 200


class Show(Progress):
    """Progress bars, one a policy, on a terminal; nothing in a pipe."""

    def __init__(self, names: Sequence[str]) -> None:
        console = Console(stderr=True)
        # No thread of its own that refreshes: children are forked while it shows.
        super().__init__(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
            console=console, auto_refresh=False, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._policies = [self.add_task(name, total=1.0) for name in names]

    def tell(self, at: int, share: float) -> None:
        """How far one of them is, from 0 to 1."""
        self.update(self._policies[at], completed=share)
        self.refresh()


def print_run(prepared: Prepared, outcome: Outcome) -> None:
    """One run: its figures, then those of its groups."""
    console = _console()
    _print_facts(console, (*prepared.facts, _rules(outcome)))
    console.print(_one(outcome))
    found = outcome.results
    for title, groups in (("bin", found.by_bin), ("duration", found.by_group), ("virtual cluster", found.by_vc)):
        rows = [(name or "(none)", figures) for name, figures in groups.items() if figures.jobs]
        if len(rows) > 1:
            console.print(_table(title, rows, FEW_COLUMNS))
    _print_remarks([outcome])


def print_comparison(prepared: Prepared, outcomes: Sequence[Outcome]) -> None:
    """Several runs: a row a policy, the best of each column with a star."""
    console = _console()
    _print_facts(console, prepared.facts)
    rows = [(outcome.experiment.name, outcome.results.all) for outcome in outcomes]
    table = _table("policy", rows, COLUMNS, is_marked=True)
    # A table that is wider than the terminal would be broken into lines: it is turned instead.
    wanted = console.measure(table, options=console.options.update(max_width=_WIDTH_ELSEWHERE)).maximum
    console.print(table if wanted <= console.width else _turned(rows))
    if any(best_of(column, [column.of(figures) for _, figures in rows]) for column in COLUMNS):
        console.print(Text("* the best of its kind"), highlight=False)
    _print_remarks(outcomes)


def print_left_out(prepared: Prepared) -> None:
    """What was left out and skipped, on standard error."""
    for line in prepared.notes:
        note(line)
    if not prepared.left_out:
        return
    for problem in prepared.problems:
        note(f"skipped {problem}")
    more = prepared.left_out - len(prepared.problems)
    if more > 0:
        note(f"and {more} more")
    rows = "1 row was" if prepared.left_out == 1 else f"{prepared.left_out} rows were"
    note(f"{rows} skipped; the figures are those of the other jobs")


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_ELSEWHERE)


def _print_facts(console: Console, facts: Iterable[str]) -> None:
    for fact in facts:
        console.print(Text(printable(fact)), highlight=False, soft_wrap=True)


def _rules(outcome: Outcome) -> str:
    one = outcome.experiment
    cost, effect = one.preemption_cost.name, one.slowdown.name
    return f"policy {one.name}, placement {one.placement.name}, cost {cost}, effect {effect}"


def _one(outcome: Outcome) -> Table:
    table = figure_table("figure", "value")
    figures, recording = outcome.results.all, outcome.recording
    table.add_row("jobs", f"{figures.jobs:,}")
    for column in COLUMNS:
        table.add_row(column.title, column.text(column.of(figures)))
    table.add_row("utilisation", f"{recording.utilisation:.1%}")
    table.add_row("stranded", f"{recording.fragmentation:.1%}")
    table.add_row("longest queue", f"{recording.series.peak[2]:,.0f}")
    return table


def _table(
    first: str, rows: Sequence[tuple[str, Figures]], columns: Sequence[Column], *, is_marked: bool = False
) -> Table:
    table = figure_table(first, *(column.title for column in columns))
    cells = [_cells(column, rows, is_marked=is_marked) for column in columns]
    for at, (name, _) in enumerate(rows):
        table.add_row(Text(name), *(column[at] for column in cells))
    return table


def _turned(rows: Sequence[tuple[str, Figures]]) -> Table:
    """A column a policy, for narrow terminals."""
    table = figure_table("figure", *(Text(name) for name, _ in rows))
    for column in COLUMNS:
        table.add_row(column.title, *_cells(column, rows, is_marked=True))
    return table


def _cells(column: Column, rows: Sequence[tuple[str, Figures]], *, is_marked: bool) -> list[Text]:
    values = [column.of(figures) for _, figures in rows]
    best = best_of(column, values) if is_marked else set()
    return [
        Text(column.text(value) + (" *" if at in best else ""), style="bold green" if at in best else "")
        for at, value in enumerate(values)
    ]


def _print_remarks(outcomes: Sequence[Outcome]) -> None:
    """What a reader of the figures should know, on standard error."""
    for outcome in outcomes:
        for line in _estimates(outcome):
            note(line)
    free = [
        one.experiment.name
        for one in outcomes
        if one.experiment.preemption_cost.name == "free" and one.results.all.preemptions
    ]
    if free:
        note(f"preemptions cost nothing under {', '.join(free)}; --set cost=helios or cost=model charges them")


def _estimates(outcome: Outcome) -> Iterable[str]:
    """How good a learner's expectations were."""
    found = outcome.estimation
    if found is None or set(found.sources) <= {"oracle"}:
        return
    total = max(1, sum(found.sources.values()))
    by = ", ".join(f"{name} {count / total:.0%}" for name, count in found.sources.items())
    good = found.quality
    yield (
        f"{outcome.experiment.name} went by {by}; fitted {found.fits} times; its order is worth {good.saving:.0%}"
        f" of the true one's, rank correlation {good.spearman:.2f}, {good.within_2:.0%} within a factor of 2"
    )


def trace_facts(prepared: Prepared) -> Mapping[str, object]:
    """What the JSON says of the input."""
    size = size_of(prepared.scene)
    return {
        "jobs": len(prepared.scene.jobs),
        "left_out": prepared.left_out,
        "problems": list(prepared.problems),
        "notes": list(prepared.notes),
        "gpus": size.gpus,
        "least_gpus": size.least_gpus,
        "most_gpus": size.most_gpus,
        "facts": list(prepared.facts),
    }
