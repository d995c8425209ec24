"""`farside trace report`: what a job log tells of its cluster."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

trace_app = typer.Typer(help="Learn from a cluster's job log.", no_args_is_help=True, rich_markup_mode=None)


@trace_app.callback()
def _root() -> None:
    pass


@trace_app.command()
def report(
    log: Annotated[
        Path,
        typer.Argument(metavar="LOG", help="A job log, plain or gzip; or builtin:NAME."),
    ],
    fmt: Annotated[
        str,
        typer.Option(
            "--format",
            help="farside, tiresias, philly-csv, philly-json, helios, slurm or openb; auto looks at the header.",
        ),
    ] = "auto",
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Nodes of the cluster, which all virtual clusters share.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs of each node.")] = 8,
    vc_nodes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV with the nodes of each virtual cluster."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE.html", help="The page; LOG.html here unless told.")
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write verdicts and what-ifs there, for programs.")
    ] = None,
    on_bad: Annotated[
        Literal["refuse", "skip"],
        typer.Option("--on-bad", help="What to do about bad rows: refuse the log, or skip them."),
    ] = "refuse",
    what_if_jobs: Annotated[
        int, typer.Option(min=0, metavar="N", help="Simulate the busiest N GPU jobs in a row; 0: no what-ifs.")
    ] = 20_000,
) -> None:
    """Write one page about a job log: Helios's Figures 1 to 9, which of its implications hold, and what-ifs.

    What the log lacks is left out by name. Without --nodes or --vc-nodes the cluster's size is guessed from what was
    in use at once.
    """
    from farside.characterise import main

    name = log.name.removesuffix(".gz")
    page = output or Path(f"{name.removeprefix('builtin:').rpartition('.')[0] or name.removeprefix('builtin:')}.html")
    request = main.Request(
        log=log, fmt=fmt, nodes=nodes or 0, gpus_per_node=gpus_per_node, vc_nodes=vc_nodes, on_bad=on_bad,
        what_if_jobs=what_if_jobs, page=page, json=json_out,
    )  # fmt: skip
    for line in main.run(request, tell=lambda what: print(f"farside: {what}", file=sys.stderr)):
        print(line)
