"""The command `farside trace report`: a page about a cluster, from its job log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from farside.cli import options
from farside.cli.sim_trace import Format
from farside.cli.terminal import note

trace_app = typer.Typer(help="Analyse the job log of a cluster.", no_args_is_help=True, rich_markup_mode=None)


@trace_app.callback()
def _root() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of `farside trace report`."""

    log: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="Job log, plain or gzip, or builtin:NAME."),
    ]
    fmt: Format = "auto"
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, help="Number of nodes of the cluster, shared by all virtual clusters."),
    ] = None
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs of each node.")] = 8
    vc_nodes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV with the number of nodes of each virtual cluster."),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.html", help="Page to write; default: LOG.html in this folder."),
    ] = None
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write verdicts and what-ifs to this file as JSON.")
    ] = None
    on_bad: Annotated[
        Literal["refuse", "skip"],
        typer.Option("--on-bad", help="What to do with bad rows: refuse the log, or skip them."),
    ] = "refuse"
    what_if_jobs: Annotated[
        int, typer.Option(min=0, metavar="N", help="Simulate the busiest N consecutive GPU jobs; 0: no what-ifs.")
    ] = 20_000

    @property
    def page(self) -> Path:
        """The page to write."""
        name = self.log.name.removesuffix(".gz").removeprefix("builtin:")
        return self.output or Path(f"{name.rpartition('.')[0] or name}.html")


@trace_app.command()
@options.made(request=Request)
def report(request: Request) -> None:
    """Write a page about a job log: Figures 1 to 9 of Helios, which of its implications hold, and what-ifs.

    The page names what it leaves out because the log does not have it. Without --nodes or --vc-nodes, the peak use
    gives the size of the cluster.
    """
    from farside.cli.trace_report import run

    for line in run(request, tell=note):
        print(line)
