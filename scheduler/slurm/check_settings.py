"""What the engine over Slurm refuses of its settings, before it asks Slurm anything: the one list of it."""

from collections.abc import Callable, Mapping
from typing import Any

from farside.config import SlurmConfig
from farside.errors import ConfigError
from farside.scheduler.power.rules import online_policy
from farside.scheduler.sim.learned_before import LearnedBefore, learned_before

NICE = "nice"


def check_rights(config: SlurmConfig) -> None:
    """Refuse what asks for the rights that ``order_by = "nice"`` does without: holding and requeueing.

    Raises:
        ConfigError: It asks for them.
    """
    if config.order_by == NICE and (config.gate or config.preempt):
        hint = "both need an operator's rights"
        raise ConfigError("order_by: nice goes with neither gate nor preempt", hint=hint)


CHECKS: Mapping[str, Callable[[SlurmConfig], Any]] = {
    "policy": learned_before,
    "rights": check_rights,
    "power": online_policy,
}
"""By what they are about; each raises FarsideError where the engine would not start."""


def checked_settings(config: SlurmConfig) -> LearnedBefore:
    """The rules and what their policy begins with, of settings that can be used.

    Raises:
        ConfigError: A setting, or a file that one names, can't be used.
        Unavailable: It needs a package that is not installed.
    """
    before: LearnedBefore = {about: check(config) for about, check in CHECKS.items()}["policy"]
    return before
