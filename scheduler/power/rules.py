"""Energy policy and switching rules from the settings, for the manager and for Slurm alike."""

from collections.abc import Callable

from farside.config.check import names_in
from farside.config.shared import PowerSettings
from farside.errors import ConfigError
from farside.scheduler.energy.catalog import make_online
from farside.scheduler.energy.holidays import read_holidays
from farside.scheduler.energy.learning_policy import LearningPolicy
from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.power.fleet import FleetRules
from farside.scheduler.settings import named_settings


def online_policy(config: PowerSettings) -> Callable[[int], EnergyPolicy] | None:
    """Function that builds the configured energy policy for a number of nodes; None with ``none``.

    Raises:
        ConfigError: It, its settings or the file of holidays can't be used.
        Unavailable: It makes forecasts, and LightGBM is not installed.
    """
    if config.power == "none":
        return None
    settings = named_settings("power_settings", config.power_settings)
    is_told = config.holidays_file.is_absolute()
    holidays = read_holidays(config.holidays_file) if is_told else frozenset[int]()
    make_policy = make_online(config.power, settings, config.power_step_s, holidays)
    if is_told and not isinstance(make_policy(1), LearningPolicy):
        hint = "set forecast=true in power_settings, or leave it out" if config.power == "ces" else "leave it out"
        raise ConfigError(f"holidays_file: is for forecasts, and {config.power} makes none", hint=hint)
    return make_policy


def fleet_rules(config: PowerSettings) -> FleetRules:
    """Rules for all nodes, independent of the policy."""
    return FleetRules(
        floor=config.power_floor,
        always_on=frozenset(names_in(config.always_on)),
        min_on_s=config.power_min_on_s,
    )
