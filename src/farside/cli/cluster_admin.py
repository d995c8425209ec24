"""`farside reserve`, `reservations`, `unreserve`, `usage` and `audit`: the cluster as those who run it see it."""

import json
import time
from enum import StrEnum
from typing import Annotated

import typer

from farside.cli import options
from farside.cli.cluster import Manager, State, act_on_each, client_of, print_table

From = Annotated[str, typer.Option("--from", metavar="TIME", help="now, +2h, or 2026-11-22T08:00 (UTC).")]


class By(StrEnum):
    """Whose use is added up."""

    USER = "user"
    ACCOUNT = "account"


To = Annotated[str, typer.Option("--to", metavar="TIME", help="The same.")]


def admin_commands(app: typer.Typer) -> None:
    """Adds these commands."""
    for command in (reserve, reservations, unreserve, usage, audit):
        app.command()(command)


def _moment(option: str, text: str, now_s: float) -> float:
    from farside.moment import parse_moment

    return options.value_of(option, text, lambda told: parse_moment(told, now_s))


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
    now_s = time.time()
    begin_s, end_s = (_moment(option, text, now_s) for option, text in (("--from", begin), ("--to", end)))
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
    act_on_each(
        names, lambda name: client.post("reservations", name, "cancel"), lambda one: f"{one['id']}: {one['state']}"
    )


def usage(
    by: Annotated[By, typer.Option(help="Whose use is added up.")] = By.USER,
    begin: From = "-30d",
    end: To = "now",
    as_json: options.AsJson = False,
    manager: Manager = None,
    state: State = None,
) -> None:
    """Show who used what: jobs, GPU hours, hours of waiting, kWh.

    Of all for operators, of your own jobs for others; the last 30 days unless told.
    """
    now_s = time.time()
    span = {"from_s": str(_moment("--from", begin, now_s)), "to_s": str(_moment("--to", end, now_s))}
    found = client_of(manager, state).get("usage", by=by.value, **span)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from farside.cli.cluster_table import usage_lines, usage_table

    print_table(usage_table(found["rows"], by.value))
    for line in usage_lines(found):
        print(line)


def audit(
    actor: Annotated[str | None, typer.Option(help="Of this user or token alone.")] = None,
    before: Annotated[int | None, typer.Option(min=1, metavar="ENTRY", help="Only what stands before it.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many lines.")] = 100,
    as_json: options.AsJson = False,
    manager: Manager = None,
    state: State = None,
) -> None:
    """Show who did what, the newest last; for operators.

    What users and operators changed or were refused, and what operators looked at of other people's jobs.
    """
    query = {"actor": actor, "before": before, "limit": limit}
    told = {name: str(value) for name, value in query.items() if value is not None}
    found = client_of(manager, state).get("audit", **told)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from farside.cli.cluster_table import audit_table

    print_table(audit_table(reversed(found["entries"])))
    if found["before"] is not None:
        print(f"older ones: --before {found['before']}")
