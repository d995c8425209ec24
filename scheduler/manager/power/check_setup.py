"""Check of the node power settings before anything starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from farside.config.check import names_in
from farside.config.manager import ManagerConfig
from farside.errors import ConfigError
from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.configured_rules import partitions_of, tenancy_of
from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.power.driver.catalog import read_drivers
from farside.scheduler.power.driver.driver import PowerDriver
from farside.scheduler.power.fleet import FleetRules
from farside.scheduler.power.rules import fleet_rules, online_policy
from farside.scheduler.power.state import Patience
from farside.scheduler.settings import naming
from farside.scheduler.tenancy import Tenancy

# Between two turns, at most: jobs that wait for nodes should not wait for us.
EVERY_S = 5.0
LIMIT_MAX_S = 120.0
"""Of a driver's call: a BMC that takes longer is of no use to jobs that wait for a node."""
ANSWER_MARGIN_S = 5.0
"""An order is waited for so much longer than its driver may take: it has ended by then, whatever became of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerSetup:
    """Settings of node power: drivers and rules.

    Attributes:
        policy: Its name; ``none``: no node is switched.
        make_policy: The policy for so many nodes; None with ``none``.
        drivers: By node; who has none is always on.
        step_s: The interval that the policy counts in.
        every_s: From turn to turn.
        idle_w: What an idle node draws.
        tenancy: What accounts and users may hold: jobs that wait for that wake nobody.
        set_aside: Nodes of co-located jobs alone.
        partitions: A job wakes nodes of its own partition.
    """

    policy: str
    is_dry_run: bool
    drivers: Mapping[str, PowerDriver] = field(default_factory=dict)
    make_policy: Callable[[int], EnergyPolicy] | None = None
    rules: FleetRules = field(default_factory=FleetRules)
    patience: Patience = field(default_factory=Patience)
    step_s: float = 600.0
    every_s: float = EVERY_S
    idle_w: float = 800.0
    tenancy: Tenancy | None = None
    set_aside: frozenset[str] = frozenset()
    partitions: Partitions = NO_PARTITIONS


def power_setup(config: ManagerConfig) -> PowerSetup:
    """The setup of these settings.

    Raises:
        ConfigError: A setting, the policy or a driver can't be used.
        Unavailable: The policy makes forecasts, and LightGBM is not installed.
    """
    every_s, make_policy = min(EVERY_S, config.power_poll_s), online_policy(config)
    if make_policy is None:
        return PowerSetup(policy="none", is_dry_run=False, every_s=every_s, idle_w=config.idle_w)
    with naming("power_drivers"):
        drivers = read_drivers(config.power_drivers)
    for name, driver in drivers.items():
        if not 0 < driver.limit_s <= LIMIT_MAX_S:
            hint = f"seconds, above 0 and at most {LIMIT_MAX_S:g}"
            raise ConfigError(f"{config.power_drivers}, node {name}: limit_s is {driver.limit_s:g}", hint=hint)
    slowest_s = max((driver.limit_s for driver in drivers.values()), default=0.0)
    patience = Patience(
        answer_s=max(Patience().answer_s, slowest_s + ANSWER_MARGIN_S), drain_s=config.power_drain_s,
        soft_off_s=config.power_off_s, boot_s=config.power_boot_s, poll_s=config.power_poll_s,
    )  # fmt: skip
    unknown = sorted(set(names_in(config.always_on)) - set(drivers))
    if unknown:
        raise ConfigError(
            f"always_on: {config.power_drivers} has no [node.{unknown[0]}]", hint="leave out who has no driver"
        )
    rules, set_aside = fleet_rules(config), frozenset(names_in(config.colocation_nodes))
    return PowerSetup(
        policy=config.power,
        is_dry_run=config.power_dry_run,
        drivers=drivers,
        make_policy=make_policy,
        # Co-located jobs are not the energy policy's to foresee: their nodes would look idle to it.
        rules=replace(rules, always_on=rules.always_on | set_aside),
        set_aside=set_aside,
        patience=patience,
        step_s=config.power_step_s,
        every_s=every_s,
        idle_w=config.idle_w,
        tenancy=tenancy_of(config),
        partitions=partitions_of(config),
    )
