"""Cluster energy saving: Table 5 of Helios on Philly's November, and what a stated risk buys. [helios §4.3.3]

Real series are read where they are; without them the figures say so.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figure import Figure, Row, Table
from farside.scheduler.energy.catalog import Question, prepare
from farside.scheduler.sim.energy.read_series import read_series, seconds_of
from farside.scheduler.sim.energy.replay import Figures, figures, play
from farside.scheduler.sim.energy.saving import Power, kwh_a_year

ASKED = (0.25, 0.5, 1.0, 2.0)
PHILLY, EARTH = "philly_nodes_oct_nov.csv.gz", "earth_vc*.csv.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A replay: files, and the dates of `Question`."""

    name: str
    files: str
    train_to: str
    begin: str
    end: str


NOVEMBER = Window(name="Philly, Nov 15-28", files=PHILLY, train_to="2017-11-05", begin="2017-11-15", end="2017-11-29")
EARTH_WEEK = Window(name="Earth, May 15-21", files=EARTH, train_to="2020-05-12", begin="2020-05-15", end="2020-05-22")
WINDOWS = (
    NOVEMBER,
    Window(name="Philly, Oct 20 - Nov 2", files=PHILLY, train_to="2017-10-16", begin="2017-10-20", end="2017-11-03"),
    EARTH_WEEK,
)
OTHER_WEEKS = (
    Window(name="Philly, Oct 10-23", files=PHILLY, train_to="2017-10-10", begin="2017-10-10", end="2017-10-24"),
    Window(name="Philly, Nov 1-14", files=PHILLY, train_to="2017-11-01", begin="2017-11-01", end="2017-11-15"),
    Window(name="Philly, Nov 20-30", files=PHILLY, train_to="2017-11-20", begin="2017-11-20", end="2017-12-01"),
    Window(name="Earth, May 8-14", files=EARTH, train_to="2020-05-08", begin="2020-05-08", end="2020-05-15"),
)
AHEAD: Mapping[str, str] = {"forecast": "true", "wake_ahead": "true", "forecast_s": "2h"}
# Philly's column of Table 5, December 1-14 2017.
PAPER: Row = ("paper, December; looks ahead", "100.1", "0.5", "27.1", "69.0 %", "90.4 %", "-", "-")
POLICIES: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("Algorithm 2, artifact's features; looks ahead", "paper", {"features": "artifact"}),
    ("Algorithm 2, those features 10 h earlier", "paper", {"features": "lags"}),
    ("Algorithm 2, our causal features", "paper", {}),
    ("vanilla DRS, 20 nodes", "vanilla", {}),
    ("two-line rule, 40 nodes, 6 h", "rule", {}),
    ("two-line rule, tuned before to 0.5 a day", "rule", {"wakeups_per_day": "0.5"}),
    ("CES, 0.5 wake-ups a day", "ces", {"wakeups_per_day": "0.5"}),
    ("no sleep", "none", {}),
)


def table_5(data: Path) -> Figure:
    """Each policy on Nov 15-28, beside the paper's December."""
    found = question_of(data, NOVEMBER)
    rows = [PAPER]
    if found is not None:
        rows += [_row(label, _played(policy, settings, found)) for label, policy, settings in POLICIES]
    header = (
        "policy", "asleep", "wake-ups/day", "nodes each", "utilisation", "with sleep", "intervals short", "GWh/year",
    )  # fmt: skip
    return Figure(
        key="energy-table-5",
        title="Nodes put to sleep",
        source="helios Table 5",
        tables=(Table(caption=f"{NOVEMBER.name} 2017, boot 5 min", header=header, rows=tuple(rows)),),
        notes=(
            "The paper's forecast of the next 5 h is made of features that end up to 9 h after the decision.",
            "Its December is not among the data: the two columns are of different weeks.",
            *(() if found else ("No series on this machine: only the paper's figures.",)),
        ),
    )


def risk(data: Path) -> Figure:
    """What was asked and what was reached, beside the two-line rule tuned to the same risk on what lay before."""
    rows: list[Row] = []
    pool: dict[str, list[Figures]] = {"ces": [], "ces, forecasts": [], "rule": []}
    for window in WINDOWS:
        found = question_of(data, window)
        for asked in ASKED if found else ():
            assert found is not None
            told = {"wakeups_per_day": f"{asked:g}"}
            pool["ces"].append(_played("ces", told, found))
            pool["ces, forecasts"].append(_played("ces", {**told, "forecast": "true"}, found))
            pool["rule"].append(_played("rule", told, found))
            rows.append((f"{window.name}: {asked:g}", *_cells(asked, [parts[-1] for parts in pool.values()])))
    if rows:
        sums = [
            (f"{sum(p.sleeping_nodes for p in parts):.1f}", "", f"{sum(p.short_nodes for p in parts):.0f}")
            for parts in pool.values()
        ]
        rows.append(("pooled", *(cell for cells in sums for cell in cells)))
    header = ("wake-ups a day", *(f"{name}: {what}" for name in pool for what in ("asleep", "reached", "short")))
    return Figure(
        key="energy-risk",
        title="A stated risk, and what it buys",
        source="ours",
        tables=(Table(caption="nodes asleep, wake-ups by what was asked, node-intervals short", header=header,
                      rows=tuple(rows)),),
        notes=("The rule's buffer and memory are the best on all data before each window.",)
        if rows
        else ("No series on this machine.",),
    )  # fmt: skip


