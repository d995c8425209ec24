"""Commands for operators: `farside node invite`, `accept`, `revoke` and `list`, and `farside node set` for memory."""

import json
import time
from typing import Annotated

import typer

from farside.cli import options
from farside.cli.cluster import Client, act_on_each, print_table, with_client
from farside.cli.terminal import note

Names = Annotated[list[str], typer.Argument(metavar="NODE...", help="Node names.")]

# What takes an order about memory back.
_NO_ORDER = {"lend": "on", "swap": "keep"}

node_app = typer.Typer(
    help="Invite, accept and revoke nodes; bound what they lend, and order their swap.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def node_commands(app: typer.Typer) -> None:
    """Adds these commands."""
    for command in (invite, accept, revoke):
        node_app.command()(with_client(command))
    node_app.command("list")(with_client(list_admissions))
    node_app.command("set")(with_client(set_memory))
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


def set_memory(
    client: Client,
    name: Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")],
    words: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="lend=on, off or SIZE; swap=SIZE, off or keep.")
    ],
) -> None:
    """Bound the memory that a node's donor lends, and say how much it shall swap to that of other nodes.

    lend=off or lend=SIZE: what is lent beyond that goes back, with time for borrowers to move their pages. lend=on:
    what the donor's settings allow. swap=SIZE or swap=off: the agent has its Farside device attached, or detached once
    memory holds what is out. swap=keep: what its agent.toml says.

    The manager keeps it in its log, over restarts of manager, agent, donor and borrower. `farside nodes` says how far
    it is, and why it is not done.
    """
    from farside.cli.cluster_table import memory_words

    orders = {
        key: {"at_most_bytes" if key == "lend" else "size_bytes": size_bytes}
        for key, size_bytes in _orders_of(words).items()
    }
    # All are asked about first: where one is refused, none is written.
    for key, body in orders.items() if len(orders) > 1 else ():
        client.post("nodes", name, key, body={**body, "is_question": True})
    for key, body in orders.items():
        node = client.post("nodes", name, key, body=body)
        shown = "as its own settings say" if None in body.values() else memory_words(node, key)
        print(f"{name}: {shown}", flush=True)


def _orders_of(words: list[str]) -> dict[str, int | None]:
    """Bytes by key of KEY=VALUE words; None: no order.

    Raises:
        ConfigError: One names something else, or the same twice.
    """
    from farside.errors import ConfigError
    from farside.units import parse_bound

    found: dict[str, int | None] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in _NO_ORDER or key in found:
            hint = "lend=off, lend=64GiB or lend=on, and swap=64GiB, swap=off or swap=keep, each once"
            raise ConfigError(f"'{word:.100}' is nothing that a node can be told", hint=hint)
        if value in _NO_ORDER.values() and value != _NO_ORDER[key]:
            raise ConfigError(f"'{word}' is nothing that a node can be told", hint=f"{key}={_NO_ORDER[key]}")
        try:
            found[key] = None if value == _NO_ORDER[key] else parse_bound(value)
        except ValueError as error:
            raise ConfigError(f"{key}: {error}".replace("write on,", f"write {_NO_ORDER[key]},")) from error
    return found


def _word(row: dict[str, object]) -> str:
    return f"{row['name']}: {row['state']}"
