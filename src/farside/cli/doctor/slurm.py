"""Checks of `farside doctor` on what `farside slurm run` would refuse to start over; Slurm itself is only asked."""

import asyncio
from collections.abc import Iterator
from functools import partial

from farside.cli.doctor.attempt import checked, tried
from farside.cli.doctor.places import folder_checks, is_served, listen_checks
from farside.cli.doctor.trees import trees_checks
from farside.config import SlurmConfig
from farside.kmod_shim.preflight import Check, Outcome
from farside.scheduler.slurm.check_settings import CHECKS
from farside.scheduler.slurm.commands import SlurmCommands
from farside.scheduler.slurm.domain import groups_of
from farside.scheduler.slurm.engine import listed
from farside.scheduler.slurm.power import check_power_saving
from farside.units import format_count


def slurm_checks(config: SlurmConfig) -> Iterator[Check]:
    """One line for each thing that the engine needs, with what it found."""
    for about, check in CHECKS.items():
        shown = {"policy": config.policy, "rights": f"order_by {config.order_by}", "power": f"policy {config.power}"}
        yield checked(about, partial(check, config), shown[about])
    yield from folder_checks("state_dir", config.state_dir)
    yield from trees_checks(config)
    is_running = is_served(config.admin_socket)
    yield from listen_checks("admin_socket", [f"unix:{config.admin_socket}"], is_running=is_running)
    found, wrong = tried("slurm", lambda: asyncio.run(_asked(config)))
    yield from [wrong] if wrong else found or ()


async def _asked(config: SlurmConfig) -> list[Check]:
    slurm = SlurmCommands(config.slurm_conf, config.command_limit_s)
    traits, snapshot = await slurm.traits(), await slurm.look()
    found = [
        Check(
            name="slurm",
            outcome=Outcome.OK,
            found=f"Slurm {traits.version}, {format_count(len(snapshot.nodes), 'node')}",
        )
    ]
    groups, wrong = tried("partitions", lambda: groups_of(snapshot.partitions, listed(config)))
    names = ", ".join(name for group in groups or () for name in group.partitions)
    found.append(wrong or Check(name="partitions", outcome=Outcome.OK, found=names))
    if config.history_days and not traits.has_accounting:
        told = "Slurm keeps no accounts in slurmdbd: only jobs that end while the engine runs are known"
        found.append(
            Check(name="history", outcome=Outcome.WARNING, found=told, advice="run slurmdbd, or set history_days = 0")
        )
    _, wrong = tried("power", lambda: check_power_saving(config, traits))
    return [*found, wrong] if wrong else found
