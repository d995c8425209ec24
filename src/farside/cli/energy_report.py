"""Tables and files that `farside energy` writes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from rich.table import Table

from farside.cli.figure_table import figure_table, print_plain
from farside.scheduler.energy.catalog import Prepared, Question
from farside.scheduler.sim.energy.compare import Scores
from farside.scheduler.sim.energy.replay import Figures
from farside.scheduler.sim.energy.saving import Power, co2_kg_a_year, kwh_a_year
from farside.scheduler.sim.energy.sleeping import Cost
from farside.scheduler.sim.energy.sweep import Point
from farside.scheduler.sim.output_files import written

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Figures):
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
    kwh_per_year: float
    co2_kg_per_year: float
    horizon_s: float
    smape: float
    persistence_smape: float
    quantile_loss: float
    persistence_quantile_loss: float
    forecast_used: bool
    remark: str


def report_of(
    question: Question, prepared: Prepared, figures: Figures, power: Power, *, policy: str, settings: Mapping[str, str],
    boot_s: float,
) -> Report:  # fmt: skip
    """Puts together what a replay and its forecast came to."""
    series, window = question.series, slice(question.begin, question.end)
    forecast = prepared.judge()
    return Report(
        policy=policy,
        settings=settings,
        begin=time_text(question, question.begin),
        end=time_text(question, question.end),
        train_to=time_text(question, question.train_to),
        boot_s=boot_s,
        intervals=question.end - question.begin,
        gap_intervals=int(series.is_gap[window].sum()),
        above_rows=series.above_rows,
        nodes=float(series.total[window].mean()),
        **asdict(figures),
        kwh_per_year=kwh_a_year(figures.sleeping_nodes, power),
        co2_kg_per_year=co2_kg_a_year(figures.sleeping_nodes, power),
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


def give(value: ValueT, json_to: Path | None, show: Callable[[ValueT], None]) -> None:
    """Writes figures as JSON, to standard output for ``-``, and shows them to people otherwise. Null: not known.

    Raises:
        FarsideError: The file can't be written; what was there stays.
    """
    # msgspec writes NaN as null, which is what JSON has for it.
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    if json_to == Path("-"):
        print(text.decode(), end="")
        return
    if json_to:
        with written(json_to) as place:
            place.write_bytes(text)
    show(value)


def print_report(report: Report) -> None:
    """A replay for people."""
    rows = [
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
    ]
    if not math.isnan(report.quantile_loss):
        rows.append(("quantiles of the maximum, loss", _known(report.quantile_loss, "nodes")))
        rows.append(("persistence, loss", _known(report.persistence_quantile_loss, "nodes")))
    if report.above_rows:
        rows.append(("rows with more busy than there are", f"{report.above_rows}, taken as all busy"))
    _print_rows(f"{report.policy}, {report.begin} to {report.end}", rows)
    print_plain(report.remark)


def print_points(points: Sequence[Point]) -> None:
    """A sweep for people: only what no other parameters of the same policy beat."""
    columns = ("policy", "setting", "wake-ups a day", "asleep", "node-intervals short")
    table = figure_table(*columns, title="what a risk buys", texts=2)
    table.columns[1].no_wrap = True
    for point in points:
        if point.is_on_frontier:
            table.add_row(
                point.policy,
                point.setting,
                f"{point.wakeups_per_day:.2f}",
                f"{point.sleeping_nodes:.1f}",
                f"{point.short_nodes:.0f}",
            )
    print_plain(table)


def print_forecasts(scores: Scores) -> None:
    """A comparison for people."""
    horizons = sorted({one.horizon_s for one in scores.means})
    hours = (f"{horizon_s / 3600:.3g} h" for horizon_s in horizons)
    table = figure_table("SMAPE of the mean ahead, %", *hours, title=f"{scores.origins} origins")
    for method in dict.fromkeys(one.method for one in scores.means):
        found = {one.horizon_s: one.smape for one in scores.means if one.method == method}
        table.add_row(method, *(_known(found[horizon_s]) for horizon_s in horizons))
    print_plain(table)
    table = Table("quantile of the maximum ahead", "held", "loss", "persistence's loss")
    for one in scores.quantiles:
        held = _known(100 * one.held, "%")
        table.add_row(f"{one.quantile:.0%}", held, _known(one.loss), _known(one.persistence_loss))
    print_plain(table, *scores.remarks)


def print_cost(cost: Cost, policy: str) -> None:
    """What sleep did to jobs, for people."""
    rows = (
        ("asleep on average", f"{cost.sleeping_nodes:.1f}"),
        ("wake-ups a day", f"{cost.wakeups_per_day:.2f}"),
        ("nodes at a time", f"{cost.nodes_per_wakeup:.1f}"),
        ("jobs delayed", f"{cost.delayed_jobs}"),
        ("by, on average", f"{cost.mean_delay_s:.0f} s"),
        ("at most", f"{cost.max_delay_s:.0f} s"),
        ("average JCT", f"{cost.mean_jct_s:.0f} s"),
        ("without sleep", f"{cost.mean_jct_before_s:.0f} s"),
    )
    _print_rows(policy, rows)


def _print_rows(title: str, rows: Iterable[tuple[str, str]]) -> None:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    print_plain(table)


def _known(value: float, unit: str = "") -> str:
    return "not known" if math.isnan(value) else f"{value:.2f} {unit}".rstrip()
