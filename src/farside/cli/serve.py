"""The command `farside serve`: plans inference on parts of GPUs, and simulates what comes of a plan."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from farside.cli import options

serve_app = typer.Typer(
    help="Plan inference within SLOs on parts of GPUs, and simulate it.", no_args_is_help=True, rich_markup_mode=None
)

GPUS_MAX = 256


_Table = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder with models.csv and tables of latencies and interference.")
]
_Device = Annotated[
    str, typer.Option(metavar="NAME", help="Begin of the name of the tables, where the folder has several.")
]
_Rates = Annotated[
    str, typer.Option(metavar="MODEL=RATE,...", help="Requests a second of each model, such as resnet50=100.")
]
_Gpus = Annotated[
    int, typer.Option(metavar="N", min=1, max=GPUS_MAX, help="Number of GPUs, of which as few as possible are used.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The options of `farside serve plan`, as they were given."""

    table: _Table
    device: _Device = ""
    rates: _Rates = ""
    scenarios: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Judge many: a column for each model, a row for each scenario."),
    ] = None
    gpus: _Gpus = 64
    scheduler: Annotated[
        Literal["sbp", "half", "greedy", "glet", "glet+int", "ideal"],
        typer.Option(
            help="Scheduler: squishy bin packing, the same on halves, greedy best fit, glet, glet with interference, "
            "or a search over all cuts."
        ),
    ] = "glet+int"


@serve_app.command()
@options.made(request=PlanRequest)
def plan(
    request: PlanRequest,
    json_out: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write verdict and plan of each scenario to this file."),
    ] = None,
) -> None:
    """Show which part of which GPU would serve which model.

    If the rates do not fit, shows which model has no place and how many GPUs would do, and exits with 1.
    """
    from farside.cli.serving.plan import run

    raise typer.Exit(run(request, json_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateRequest:
    """The options of `farside serve simulate`, as they were given."""

    table: _Table
    device: _Device = ""
    rates: _Rates = ""
    recorded: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="Rates that change: a column at_s, a column for each model, a row from each time on.",
        ),
    ] = None
    gpus: _Gpus = 64
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="A,B,...", help="Schedulers, separated by commas: sbp, half, greedy, glet, glet+int, ideal."
        ),
    ] = "glet+int"
    duration_s: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Seconds of requests; default: 120, or the last time of the file and 60."),
    ] = None
    load: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the planned-for rates that comes, such as 0.8 or 1.5.")
    ] = 1.0
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the Poisson arrivals.")] = 1
    early: Annotated[
        bool,
        typer.Option("--early/--no-early", help="Run a batch that is not full where nothing else would run meanwhile."),
    ] = True
    reorganise_s: Annotated[
        float, typer.Option(metavar="SECONDS", help="Seconds from a new plan to its switch, with --recorded.")
    ] = 12.0


@serve_app.command()
@options.made(request=SimulateRequest)
def simulate(
    request: SimulateRequest,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures of each scheduler to this file.")
    ] = None,
) -> None:
    """Simulate Poisson requests against the plans of schedulers.

    Counts requests that are answered within the SLO, late, or dropped. With --recorded the rates change, and the
    scheduler plans anew as it sees them do so.
    """
    from farside.cli.serving.simulate import run

    raise typer.Exit(run(request, json_out))
