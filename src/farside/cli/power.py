"""The command `farside power`: lists sleeping nodes, and pardons nodes that failed to switch."""

import json
from typing import Annotated

import typer

from farside.cli import options
from farside.cli.cluster import Client, Manager, State, client_of, print_table, with_client

power_app = typer.Typer(help="Show and manage nodes that sleep.", invoke_without_command=True, rich_markup_mode=None)


@power_app.callback(invoke_without_command=True)
def power(
    context: typer.Context,
    as_json: options.AsJson = False,
    manager: Manager = None,
    state: State = None,
) -> None:
    """Show which nodes sleep, boot or are about to sleep, why, and the energy saved."""
    # `farside power pardon`: this callback runs first for it as well, and must not print the list.
    if context.invoked_subcommand is not None:
        return
    told = client_of(manager, state).get("power")
    if as_json:
        print(json.dumps(told, indent=2))
        return
    from farside.cli.cluster_table import power_lines, power_table

    for line in power_lines(told):
        print(line)
    print_table(power_table(told["nodes"], told["at_s"]))


@power_app.command()
@with_client
def pardon(
    client: Client,
    names: Annotated[list[str], typer.Argument(metavar="NODE...", help="Node names.")],
) -> None:
    """Declare nodes fixed that failed to switch, so that they are used and switched again."""
    for name in names:
        told = client.post("power", name, "pardon")
        print(f"{name}: {told['power']}")
