"""`farside daemon`: lend memory; `farside daemon drain`: take this donor out for maintenance."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from farside.cli import options
from farside.cli.imports import without_garbage_collection
from farside.cli.terminal import note

POLL_S = 1.0

daemon_app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)

_Socket = Annotated[Path, typer.Option("--socket", help="Admin socket of the daemon.")]
_SOCKET = Path("/run/farside/daemon.sock")


@daemon_app.callback(invoke_without_command=True)
def daemon(context: typer.Context, config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Lend idle memory of this machine.

    Runs until SIGTERM. `farside daemon drain` takes the donor out for maintenance.
    """
    # `farside daemon drain`: this callback runs first for it as well, and must not start a daemon.
    if context.invoked_subcommand is not None:
        return
    from farside.config import DaemonConfig, load_config

    loaded = load_config(DaemonConfig, config or (), options.overrides(settings))
    with without_garbage_collection():
        from farside.daemon.main import run

    raise typer.Exit(run(loaded))


@daemon_app.command()
def drain(
    socket: _Socket = _SOCKET,
    deadline: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Time for borrowers to move their pages.")
    ] = 600.0,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Return at once; do not wait until nothing is lent.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Lend memory again.")] = False,
) -> None:
    """Stop lending, let borrowers move their pages to other donors, and return when nothing is lent.

    The daemon continues to run: stop it then, or lend again with --undo. Ctrl-C ends only the waiting.
    """
    from farside import admin

    if undo:
        told = admin.call(socket, "undrain", absent_hint=admin.BY_SOCKET)
        print(f"still drained by the {_others(told)}" if told["is_draining"] else "lending again")
        return
    told = admin.call(socket, "drain", deadline_s=deadline, absent_hint=admin.BY_SOCKET)
    if no_wait:
        print(f"draining: {_lent(told)}")
        return
    # Only a change is printed, so that a long drain does not fill the terminal.
    before = None
    while told["slabs"]:
        if told["slabs"] != before:
            note(f"draining: {_lent(told)}")
            before = told["slabs"]
        time.sleep(POLL_S)
        told = _how_far(socket)
    print("empty: no page of another machine is here, and none comes; `systemctl stop farside-daemon` when you like")


def _how_far(socket: Path) -> dict[str, Any]:
    from farside import admin
    from farside.errors import Unavailable

    told = admin.call(socket, "status")
    # Otherwise the wait would not end: the donor lends again, and its slabs do not go.
    if not told["draining"]:
        raise Unavailable("the donor lends again: the drain was undone, or the donor restarted", hint="drain it again")
    # Slabs that are ready are allocated ahead of time, and not lent.
    counts = told["slab_counts"]
    return {"slabs": sum(counts.values()) - counts["ready"], "slab_bytes": told["slab_bytes"]}


def _others(told: dict[str, Any]) -> str:
    hints = {"manager": "manager, which lets this node sleep: `farside power` says why"}
    names: list[str] = told["drained_by"]
    return ", ".join(hints.get(one, one) for one in names)


def _lent(told: dict[str, Any]) -> str:
    from farside.units import format_bytes

    slabs = told["slabs"]
    return f"{slabs} slab{'' if slabs == 1 else 's'} lent, {format_bytes(slabs * told['slab_bytes'])}"
