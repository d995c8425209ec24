"""The command `farside executor`: turns for jobs that share this node."""

from pathlib import Path
from typing import Annotated

import typer


def executor(
    socket: Annotated[Path, typer.Option(help="Socket for workers, which any user may use.")] = Path(
        "/run/farside/executor.sock"
    ),
    admin_socket: Annotated[Path, typer.Option(help="Socket for `farside admin`: status, trace.")] = Path(
        "/run/farside/executor-admin.sock"
    ),
    node: Annotated[str, typer.Option(help="Name of this node in its group.")] = "node",
    nodes: Annotated[
        str, typer.Option(help="On the group's first node: the names of all its nodes, this one first, with commas.")
    ] = "",
    group_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Address for other nodes: on the group's first one; without --nodes for groups that a manager makes.",
        ),
    ] = "",
    synchronizer: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="On all other nodes: address of the group's first node.")
    ] = "",
    key_file: Annotated[Path | None, typer.Option(help="Key file of the group.")] = None,
) -> None:
    """Give jobs that share this node their turns: one computes while another one communicates.

    Jobs ask with `farside train --executor SOCKET`. Runs until SIGTERM; jobs go on without turns.
    """
    from farside.agent.training.executor import Wanted, run

    wanted = Wanted(
        socket=socket,
        admin_socket=admin_socket,
        node=node,
        nodes=tuple(name for name in nodes.split(",") if name),
        group_listen=group_listen,
        synchronizer=synchronizer,
        key_file=key_file,
    )
    raise typer.Exit(run(wanted))
