"""By what live jobs are scheduled, from the settings of a manager or of the engine over Slurm. PURE."""

from farside.config.manager import ManagerConfig
from farside.config.slurm import SlurmConfig
from farside.errors import ConfigError
from farside.scheduler.admission.rules import Rules, reserve_after
from farside.scheduler.manager.model.accounts import tenancy_of
from farside.scheduler.order.catalog import Needs, make_order, needs_of
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.settings import named_settings


def rules_of(config: ManagerConfig | SlurmConfig) -> Rules:
    """By what jobs are scheduled.

    Raises:
        ConfigError: No such policy or placement, or it can't be used on real nodes.
    """
    told = named_settings("policy_settings", config.policy_settings)
    placement = make_placement(config.placement, {})
    if placement.ledger(()).is_pooled:
        raise ConfigError(f"placement: {config.placement} does not say on which nodes", hint="take consolidate")
    try:
        reserve_after_s = reserve_after(config.reserve_after_s)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    order = make_order(config.policy, told)
    if isinstance(config, ManagerConfig) and needs_of(order) is Needs.EXPECTATION:
        raise ConfigError(
            f"policy: {config.policy} needs {Needs.EXPECTATION.value}, and the manager has none",
            hint="take las or gittins, or srsf, which goes by time limits; farside sim and farside slurm have it",
        )
    return Rules(
        order=order,
        placement=placement,
        min_run_s=config.min_run_s,
        reserve_after_s=reserve_after_s,
        tenancy=tenancy_of(config) if isinstance(config, ManagerConfig) else None,
    )
