"""Tables and files that `farside energy` writes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from farside.scheduler.energy.catalog import Prepared, Question
from farside.scheduler.sim.energy.compare import Scores
from farside.scheduler.sim.energy.replay import Figures
from farside.scheduler.sim.energy.saving import Power, co2_kg_a_year, kwh_a_year
from farside.scheduler.sim.energy.sleeping import Cost
from farside.scheduler.sim.energy.sweep import Point
from farside.scheduler.sim.output_files import written


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All figures of a replay, flat; what is not known is NaN.

    SMAPE is in percent at ``horizon_s``, the quantiles' losses in nodes; ``forecast_used``: for decisions.
    """

    policy: str
    settings: Mapping[str, str]
    begin: str
    end: str
    train_to: str
    boot_s: float
    intervals: int
    gap_intervals: int
    above_rows: int
    nodes: float
    days: float
    sleeping_nodes: float
    wakeups_per_day: float
    nodes_per_wakeup: float
    utilisation_before: float
    utilisation_after: float
    short_intervals: int
    short_nodes: float
    delayed_node_s: float
    kwh_per_year: float
    co2_kg_per_year: float
    horizon_s: float
    smape: float
    persistence_smape: float
    quantile_loss: float
    persistence_quantile_loss: float
    forecast_used: bool
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a replay was asked for."""

    policy: str
    settings: Mapping[str, str]
    boot_s: float
    power: Power


def report_of(asked: Asked, question: Question, prepared: Prepared, figures: Figures) -> Report:
    """Puts together what a replay and its forecast came to."""
    series, window = question.series, slice(question.begin, question.end)
    forecast = prepared.judge()
    return Report(
        policy=asked.policy,
        settings=asked.settings,
        begin=time_text(question, question.begin),
        end=time_text(question, question.end),
        train_to=time_text(question, question.train_to),
        boot_s=asked.boot_s,
        intervals=question.end - question.begin,
        gap_intervals=int(series.is_gap[window].sum()),
        above_rows=series.above_rows,
        nodes=float(series.total[window].mean()),
        **asdict(figures),
        kwh_per_year=kwh_a_year(figures.sleeping_nodes, asked.power),
        co2_kg_per_year=co2_kg_a_year(figures.sleeping_nodes, asked.power),
        horizon_s=forecast.horizon_s,
        smape=forecast.smape,
        persistence_smape=forecast.persistence_smape,
        quantile_loss=forecast.quantile_loss,
        persistence_quantile_loss=forecast.persistence_quantile_loss,
        forecast_used=forecast.is_used,
        remark="; ".join(part for part in (prepared.remark, forecast.remark) if part),
    )


def time_text(question: Question, step: int) -> str:
    """The start of an interval as a date."""
    at_s = question.series.start_s + step * question.series.step_s
    return str(np.datetime64(int(at_s), "s")).replace("T", " ")


def write_json(path: Path, value: Report | Sequence[Point] | Scores | Cost) -> None:
    """As JSON to a file, or to standard output for ``-``; what is not known is null.

    Raises:
        FarsideError: The file can't be written; what was there stays.
    """
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    if path == Path("-"):
        print(text.decode(), end="")
        return
    with written(path) as place:
        place.write_bytes(text)


def print_report(report: Report) -> None:
    """A replay for people."""
    table = _two_columns(f"{report.policy}, {report.begin} to {report.end}")
    for name, value in (
        ("nodes", f"{report.nodes:.1f}"),
        ("asleep on average", f"{report.sleeping_nodes:.1f}"),
        ("wake-ups a day", f"{report.wakeups_per_day:.2f}"),
        ("nodes at a time", f"{report.nodes_per_wakeup:.1f}"),
        ("utilisation before", f"{report.utilisation_before:.1%}"),
        ("utilisation after", f"{report.utilisation_after:.1%}"),
        ("intervals short", f"{report.short_intervals}"),
        ("node-intervals short", f"{report.short_nodes:.0f}"),
        ("waited for nodes", f"{report.delayed_node_s / 3600:.1f} node-hours"),
        ("electricity saved", f"{report.kwh_per_year / 1e6:.3f} GWh a year"),
        ("CO2 saved", f"{report.co2_kg_per_year / 1000:.0f} t a year"),
        ("gaps in the data", f"{report.gap_intervals} of {report.intervals} intervals"),
        (f"forecast, SMAPE at {report.horizon_s / 3600:.3g} h", _known(report.smape, "%")),
        ("persistence, SMAPE", _known(report.persistence_smape, "%")),
    ):
        table.add_row(name, value)
    if not math.isnan(report.quantile_loss):
        table.add_row("quantiles of the maximum, loss", _known(report.quantile_loss, "nodes"))
        table.add_row("persistence, loss", _known(report.persistence_quantile_loss, "nodes"))
    if report.above_rows:
        table.add_row("rows with more busy than there are", f"{report.above_rows}, taken as all busy")
    _console().print(table)
    _console().print(report.remark)


def print_points(points: Sequence[Point]) -> None:
    """A sweep for people: only what no other parameters of the same policy beat."""
    table = Table("policy", title="what a risk buys", title_justify="left")
    table.add_column("setting", no_wrap=True)
    for name in ("wake-ups a day", "asleep", "node-intervals short"):
        table.add_column(name, justify="right")
    for point in points:
        if point.is_on_frontier:
            table.add_row(
                point.policy,
                point.setting,
                f"{point.wakeups_per_day:.2f}",
                f"{point.sleeping_nodes:.1f}",
                f"{point.short_nodes:.0f}",
            )
    _console().print(table)


def print_forecasts(scores: Scores) -> None:
    """A comparison for people."""
    horizons = sorted({one.horizon_s for one in scores.means})
    table = Table("SMAPE of the mean ahead, %", title=f"{scores.origins} origins", title_justify="left")
    for horizon_s in horizons:
        table.add_column(f"{horizon_s / 3600:.3g} h", justify="right")
    for method in dict.fromkeys(one.method for one in scores.means):
        found = {one.horizon_s: one.smape for one in scores.means if one.method == method}
        table.add_row(method, *(_known(found[horizon_s]) for horizon_s in horizons))
    _console().print(table)
    table = Table("quantile of the maximum ahead", "held", "loss", "persistence's loss")
    for one in scores.quantiles:
        held = _known(100 * one.held, "%")
        table.add_row(f"{one.quantile:.0%}", held, _known(one.loss), _known(one.persistence_loss))
    _console().print(table)
    for remark in scores.remarks:
        _console().print(remark)


def print_cost(cost: Cost, policy: str) -> None:
    """What sleep did to jobs, for people."""
    table = _two_columns(policy)
    for name, value in (
        ("asleep on average", f"{cost.sleeping_nodes:.1f}"),
        ("wake-ups a day", f"{cost.wakeups_per_day:.2f}"),
        ("nodes at a time", f"{cost.nodes_per_wakeup:.1f}"),
        ("jobs delayed", f"{cost.delayed_jobs}"),
        ("by, on average", f"{cost.mean_delay_s:.0f} s"),
        ("at most", f"{cost.max_delay_s:.0f} s"),
        ("average JCT", f"{cost.mean_jct_s:.0f} s"),
        ("without sleep", f"{cost.mean_jct_before_s:.0f} s"),
    ):
        table.add_row(name, value)
    _console().print(table)


def _two_columns(title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    return table


def _known(value: float, unit: str = "") -> str:
    return "not known" if math.isnan(value) else f"{value:.2f} {unit}".rstrip()


def _console() -> Console:
    return Console(markup=False, emoji=False, highlight=False)
