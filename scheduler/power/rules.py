"""Energy policy and switching rules from the settings, for the manager and for Slurm alike."""

from collections.abc import Callable

from farside.config.check import names_in
from farside.config.shared import PowerSettings
from farside.errors import ConfigError
from farside.scheduler.energy.catalog import holidays_refused, make_online
from farside.scheduler.energy.holidays import read_holidays
from farside.scheduler.energy.learning_policy import LearningPolicy
from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.power.fleet import FleetRules
from farside.scheduler.settings import named_settings, naming


def online_policy(config: PowerSettings) -> Callable[[int], EnergyPolicy] | None:
    """Function that builds the configured energy policy for a number of nodes; None with ``none``.

    Raises:
        ConfigError: It, its settings or the file of holidays can't be used, or these are given with ``none``.
        Unavailable: It makes forecasts, and LightGBM is not installed.
    """
    settings = named_settings("power_settings", config.power_settings)
    is_told = config.holidays_file.is_absolute()
    if config.power == "none":
        if is_told:
            check_holidays(make_online("none", {}), "power = none", of="holidays_file")
        if settings:
            hint = "leave them out, or name a policy: power = vanilla, rule, ces or paper"
            raise ConfigError("power_settings: are for an energy policy, and power = none is none", hint=hint)
        return None
    with naming("holidays_file"):
        holidays = read_holidays(config.holidays_file) if is_told else frozenset[int]()
    with naming("power_settings" if settings else "power"):
        make_policy = make_online(config.power, settings, config.power_step_s, holidays)
    if is_told:
        check_holidays(make_policy, config.power, of="holidays_file", settings="in power_settings")
    return make_policy


def check_holidays(make_policy: Callable[[int], EnergyPolicy], policy: str, *, of: str, settings: str = "") -> None:
    """Refuse holidays that no forecast would know. ``of``: what gave them; ``settings``: where the policy's are given.

    Raises:
        ConfigError: The policy makes no forecast.
    """
    if not isinstance(make_policy(1), LearningPolicy):
        raise holidays_refused(policy, of=of, settings=settings)


def fleet_rules(config: PowerSettings) -> FleetRules:
    """Rules for all nodes, independent of the policy."""
    return FleetRules(
        floor=config.power_floor,
        always_on=frozenset(names_in(config.always_on)),
        min_on_s=config.power_min_on_s,
    )
