"""Commands for operators: `farside node invite`, `accept`, `revoke` and `list`: which nodes may join the cluster."""

import json
import time
from typing import Annotated

import typer

from farside.cli import options
from farside.cli.cluster import Client, act_on_each, print_table, with_client
from farside.cli.terminal import note

Names = Annotated[list[str], typer.Argument(metavar="NODE...", help="Node names.")]

node_app = typer.Typer(help="Invite, accept and revoke nodes.", no_args_is_help=True, rich_markup_mode=None)


def node_commands(app: typer.Typer) -> None:
    """Adds these commands."""
    for command in (invite, accept, revoke):
        node_app.command()(with_client(command))
    node_app.command("list")(with_client(list_admissions))
    app.add_typer(node_app, name="node")


def invite(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")],
    valid: Annotated[str, typer.Option(metavar="TIME", help="How long the invitation counts, at most 7d.")] = "1h",
    gpus: Annotated[int | None, typer.Option("--gpus", "-g", min=0, help="Number of GPUs that it will have.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory that it will have, such as 512GiB.")
    ] = None,
) -> None:
    """Print an invitation for a node: the content of /etc/farside/agent.token there.

    The node uses it once, and gets a token of its own for it. An alarm fires if the node ever reports more GPUs or
    memory than named here, or, without these options, more than it reported at first.
    """
    from farside.units import parse_bytes, parse_seconds

    body: dict[str, object] = {"valid_s": options.value_of("--valid", valid, parse_seconds)}
    if gpus is not None:
        body["gpus"] = gpus
    if memory is not None:
        body["memory_bytes"] = int(options.value_of("--memory", memory, parse_bytes))
    made = client.post("admissions", name, "invite", body=body)
    from farside.units import format_moment

    note(f"{made['node']} may join until {format_moment(made['expires_s'])}")
    print(made["invitation"])


def accept(client: Client, names: Names) -> None:
    """Accept nodes that wait or were revoked, or what they say that they have."""
    act_on_each(names, lambda name: client.post("admissions", name, "accept"), _word)


def revoke(client: Client, names: Names) -> None:
    """Revoke nodes: their sessions end within a second, and no token or certificate of theirs counts any more.

    Their jobs run on until the node is called lost. `accept` or `invite` lets a node in again.
    """
    act_on_each(names, lambda name: client.post("admissions", name, "revoke"), _word)


def list_admissions(client: Client, as_json: options.AsJson = False) -> None:
    """List the names of nodes: those that joined, may join, wait for `accept`, or were revoked."""
    found = client.get("admissions")["admissions"]
    if as_json:
        print(json.dumps(found, indent=2))
        return
    from farside.cli.cluster_table import admission_table

    print_table(admission_table(found, time.time()))


def _word(row: dict[str, object]) -> str:
    return f"{row['name']}: {row['state']}"
