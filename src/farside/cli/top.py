"""The command `farside top`: the cluster on a terminal, redrawn every two seconds."""

import sys
import time
from typing import Annotated, Any

import typer

from farside.cli import options
from farside.cli.cluster import Client, with_client

EVERY_S = 2.0


@with_client
def top(
    client: Client,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit; the default without a terminal.")] = (
        False
    ),
    every_s: Annotated[
        float, typer.Option("--every", min=0.2, max=3600, help="Seconds between two updates.")
    ] = EVERY_S,
    as_json: options.AsJson = False,
) -> None:
    """Watch the cluster: nodes, running jobs, and waiting jobs with the reason.

    Runs until Ctrl-C. Users see their own jobs, operators all jobs.
    """
    with client:
        told = client.get("overview")
        if as_json:
            import json

            print(json.dumps(told, indent=2))
        elif once or not sys.stdout.isatty():
            _print(told)
        else:
            _watch(client, told, every_s)


def _print(told: Any) -> None:
    from rich.console import Console

    from farside.cli.top_view import EVERYTHING, top_view

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)  # a pipe has no width; lines must not depend on who reads
    console.print(top_view(told, EVERYTHING))


def _watch(client: Any, told: Any, every_s: float) -> None:
    """Draws until Ctrl-C. A manager that is away for a while is said, and the last picture stays."""
    from rich.console import Console
    from rich.live import Live

    from farside.cli.top_view import room_for, top_view
    from farside.errors import FarsideError

    console, problem = Console(highlight=False), ""
    try:
        # The alternate screen, so that the terminal is as before at the end. No thread redraws: a picture changes only
        # with an answer.
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(top_view(told, room_for(told, console.size.height), problem), refresh=True)
                time.sleep(every_s)
                try:
                    told, problem = client.get("overview"), ""
                except FarsideError as error:
                    problem = str(error).splitlines()[0]
    except KeyboardInterrupt:
        return
