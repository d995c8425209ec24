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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The options of `farside serve plan`, as they were given."""

    table: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder with models.csv and tables of latencies and interference."),
    ]
    device: Annotated[
        str, typer.Option(metavar="NAME", help="Begin of the name of the tables, where the folder has several.")
    ] = ""
    rates: Annotated[
        str, typer.Option(metavar="MODEL=RATE,...", help="Requests a second of each model, such as resnet50=100.")
    ] = ""
    scenarios: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Judge many: a column for each model, a row for each scenario."),
    ] = None
    gpus: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=GPUS_MAX, help="Number of GPUs, of which as few as possible are used."),
    ] = 64
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
