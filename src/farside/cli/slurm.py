"""The command `farside slurm`: Farside's scheduling over an existing Slurm."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from farside.cli import options

slurm_app = typer.Typer(
    help="Order and requeue jobs of a Slurm and let its nodes sleep, or only show what would be done.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

# Jobs of which the text says what they are expected to take; JSON has all that are shown of the queue.
EXPECTED_JOBS = 5

_Socket = Annotated[Path, typer.Option(help="Admin socket of `farside slurm run`.")]


@slurm_app.command()
def run(config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Schedule the jobs of a Slurm with Slurm's own commands.

    Sets the order of GPU jobs in the configured partitions, and does what else the settings allow. Runs until SIGTERM.
    """
    _run("run", config, settings)


@slurm_app.command()
def shadow(config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Change nothing, and show what Farside would do beside what Slurm does.

    Shows the expected gain once some jobs have ended. Runs until SIGTERM.
    """
    _run("shadow", config, settings)


def _run(mode: str, config: options.ConfigFiles, settings: options.Overrides) -> None:
    from farside.config import SlurmConfig, load_config

    loaded = load_config(SlurmConfig, config or (), options.overrides(settings))
    from farside.scheduler.slurm.engine import Mode
    from farside.scheduler.slurm.engine import run as run_engine

    raise typer.Exit(run_engine(loaded, Mode(mode)))


@slurm_app.command()
def status(
    socket: _Socket = Path("/run/farside/slurm.sock"),
    as_json: options.AsJson = False,
) -> None:
    """Show what a running `farside slurm run` sees and does."""
    from farside import admin

    told = admin.call(socket, "status", absent_hint=admin.BY_SOCKET)
    print(json.dumps(told, indent=2) if as_json else "\n".join(_lines(told)))


@slurm_app.command()
def release(config: options.ConfigFiles = None, settings: options.Overrides = None) -> None:
    """Return all waiting jobs that Farside holds or has ordered to Slurm.

    Stop `farside slurm run` first; otherwise it orders them again.
    """
    from farside.config import SlurmConfig, load_config
    from farside.scheduler.slurm.engine import give_back
    from farside.units import format_count

    count = give_back(load_config(SlurmConfig, config or (), options.overrides(settings)))
    print(f"{format_count(count, 'job')} given back to Slurm")


def _lines(told: Mapping[str, Any]) -> list[str]:
    slurm = f"Slurm {told['slurm']}" if told["slurm"] else "Slurm"
    does = "is driven" if told["mode"] == "run" else "is watched, nothing is changed"
    lines = [
        f"{slurm} {does}: partitions {', '.join(told['partitions'])} by {told['policy']}"
        + ("" if told["answers"] else "; it does not answer now"),
        f"turns {told['turns']}, changes {told['changes']}, refused {told['refused']}, left {told['left']}",
        f"waiting {told['waiting']}: {' '.join(told['queue']) or 'none'}",
        f"would start now: {' '.join(told['would_start']) or 'nobody'}",
        *filter(None, [told.get("goes_by", "")]),
    ]
    for one in told.get("expected", ())[:EXPECTED_JOBS]:
        lines.append(f"  job {one['job_id']}: {'; '.join(one['words'])}")
    if told["sleeping"]:
        lines.append(f"asleep: {' '.join(told['sleeping'])}; {told['saved_kwh']} kWh saved since the start")
    if told.get("forecast"):
        lines.append(told["forecast"])
    if told["gain"]:
        lines += _gain_lines(told["gain"])
    elif told.get("why_no_gain"):
        lines.append(f"expected gain: none, as {told['why_no_gain']}")
    elif told["mode"] == "shadow":
        lines.append(f"expected gain: not known yet, {told['ended']} jobs have ended")
    return lines


def _gain_lines(gain: Mapping[str, Any]) -> list[str]:
    lines = [f"over {gain['jobs']} jobs that have ended, on average{'waiting':>14}{'to the end':>14}"]
    for key, note in (("slurm", "as it was"), ("control", "simulated"), ("policy", "simulated")):
        means = gain[key]
        name = f"  {means['name']}, {note}"
        # The two columns of the heading are 14 characters each, 28 together.
        lines.append(f"{name:<{len(lines[0]) - 28}}{means['wait_s']:>12.0f} s{means['completion_s']:>12.0f} s")
    return lines
