"""Commands for operators: `farside reserve`, `reservations`, `unreserve`, `usage` and `audit`."""

import json
import time
from typing import Annotated, Literal

import typer

from farside.cli import options
from farside.cli.cluster import Client, act_on_each, print_table, with_client

From = Annotated[
    str, typer.Option("--from", metavar="TIME", help="Start of the period: now, +2h, or 2026-11-22T08:00 (UTC).")
]
To = Annotated[str, typer.Option("--to", metavar="TIME", help="End of the period, in the same form.")]


def admin_commands(app: typer.Typer) -> None:
    """Adds these commands."""
    for command in (reserve, reservations, unreserve, usage, audit):
        app.command()(with_client(command))


def _moment(option: str, text: str, now_s: float) -> float:
    from farside.cli.moment import parse_moment

    return options.value_of(option, text, lambda told: parse_moment(told, now_s))


def reserve(
    client: Client,
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="Node names.")],
    begin: From,
    end: To,
    reason: Annotated[str, typer.Option(help="Reason, shown to users.")] = "",
    as_json: options.AsJson = False,
) -> None:
    """Reserve nodes for maintenance: no job starts there that could still run in that period.

    The time limit of a job decides; a job without one does not start there. Running jobs continue and are listed.
    """
    now_s = time.time()
    begin_s, end_s = (_moment(option, text, now_s) for option, text in (("--from", begin), ("--to", end)))
    body = {"nodes": names, "from_s": begin_s, "to_s": end_s, "reason": reason}
    made = client.post("reservations", body=body)
    if as_json:
        print(json.dumps(made, indent=2))
        return
    print(f"reservation {made['id']}")
    if made["jobs"]:
        print(f"may still run there then: job {', '.join(made['jobs'])}")


def reservations(
    client: Client,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Show past and cancelled ones too.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """List reservations of nodes."""
    query = {"all": "true"} if everything else {}
    found = client.get("reservations", **query)["reservations"]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from farside.cli.cluster_table import reservation_table

    print_table(reservation_table(found))


def unreserve(
    client: Client,
    names: Annotated[
        list[str], typer.Argument(metavar="RESERVATION...", help="Reservation names, as printed by `farside reserve`.")
    ],
) -> None:
    """Cancel reservations."""
    act_on_each(
        names, lambda name: client.post("reservations", name, "cancel"), lambda one: f"{one['id']}: {one['state']}"
    )


def usage(
    client: Client,
    by: Annotated[
        Literal["user", "account", "deployment"],
        typer.Option(help="Group by user, by account, or by deployment of inference."),
    ] = "user",
    begin: From = "-30d",
    end: To = "now",
    as_json: options.AsJson = False,
) -> None:
    """Show the use by each user, account or deployment: jobs, GPU hours, hours of waiting, kWh.

    Operators see all jobs, users their own. The default period is the last 30 days.
    """
    now_s = time.time()
    span = {"from_s": str(_moment("--from", begin, now_s)), "to_s": str(_moment("--to", end, now_s))}
    found = client.get("usage", by=by, **span)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from farside.cli.cluster_table import usage_lines, usage_table

    print_table(usage_table(found["rows"], by))
    for line in usage_lines(found):
        print(line)


def audit(
    client: Client,
    actor: Annotated[str | None, typer.Option(help="Show only actions of this user or token.")] = None,
    before: Annotated[
        int | None, typer.Option(min=1, metavar="ENTRY", help="Show only entries before this one.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of lines.")] = 100,
    as_json: options.AsJson = False,
) -> None:
    """Show who did what, newest last; for operators.

    Lists changes, refused requests, and the jobs of other users that operators looked at.
    """
    query = {"actor": actor, "before": before, "limit": limit}
    told = {name: str(value) for name, value in query.items() if value is not None}
    found = client.get("audit", **told)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from farside.cli.cluster_table import audit_table

    # The manager answers newest first, as pages go back in time; a terminal shows the newest at its bottom.
    print_table(audit_table(reversed(found["entries"])))
    if found["before"] is not None:
        print(f"older ones: --before {found['before']}")
