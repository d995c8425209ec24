"""`farside sim trace`: what is in a trace, traces of other formats into ours, and traces made by chance."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from farside.cli import options
from farside.terminal import printable, standard_output
from farside.units import format_count

if TYPE_CHECKING:
    from farside.scheduler.sim.trace.job import Trace

trace_app = typer.Typer(help="Look into traces, convert and make them.", no_args_is_help=True, rich_markup_mode=None)

_File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A trace, plain or gzip; builtin:NAME is one that comes with Farside.")
]
_Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="farside, tiresias, philly-csv, philly-json, helios, slurm or openb; auto looks at the header.",
    ),
]
_OnBad = Annotated[
    Literal["refuse", "skip"],
    typer.Option("--on-bad", help="What to do about bad rows: refuse the trace, or skip them."),
]
_Attempts = Annotated[
    Literal["whole", "each"],
    typer.Option("--attempts", help="whole: one job of all its attempts; each: one job an attempt (philly-json)."),
]
_Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Nodes of the cluster that it is to load.")]
_GpusPerNode = Annotated[int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of each; 8 unless told.")]


@trace_app.command()
def describe(
    file: _File,
    fmt: _Format = "auto",
    on_bad: _OnBad = "refuse",
    attempts: _Attempts = "whole",
    nodes: _Nodes = None,
    gpus_per_node: _GpusPerNode = None,
    as_json: options.AsJson = False,
) -> None:
    """Show what is in a trace.

    Jobs, users, virtual clusters, how long jobs run and when they come; with --nodes the load that they offer.
    """
    from farside.cli.trace_tables import tables
    from farside.scheduler.sim.trace.describe import describe as figures_of

    trace = _read(file, fmt, on_bad, attempts)
    found = figures_of(trace, gpus=nodes * (gpus_per_node or 8) if nodes else 0)
    if as_json:
        import msgspec

        with standard_output():
            print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)  # names are not ours
    with standard_output():
        for table in tables(found):
            console.print(table)
    _tell_problems(trace)


@trace_app.command()
def convert(
    file: _File,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; gzip when it ends in .gz.")],
    fmt: _Format = "auto",
    on_bad: _OnBad = "refuse",
    attempts: _Attempts = "whole",
) -> None:
    """Write a trace of any format as our own CSV."""
    from farside.scheduler.sim.place import check_apart
    from farside.scheduler.sim.trace.write import write_trace

    check_apart({"OUT": out}, {"the trace": file})
    trace = _read(file, fmt, on_bad, attempts)
    write_trace(trace, out)
    _say(f"{out}: {format_count(len(trace.jobs), 'job')}, read as {trace.fmt}")
    _tell(trace)


@trace_app.command()
def generate(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] OUT", help="tiresias-480, philly-like, helios-like, repeating or nothing; the file."
        ),
    ],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same trace.")] = 1,
    jobs: Annotated[int | None, typer.Option(min=1, help="How many jobs.")] = None,
    load: Annotated[
        float | None, typer.Option(help="GPU time that jobs need, by what the cluster has while they come.")
    ] = None,
    nodes: _Nodes = None,
    gpus_per_node: _GpusPerNode = None,
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Between jobs on average, instead of a load: 30s.")
    ] = None,
    arrivals: Annotated[str | None, typer.Option(help="poisson, daily, weekly or bursts.")] = None,
    service: Annotated[
        str | None,
        typer.Option(help="philly, helios, tiresias, or lognormal:median_s=10min,sigma=2, pareto:..., exponential:..."),
    ] = None,
    gpu_mix: Annotated[
        str | None, typer.Option(help="tiresias, philly, helios, single, or GPUS:WEIGHT,... as in 1:70,4:20,8:10.")
    ] = None,
    vc: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:WEIGHT]", help="A virtual cluster; may be repeated.")
    ] = None,
    users: Annotated[int | None, typer.Option(min=1, help="Users of each virtual cluster.")] = None,
    start: Annotated[str | None, typer.Option(metavar="DATE", help="Of the first job; a Monday unless told.")] = None,
) -> None:
    """Make a trace: one that has a name, or N jobs of your own mixture.

    `farside sim trace generate tiresias-480 jobs.csv` writes the workload of the paper's testbed;
    `farside sim trace generate --jobs 10000 --load 0.8 --nodes 16 jobs.csv.gz` one of yours.
    """
    from farside.cli.trace_recipe import Wishes, make
    from farside.errors import ConfigError
    from farside.scheduler.sim.trace.write import write_trace

    if len(names) > 2:
        raise ConfigError(f"generate takes at most a name and a file, not {len(names)} names", hint="see --help")
    wishes = Wishes(
        jobs=jobs,
        load=load,
        gpus=nodes * (gpus_per_node or 8) if nodes else None,
        interval=interval,
        arrivals=arrivals,
        service=service,
        gpu_mix=gpu_mix,
        vcs=tuple(vc or ()),
        users=users,
        start=start,
    )
    trace = make(names[0] if len(names) == 2 else "", wishes, seed)
    out = Path(names[-1])
    write_trace(trace, out)
    _say(f"{out}: {format_count(len(trace.jobs), 'job')}; farside sim trace describe {out} shows them")


def _read(file: Path, fmt: str, on_bad: Literal["refuse", "skip"], attempts: Literal["whole", "each"]) -> "Trace":
    from farside.scheduler.sim.trace.read import read_trace

    return read_trace(file, fmt=fmt, on_bad=on_bad, attempts=attempts)


def _tell(trace: "Trace") -> None:
    """What became of rows that are no jobs."""
    for count, note in trace.notes:
        _say(f"{trace.path}: {format_count(count, 'row')} {note}")
    _tell_problems(trace)


def _tell_problems(trace: "Trace") -> None:
    for problem in trace.problems:
        _say(f"skipped: {problem}")
    if trace.skipped:
        were = "was" if trace.skipped == 1 else "were"
        _say(f"{trace.path}: {format_count(trace.skipped, 'bad row')} {were} skipped")


def _say(line: str) -> None:
    # on standard error: standard output may be the trace
    print(f"farside: {printable(line)}", file=sys.stderr)
