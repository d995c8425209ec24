"""`farside reserve`, `reservations` and `unreserve`: nodes kept free for maintenance."""

import json
import time
from typing import Annotated

import typer

from farside.cli import options
from farside.cli.cluster import Manager, State, client_of, print_table

From = Annotated[str, typer.Option("--from", metavar="TIME", help="now, +2h, or 2026-11-22T08:00 (UTC).")]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="The same.")]


def admin_commands(app: typer.Typer) -> None:
    """Adds these commands."""
    for command in (reserve, reservations, unreserve):
        app.command()(command)


def reserve(
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="Their names.")],
    begin: From,
    end: To,
    reason: Annotated[str, typer.Option(help="For those who wonder.")] = "",
    as_json: options.AsJson = False,
    manager: Manager = None,
    state: State = None,
) -> None:
    """Keep nodes free for maintenance: nothing starts there that could still run then.

    By its time limit; a job without one doesn't start there any more. What runs already is left alone, and named.
    """
    from farside.moment import parse_moment

    now_s = time.time()
    begin_s, end_s = (
        options.value_of(option, text, lambda told: parse_moment(told, now_s))
        for option, text in (("--from", begin), ("--to", end))
    )
    body = {"nodes": names, "from_s": begin_s, "to_s": end_s, "reason": reason}
    made = client_of(manager, state).post("reservations", body=body)
    if as_json:
        print(json.dumps(made, indent=2))
        return
    print(f"reservation {made['id']}")
    if made["jobs"]:
        print(f"may still run there then: job {', '.join(made['jobs'])}")


def reservations(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that are over or cancelled.")] = False,
    as_json: options.AsJson = False,
    manager: Manager = None,
    state: State = None,
) -> None:
    """List reservations of nodes."""
    query = {"all": "true"} if everything else {}
    found = client_of(manager, state).get("reservations", **query)["reservations"]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from farside.cli.cluster_table import reservation_table

    print_table(reservation_table(found))


def unreserve(
    names: Annotated[list[str], typer.Argument(metavar="RESERVATION...", help="As `farside reserve` printed them.")],
    manager: Manager = None,
    state: State = None,
) -> None:
    """Cancel reservations."""
    client = client_of(manager, state)
    for name in names:
        print(f"{name}: {client.post('reservations', name, 'cancel')['state']}")
