"""The command `farside serve`: inference within SLOs on parts of devices, measured, planned, simulated and served."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from farside.cli import options

serve_app = typer.Typer(
    help="Inference within SLOs on parts of devices: measure models, plan, simulate, serve.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

GPUS_MAX = 256
IDEAL_GPUS_MAX = 12  # which all cuts are tried of


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
    int,
    typer.Option(
        metavar="N",
        min=1,
        max=GPUS_MAX,
        help="Number of GPUs; glet uses as few as it has a plan on, ideal maybe all. "
        f"For ideal it has to be given: {IDEAL_GPUS_MAX} at most, fewer where the table has many parts.",
    ),
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
    learn: Annotated[
        bool,
        typer.Option(
            "--learn/--no-learn",
            help="Learn how late batches end, and drop requests unread under overload, as live; the paper does not.",
        ),
    ] = True
    reorganise_s: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="Seconds from a new plan to its switch, with --recorded; 12 if not given."
        ),
    ] = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """The options of `farside serve profile`, as they were given."""

    models: Annotated[
        Path,
        typer.Argument(metavar="MODELS", help="Folder with model files; serving.toml there says shapes and batches."),
    ]
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Folder that gets the profile; one that a run has begun goes on.")
    ]
    device: Annotated[
        str, typer.Option(metavar="DRIVER", help="How the device is cut; `farside serve check` lists the drivers.")
    ] = "auto"
    cores: Annotated[
        str, typer.Option(metavar="0,1,...", help="Cores that are the device, for CPU drivers; default: all.")
    ] = ""
    gpu: Annotated[
        str,
        typer.Option(
            metavar="N|UUID", help="GPU that is the device, for GPU drivers, or an instance's UUID; default: the first."
        ),
    ] = ""
    parts: Annotated[
        str,
        typer.Option(
            metavar="A,B,...",
            help="Parts to measure, in percent; default: 20,40,50,60,80,100, or 100 where the driver can't cut.",
        ),
    ] = ""
    capacity: Annotated[
        int | None,
        typer.Option(
            metavar="PCT",
            min=10,
            max=100,
            help="Percent of the cores that all parts share, as a deployment's capacity_pct; 90 unless given.",
        ),
    ] = None
    max_batch: Annotated[
        int, typer.Option(metavar="N", min=1, max=1024, help="Largest batch of models for which serving.toml has none.")
    ] = 32
    minutes: Annotated[
        float | None,
        typer.Option(metavar="MINUTES", help="Stop after so long; most useful cells first. Default: three rounds."),
    ] = None
    slo: Annotated[
        str,
        typer.Option(
            metavar="MODEL=MS,...", help="SLOs for the tables; default: twice what the largest batch takes alone."
        ),
    ] = ""


@serve_app.command()
@options.made(request=ProfileRequest)
def profile(request: ProfileRequest) -> None:
    """Measure what models take on parts of this machine's device, alone and beside each other.

    The folder is what `farside serve plan --table` takes. Stopped or killed, the same command goes on.
    """
    from farside.cli.serving.profile import run

    raise typer.Exit(run(request))


@serve_app.command()
def check(
    models: Annotated[
        Path | None, typer.Argument(metavar="[MODELS]", help="Folder with model files to look into.")
    ] = None,
    max_batch: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="As of `farside serve profile`.")] = 32,
) -> None:
    """Show what this machine can serve with: drivers that cut devices, frameworks, and model files.

    Names the file or library that is missing. Exits with 1 if no device can be cut, or no framework is there.
    """
    from farside.cli.serving.check import run

    raise typer.Exit(run(models, max_batch))


_LogLevel = Annotated[Literal["debug", "info", "warning", "error"], typer.Option(help="What is logged.")]
_Place = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder with serving.toml and model files, or such a file.")
]


@serve_app.command("run")
def run_deployment(
    place: _Place,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Serve by this plan as long as it runs, whatever the rates."),
    ] = None,
    manager: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Take GPUs of this manager's nodes as leases; unix:PATH or http(s)://..."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="As --manager, that of the sandbox in this folder.")
    ] = None,
    log_level: _LogLevel = "info",
    is_check: Annotated[
        bool, typer.Option("--check", help="Look whether the deployment would start, and end; nothing is served.")
    ] = False,
) -> None:
    """Serve the models of a deployment over HTTP and gRPC, on this machine or on a manager's nodes.

    Runs until SIGTERM. Plans anew as request rates change, unless a plan is given.
    """
    from farside.cli.serving.deploy import run

    raise typer.Exit(run(place, plan_file, manager, state, log_level, is_check=is_check))


@serve_app.command()
def worker(
    key_file: Annotated[Path, typer.Option(metavar="FILE", help="Key that the deployment's front has, too.")],
    listen: Annotated[
        str | None,
        typer.Option(metavar="tcp:HOST:PORT", help="Address for the front; default: MASTER_ADDR and MASTER_PORT."),
    ] = None,
    capacity: Annotated[
        int, typer.Option(metavar="PCT", min=10, max=100, help="Percent of a device's cores that all parts share.")
    ] = 90,
    log_level: _LogLevel = "info",
) -> None:
    """Run executors for a deployment's front; the job of a lease runs this.

    Ends at SIGTERM, once its front has left, or after five minutes without a front.
    """
    from farside.cli.serving.deploy import run_worker

    raise typer.Exit(run_worker(key_file, listen, capacity, log_level))


@serve_app.command()
def status(
    place: _Place,
    as_json: options.AsJson = False,
) -> None:
    """Show what a running deployment serves: its plan, its rates, and what became of requests."""
    from farside.cli.serving.deploy import show_status

    raise typer.Exit(show_status(place, as_json=as_json))
