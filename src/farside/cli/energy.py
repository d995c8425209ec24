"""The command `farside energy`: savings and costs if idle nodes had slept."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from farside.cli import options
from farside.errors import ConfigError

if TYPE_CHECKING:
    from farside.scheduler.energy.catalog import Question

energy_app = typer.Typer(
    help="Simulate policies that let idle nodes sleep.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LONGEST_BOOT_S = 86400.0


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ConfigError(f"'{value}' is not a finite number", hint="give watts, a share, or kg")
    return value


def _boot_s(value: float) -> float:
    if not 0 <= value <= LONGEST_BOOT_S:
        raise ConfigError(f"--boot-s {value:g}: is not a boot time", hint="give 0 to 86400 seconds")
    return value


_Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="SERIES...",
        help="CSV, plain or gzip: time,active,total (nodes) or time,running_gpu_num,total_gpu_num; files are summed.",
    ),
]
_Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a parameter of the policy (repeatable).")
]
_BootS = Annotated[
    float, typer.Option("--boot-s", min=0, help="Boot time of a node in seconds, at most one day.", callback=_boot_s)
]
_Holidays = Annotated[
    list[str] | None, typer.Option("--holiday", metavar="DATE", help="Public holiday, for forecasts (repeatable).")
]
_HolidaysFile = Annotated[
    Path | None, typer.Option("--holidays", metavar="FILE", help="File with a public holiday a line, for forecasts.")
]
_Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Plot to this file: PNG, SVG or PDF.")]
_Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Write all figures to this file as JSON; -: to standard output."),
]


def _question(
    files: _Files,
    train_to: Annotated[
        str | None,
        typer.Option("--train-to", metavar="TIME", help="Train forecasts on data before this time; default: --from."),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="Start of the window; default: after two thirds of the series."),
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="End of the window; default: end of the series.")
    ] = None,
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", min=1, help="GPUs of each node, for a series in GPUs.")
    ] = 8,
    zeros: Annotated[
        Literal["auto", "gap", "real"],
        typer.Option("--zeros", help="How to read zero busy nodes; auto: as gaps, except in a single series in GPUs."),
    ] = "auto",
    holidays: _Holidays = None,
    holidays_file: _HolidaysFile = None,
) -> "Question":
    from farside.scheduler.energy.busy_series import Zeros
    from farside.scheduler.energy.catalog import Question
    from farside.scheduler.sim.energy.read_series import read_series, seconds_of

    meant: Mapping[str, Zeros | None] = {"auto": None, "gap": Zeros.GAP, "real": Zeros.REAL}
    series = read_series(files, gpus_per_node=gpus_per_node, zeros=meant[zeros])
    first = series.index(seconds_of(begin, of="--from")) if begin else len(series) * 2 // 3
    last = series.index(seconds_of(end, of="--to")) if end else len(series)
    trained = series.index(seconds_of(train_to, of="--train-to")) if train_to else first
    if not 0 < first < last:
        raise ConfigError(
            f"--from {begin or '(two thirds)'} to {end or '(the end)'} has no interval of {files[0]} with a past",
            hint="give times within the series",
        )
    if trained > first:
        raise ConfigError("--train-to is after --from", hint="a forecast must not train on the days that test it")
    days_off = _days_off(holidays, holidays_file)
    return Question(series=series, train_to=trained, begin=first, end=last, holidays=days_off)


def _days_off(dates: list[str] | None, file: Path | None) -> frozenset[int]:
    """Public holidays, as days since 1970-01-01.

    Raises:
        ConfigError: A date is none, or the file can't be used.
    """
    from farside.scheduler.energy.holidays import holiday, read_holidays

    told = frozenset(holiday(day, of="--holiday") for day in dates or ())
    return told | (read_holidays(file) if file else frozenset[int]())


@energy_app.command()
@options.made(question=_question)
def replay(
    question: "Question",
    files: _Files,
    policy: Annotated[str, typer.Option(help="Policy: ces, paper, rule, vanilla or none.")] = "ces",
    settings: _Set = None,
    boot_s: _BootS = 300.0,
    idle_w: Annotated[
        float, typer.Option("--idle-w", min=0, help="Power of an idle node in watts.", callback=_finite)
    ] = 800.0,
    cooling: Annotated[
        float, typer.Option(min=0, help="Power of cooling per watt of the nodes.", callback=_finite)
    ] = 2.0,
    co2: Annotated[
        float, typer.Option("--kg-co2-per-kwh", min=0, help="CO2 of your electricity in kg per kWh.", callback=_finite)
    ] = 0.48,
    json_to: _Json = None,
    plot: _Plot = None,
) -> None:
    """Replay one policy on a window of a series.

    The policy sees only data from before each decision. `--policy ces --set wakeups_per_day=0.5` keeps to a given
    risk; `--policy rule --set wakeups_per_day=0.5` is the two-line rule, tuned on the past to that risk.
    """
    from farside.cli.energy_report import give, print_report, report_of
    from farside.scheduler.energy.catalog import check_replayed_holidays, prepare
    from farside.scheduler.sim.energy.replay import figures, play
    from farside.scheduler.sim.energy.saving import Power

    _check_places({"--json": json_to, "--plot": plot}, files)
    told = {name: _text(value) for name, value in options.overrides(settings).items()}
    if question.holidays:
        check_replayed_holidays(policy, told)
    prepared = prepare(policy, told, question)
    played = play(prepared.policy, question.series, question.begin, question.end, boot_s=boot_s)
    power = Power(idle_w=idle_w, cooling_share=cooling, kg_co2_per_kwh=co2)
    found = figures(played, boot_s=boot_s)
    report = report_of(question, prepared, found, power, policy=policy, settings=told, boot_s=boot_s)
    if plot:
        from farside.cli.energy_plot import plot_replay

        plot_replay(plot, question, played, title=f"{policy} on {_named(files)}")
    give(report, json_to, print_report)


@energy_app.command()
@options.made(question=_question)
def pareto(
    question: "Question",
    files: _Files,
    policies: Annotated[
        list[str] | None, typer.Option("--policy", help="Policy to sweep (repeatable); default: all.")
    ] = None,
    boot_s: _BootS = 300.0,
    json_to: _Json = None,
    plot: _Plot = None,
) -> None:
    """Sweep the parameters of each policy on a window.

    Shows and plots sleeping nodes over wake-ups per day and over missing nodes: the gain for a risk, per policy.
    """
    from farside.cli.energy_report import give, print_points
    from farside.scheduler.sim.energy.sweep import sweep

    _check_places({"--json": json_to, "--plot": plot}, files)
    if question.holidays and policies and "paper" not in policies:  # the others are swept without a forecast
        raise ConfigError("--holidays, --holiday: is for paper's forecast, which is not swept", hint="leave it out")
    points = sweep(question, tuple(policies or ()), boot_s=boot_s)
    if plot:
        from farside.cli.energy_plot import plot_points

        plot_points(plot, points, title=_named(files))
    give(points, json_to, print_points)


@energy_app.command()
@options.made(question=_question)
def forecast(
    question: "Question",
    files: _Files,
    json_to: _Json = None,
) -> None:
    """Compare forecasts of busy nodes on a window.

    Compares boosted trees, persistence, seasonal naive and, if statsmodels is installed, ARIMA and exponential
    smoothing: the errors of the predicted mean, and the accuracy of the quantiles of the predicted maximum.
    """
    from farside.cli.energy_report import give, print_forecasts
    from farside.scheduler.sim.energy.compare import compare

    _check_places({"--json": json_to}, files)
    scores = compare(question)
    give(scores, json_to, print_forecasts)


@energy_app.command()
def jobs(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="Trace file, plain or gzip, or builtin:NAME.")],
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs of each node.")],
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes of the cluster, or of the one virtual cluster.")
    ] = None,
    vc_nodes: Annotated[Path | None, typer.Option(help="CSV with the number of nodes of each virtual cluster.")] = None,
    vc: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only jobs of this virtual cluster (repeatable).")
    ] = None,
    order: Annotated[
        str, typer.Option(metavar="NAME", help="Policy that orders jobs, as in `farside sim run`.")
    ] = "fifo",
    policy: Annotated[str, typer.Option(help="Policy: ces, paper, rule, vanilla or none.")] = "ces",
    settings: _Set = None,
    holidays: _Holidays = None,
    holidays_file: _HolidaysFile = None,
    tenants: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Apply accounts and QOS of this manager.toml to jobs.")
    ] = None,
    maintenance: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Close nodes for maintenance: nodes,begin,end and planned,reason."),
    ] = None,
    fleet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml", help="Apply floor, always_on and time limits of this manager.toml to switching."
        ),
    ] = None,
    boot_s: _BootS = 300.0,
    json_to: _Json = None,
) -> None:
    """Run a trace of jobs on nodes that sleep.

    Shows which jobs are delayed and by how much, compared to the same run without sleep.
    """
    from farside.cli.energy_jobs import compare_runs, passed_over
    from farside.cli.energy_report import give, print_cost
    from farside.cli.sim import Request
    from farside.cli.terminal import note

    inputs = (trace, vc_nodes, holidays_file, tenants, maintenance, fleet)
    _check_places({"--json": json_to}, [path for path in inputs if path])
    request = Request(
        trace=trace,
        policy=order,
        gpus_per_node=gpus_per_node,
        nodes=nodes,
        vc_nodes=vc_nodes,
        vc=vc,
        tenants=tenants,
        maintenance=maintenance,
    )
    told = {name: _text(value) for name, value in options.overrides(settings).items()}
    days_off = _days_off(holidays, holidays_file)
    if fleet and (names := passed_over(fleet)):
        note(f"--fleet {fleet}: does not count here: {', '.join(names)}; give --policy, --set, --holidays and --boot-s")
    cost = compare_runs(request, policy, told, boot_s=boot_s, holidays=days_off, fleet=fleet)
    give(cost, json_to, lambda cost: print_cost(cost, policy))


def _check_places(outputs: Mapping[str, Path | None], inputs: Sequence[Path]) -> None:
    """Finds out before the work whether results have a place, and that none is a file that is read.

    Raises:
        ConfigError: A file cannot be written, or is read as well.
    """
    from farside.scheduler.sim.output_files import check_apart, check_writable

    wanted = {name: path for name, path in outputs.items() if path not in (None, Path("-"))}
    plot = wanted.get("--plot")
    if plot is not None and plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--plot {plot}: is not a picture", hint="give a name that ends in .png, .svg or .pdf")
    check_apart(wanted, {f"the input {path}": path for path in inputs})
    check_writable(wanted.values())


def _named(files: list[Path]) -> str:
    return files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"


def _text(value: object) -> str:
    # Policies read their settings from text, where a flag is true or false (scheduler/settings.py).
    return str(value).lower() if isinstance(value, bool) else str(value)
