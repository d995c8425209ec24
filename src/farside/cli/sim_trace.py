"""The command `farside sim trace`: describes, converts and generates traces."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from farside.cli import options
from farside.cli.terminal import note, standard_output
from farside.errors import ConfigError
from farside.units import format_count

if TYPE_CHECKING:
    from farside.scheduler.sim.trace.job import Trace

trace_app = typer.Typer(help="Describe, convert and generate traces.", no_args_is_help=True, rich_markup_mode=None)

_File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Trace file, plain or gzip, or builtin:NAME for one of Farside's own.")
]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="Format: farside, tiresias, philly-csv, philly-json, helios, slurm or openb; auto: detect it.",
    ),
]
_OnBad = Annotated[
    Literal["refuse", "skip"],
    typer.Option("--on-bad", help="What to do with bad rows: refuse the trace, or skip them."),
]
_Attempts = Annotated[
    Literal["whole", "each"],
    typer.Option(
        "--attempts", help="Count all attempts of a job as one job (whole), or each as a job (each); philly-json only."
    ),
]
_Nodes = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Number of nodes of the cluster that runs the trace.")
]
_GpusPerNode = Annotated[int | None, typer.Option("--gpus-per-node", min=1, help="GPUs of each node; default: 8.")]


@trace_app.command()
def describe(
    file: _File,
    fmt: Format = "auto",
    on_bad: _OnBad = "refuse",
    attempts: _Attempts = "whole",
    nodes: _Nodes = None,
    gpus_per_node: _GpusPerNode = None,
    as_json: options.AsJson = False,
) -> None:
    """Describe a trace.

    Shows jobs, users, virtual clusters, run times and arrivals; with --nodes also the load on a cluster.
    """
    from farside.cli.figure_table import print_plain
    from farside.cli.trace_tables import tables
    from farside.scheduler.sim.trace.describe import describe as figures_of

    trace = _read(file, fmt, on_bad, attempts)
    found = figures_of(trace, gpus=nodes * (gpus_per_node or 8) if nodes else 0)
    if as_json:
        import msgspec

        with standard_output():
            print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    with standard_output():
        print_plain(*tables(found))
    _tell_problems(trace)


@trace_app.command()
def convert(
    file: _File,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; compressed if its name ends in .gz.")],
    fmt: Format = "auto",
    on_bad: _OnBad = "refuse",
    attempts: _Attempts = "whole",
) -> None:
    """Convert a trace of any format to Farside's CSV."""
    from farside.scheduler.sim.output_files import check_apart
    from farside.scheduler.sim.trace.write import write_trace

    check_apart({"OUT": out}, {"the trace": file})
    trace = _read(file, fmt, on_bad, attempts)
    write_trace(trace, out)
    note(f"{out}: {format_count(len(trace.jobs), 'job')}, read as {trace.fmt}")
    _tell(trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options of `farside sim trace generate` as given; None: not given."""

    seed: Annotated[int, typer.Option(min=0, help="Seed; equal seeds give equal traces.")] = 1
    jobs: Annotated[int | None, typer.Option(min=1, help="Number of jobs.")] = None
    load: Annotated[
        float | None,
        typer.Option(help="Load: GPU time of all jobs, divided by the GPU time of the cluster while they arrive."),
    ] = None
    nodes: _Nodes = None
    gpus_per_node: _GpusPerNode = None
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Mean time between jobs, instead of a load, such as 30s.")
    ] = None
    arrivals: Annotated[str | None, typer.Option(help="Arrivals of jobs: poisson, daily, weekly or bursts.")] = None
    service: Annotated[
        str | None,
        typer.Option(
            help="Run times: philly, helios, tiresias, lognormal:median_s=10min,sigma=2, pareto:..., exponential:..."
        ),
    ] = None
    gpu_mix: Annotated[
        str | None,
        typer.Option(help="GPUs of jobs: tiresias, philly, helios, single, or GPUS:WEIGHT,... such as 1:70,4:20,8:10."),
    ] = None
    vc: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:WEIGHT]", help="Name of a virtual cluster (repeatable).")
    ] = None
    users: Annotated[int | None, typer.Option(min=1, help="Number of users of each virtual cluster.")] = None
    start: Annotated[str | None, typer.Option(metavar="DATE", help="Time of the first job; default: a Monday.")] = None

    @property
    def gpus(self) -> int | None:
        """GPUs of the cluster; None: no cluster is named."""
        return self.nodes * (self.gpus_per_node or 8) if self.nodes else None


@trace_app.command()
@options.made(wishes=Wishes)
def generate(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME] OUT",
            help="Workload: tiresias-480, philly-like, helios-like, repeating (optional); then the file to write.",
        ),
    ],
    wishes: Wishes,
) -> None:
    """Generate a trace: a named workload, or N jobs of your own mixture.

    `farside sim trace generate tiresias-480 jobs.csv` writes the workload of the paper's testbed;
    `farside sim trace generate --jobs 10000 --load 0.8 --nodes 16 jobs.csv.gz` writes one of your own.
    """
    from farside.cli.trace_recipe import make
    from farside.scheduler.sim.trace.write import write_trace

    if len(names) > 2:
        raise ConfigError(f"generate takes at most a name and a file, not {len(names)} names", hint="see --help")
    trace = make(names[0] if len(names) == 2 else "", wishes)
    out = Path(names[-1])
    write_trace(trace, out)
    note(f"{out}: {format_count(len(trace.jobs), 'job')}; farside sim trace describe {out} shows them")


def _read(file: Path, fmt: str, on_bad: Literal["refuse", "skip"], attempts: Literal["whole", "each"]) -> "Trace":
    from farside.scheduler.sim.trace.read import read_trace

    return read_trace(file, fmt=fmt, on_bad=on_bad, attempts=attempts)


def _tell(trace: "Trace") -> None:
    """What became of rows that are no jobs."""
    for count, what in trace.notes:
        note(f"{trace.path}: {format_count(count, 'row')} {what}")
    _tell_problems(trace)


def _tell_problems(trace: "Trace") -> None:
    for problem in trace.problems:
        note(f"skipped: {problem}")
    if trace.skipped:
        were = "was" if trace.skipped == 1 else "were"
        note(f"{trace.path}: {format_count(trace.skipped, 'bad row')} {were} skipped")