def wake_ahead(data: Path) -> Figure:
    """CES as it is, and waking nodes 2 h before a forecast says that jobs will lack them."""
    rows: list[Row] = []
    pool: dict[str, list[Figures]] = {"as it is": [], "2 h ahead": []}
    for window in WINDOWS:
        found = question_of(data, window)
        for asked in ASKED[1:] if found else ():
            assert found is not None
            told = {"wakeups_per_day": f"{asked:g}"}
            pool["as it is"].append(_played("ces", told, found))
            pool["2 h ahead"].append(_played("ces", {**told, **AHEAD}, found))
            rows.append((f"{window.name}: {asked:g}", *_with_intervals(asked, [parts[-1] for parts in pool.values()])))
    if rows:
        sums = [
            (f"{sum(p.sleeping_nodes for p in parts):.1f}", "",
             f"{sum(p.short_intervals for p in parts)} ({sum(p.short_nodes for p in parts):.0f})")
            for parts in pool.values()
        ]  # fmt: skip
        rows.append(("pooled", *(cell for cells in sums for cell in cells)))
    header = ("wake-ups a day", *(f"{name}: {what}" for name in pool for what in ("asleep", "reached", "short")))
    return Figure(
        key="energy-wake-ahead",
        title="Nodes woken before jobs lack them",
        source="ours",
        tables=(Table(caption="nodes asleep, wake-ups by what was asked, intervals (node-intervals) short",
                      header=header, rows=tuple(rows)),),
        notes=(f"Ahead: {', '.join(f'{name}={value}' for name, value in AHEAD.items())}.",)
        if rows
        else ("No series on this machine.",),
    )  # fmt: skip


def other_weeks(data: Path) -> Figure:
    """What was asked and what was reached on weeks that overlap with, or lie beside, those of `risk`."""
    rows: list[Row] = []
    for window in OTHER_WEEKS:
        found = question_of(data, window)
        for asked in ASKED if found else ():
            assert found is not None
            told = {"wakeups_per_day": f"{asked:g}"}
            rows.append(
                (f"{window.name}: {asked:g}", *_cells(asked, [_played(of, told, found) for of in ("ces", "rule")]))
            )
    header = (
        "wake-ups a day",
        *(f"{name}: {what}" for name in ("ces", "rule") for what in ("asleep", "reached", "short")),
    )
    return Figure(
        key="energy-other-weeks",
        title="A stated risk on other weeks",
        source="ours",
        tables=(Table(caption="nodes asleep, wake-ups by what was asked, node-intervals short", header=header,
                      rows=tuple(rows)),),
        notes=() if rows else ("No series on this machine.",),
    )  # fmt: skip


def earth(data: Path) -> Figure:
    """Each of Earth's virtual clusters by itself, at one wake-up a day: no node of one helps out another."""
    rows: list[Row] = []
    pool: dict[str, list[Figures]] = {"ces": [], "vanilla": [], "rule": []}
    for path in sorted((data / "cluster" / "nodes").glob(EARTH)):
        found = question_of(data, replace(EARTH_WEEK, files=path.name))
        assert found is not None
        for policy, parts in pool.items():
            told = {"buffer_nodes": "1"} if policy == "vanilla" else {"wakeups_per_day": "1"}
            parts.append(_played(policy, told, found))
        nodes = int(found.series.total[found.begin : found.end].max())
        name = path.name.removeprefix("earth_vc").removesuffix(".csv.gz")
        rows.append((name, f"{nodes}", *_cells(1.0, [parts[-1] for parts in pool.values()])))
    header = (
        "virtual cluster",
        "nodes",
        *(f"{name}: {what}" for name in pool for what in ("asleep", "a day", "short")),
    )
    return Figure(
        key="energy-earth",
        title="Earth's virtual clusters, one by one",
        source="ours; helios Table 5 has Earth as a whole",
        tables=(Table(caption=f"{EARTH_WEEK.name} 2020, one wake-up a day; vanilla keeps one node more than it needs",
                      header=header, rows=tuple(rows)),),
        notes=("A virtual cluster of few nodes asks for a node a few times a week: one event decides its figure.",)
        if rows
        else ("No series on this machine.",),
    )  # fmt: skip


def _cells(asked: float, parts: list[Figures]) -> Iterator[str]:
    for part in parts:
        yield f"{part.sleeping_nodes:.1f}"
        yield f"{part.wakeups_per_day / asked:.2f}x"
        yield f"{part.short_nodes:.0f}"


def _with_intervals(asked: float, parts: list[Figures]) -> Iterator[str]:
    for part in parts:
        yield f"{part.sleeping_nodes:.1f}"
        yield f"{part.wakeups_per_day / asked:.2f}x"
        yield f"{part.short_intervals} ({part.short_nodes:.0f})"


def question_of(data: Path, window: Window) -> Question | None:
    """The series of a window and its dates; None where the files are not."""
    files = sorted((data / "cluster" / "nodes").glob(window.files))
    if not files:
        return None
    series = read_series(files)
    times = (series.index(seconds_of(text)) for text in (window.train_to, window.begin, window.end))
    train_to, begin, end = times
    return Question(series=series, train_to=train_to, begin=begin, end=end)


def _played(policy: str, settings: Mapping[str, str], question: Question) -> Figures:
    prepared = prepare(policy, settings, question)
    return figures(play(prepared.policy, question.series, question.begin, question.end))


def _row(label: str, came: Figures) -> Row:
    return (
        label,
        f"{came.sleeping_nodes:.1f}",
        f"{came.wakeups_per_day:.2f}",
        f"{came.nodes_per_wakeup:.1f}",
        f"{came.utilisation_before:.1%}",
        f"{came.utilisation_after:.1%}",
        f"{came.short_intervals} ({came.short_nodes:.0f})",
        f"{kwh_a_year(came.sleeping_nodes, Power()) / 1e6:.2f}",
    )
