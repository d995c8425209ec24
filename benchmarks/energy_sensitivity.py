"""Sensitivity of cluster energy saving to each constant: Algorithm 2's, which the paper's text lacks, and ours.

One at a time from its default, on Philly's Nov 15-28. Nothing is chosen by it: the defaults are the published code's,
and what other weeks gave.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.energy_saving import NOVEMBER, question_of
from benchmarks.figure import Figure, Line, Plot, Row, Table
from farside.scheduler.energy.catalog import Question, prepare
from farside.scheduler.energy.helios_policy import Paper, PaperSettings
from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.sim.energy.replay import Figures, figures, play

# Of Algorithm 2: sigma, the thresholds xi, and over which time the two trends are taken.
PAPER: Mapping[str, tuple[float, ...]] = {
    "buffer_nodes": (0, 5, 10, 20, 40, 60, 80),
    "past_threshold": (0.0, 0.1, 0.5, 1.0, 2.0, 5.0),
    "future_threshold": (-5.0, 0.0, 0.5, 1.0, 2.0, 5.0),
    "past_s": (600.0, 1200.0, 3600.0, 10800.0, 21600.0),
    "future_s": (3600.0, 10800.0, 18000.0, 36000.0),
    "hold_s": (0.0, 3000.0, 6000.0, 12000.0),
}
CES: Mapping[str, tuple[float, ...]] = {
    "half_life_s": (604800.0, 1209600.0, 2419200.0),
    "committee": (1, 3, 5),
    "aim": (1.0, 1.2, 1.5),
    "pace_events": (2.0, 4.0, 8.0),
}
WHOLE = ("buffer_nodes", "committee")


def figure(data: Path) -> Figure:
    """A table and plots; without the series it says so."""
    question = question_of(data, NOVEMBER)
    tables: list[Table] = []
    plots: list[Plot] = []
    for title, name, constants in (("Algorithm 2, causal", "paper", PAPER), ("CES, 0.5 a day", "ces", CES)):
        rows: list[Row] = []
        for constant, values in constants.items() if question else ():
            assert question is not None
            found = [
                (value, _played(policy, question)) for value, policy in _policies(name, constant, values, question)
            ]
            rows += [_row(constant, value, came) for value, came in found]
            plots.append(_plot(f"{title}: {constant}", f"{name}-{constant.replace('_', '-')}", constant, found))
        header = ("one constant changed", "asleep", "wake-ups/day", "intervals short (nodes)")
        tables.append(Table(caption=f"{title}, {NOVEMBER.name}", header=header, rows=tuple(rows)))
    return Figure(
        key="energy-sensitivity",
        title="Energy saving by each of its constants",
        source="helios §4.3.2; the text has no constants, its published code has",
        tables=tuple(tables),
        plots=tuple(plots),
        notes=(f"Defaults: {_defaults()}.",) if question else ("No series on this machine.",),
    )


def _policies(
    name: str, constant: str, values: tuple[float, ...], question: Question
) -> Iterator[tuple[float, EnergyPolicy]]:
    trained: EnergyPolicy | None = None
    for value in values:
        if name == "ces" or constant == "future_s":
            told = {"wakeups_per_day": "0.5"} if name == "ces" else {}
            yield value, prepare(name, {**told, constant: f"{value:g}"}, question).policy
            continue
        trained = trained or prepare(name, {}, question).policy  # one forecast serves all
        assert isinstance(trained, Paper)
        changed: dict[str, Any] = {constant: int(value) if constant in WHOLE else value}
        settings = replace(trained.settings, **changed)
        yield value, Paper(settings=settings, outlook=trained.outlook, step_s=trained.step_s)


def _played(policy: EnergyPolicy, question: Question) -> Figures:
    return figures(play(policy, question.series, question.begin, question.end))


def _row(constant: str, value: float, came: Figures) -> Row:
    short = f"{came.short_intervals} ({came.short_nodes:.0f})"
    return f"{constant} {value:g}", f"{came.sleeping_nodes:.1f}", f"{came.wakeups_per_day:.2f}", short


def _plot(title: str, name: str, constant: str, found: list[tuple[float, Figures]]) -> Plot:
    at = tuple(float(place) for place in range(len(found)))
    return Plot(
        name=f"energy-{name}",
        title=title,
        x_label=constant,
        y_label="nodes, wake-ups, node-intervals",
        lines=(
            Line(name="nodes asleep", x=at, y=tuple(came.sleeping_nodes for _, came in found)),
            Line(name="wake-ups in ten days", x=at, y=tuple(came.wakeups_per_day * 10 for _, came in found)),
            Line(name="node-intervals short", x=at, y=tuple(came.short_nodes for _, came in found)),
        ),
        ticks=tuple(f"{value:g}" for value, _ in found),
    )


def _defaults() -> str:
    paper = PaperSettings()
    return ", ".join(f"{name} {getattr(paper, name):g}" for name in PAPER)
