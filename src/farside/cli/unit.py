"""The command `farside unit`, which systemd units call."""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from farside.cli.terminal import note

ROOT = Path("/")
WAIT_S = 600.0  # for memory to hold what is out, when the service is stopped

unit_app = typer.Typer(
    help="Commands for the systemd units.", no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


@unit_app.command("stop")
def stop(
    unit: Annotated[str, typer.Argument(help="Unit of the blockdev that is about to stop.")],
    socket: Annotated[Path, typer.Option(help="Admin socket of the blockdev.")],
    swap_unit: Annotated[str, typer.Option(help="Unit that attached the swap device.")] = "",
) -> None:
    """Prepare a blockdev for SIGTERM: at a restart keep its server, at a stop detach its devices.

    systemd runs a unit's ExecStop= for both; only its list of jobs shows which one it is.
    """
    from farside import admin

    # A service that is stopped cannot see what comes after. At a restart the server process serves on, and systemd
    # holds its descriptors for the next supervisor: swap stays on and no request fails.
    if _job_of(unit) in ("restart", "try-restart"):
        admin.call(socket, "keep")
        return
    from farside.kmod_shim.swap.detach import detach_patiently, served_by

    if swap_unit:  # so that systemd knows that it is over; what is left is detached here
        subprocess.run(["systemctl", "stop", swap_unit], check=False)
    for attached in served_by(ROOT, socket):
        detach_patiently(attached, ROOT, note, wait_s=WAIT_S)


def _job_of(unit: str) -> str:
    """What systemd is doing with the unit, such as "stop" or "restart"; empty when nothing."""
    listed = subprocess.run(
        ["systemctl", "list-jobs", "--no-legend", "--plain", "--no-pager"], capture_output=True, text=True, check=False
    )
    for line in listed.stdout.splitlines():
        # Columns: number of the job, unit, type of the job, its state.
        match line.split():
            case [_, name, job, *_] if name == unit:
                return job
    return ""
