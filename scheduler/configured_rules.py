"""Scheduling rules from the settings of the manager or of the Slurm integration. PURE."""

import math

from farside.config.check import names_in
from farside.config.manager import ManagerConfig
from farside.config.slurm import SlurmConfig
from farside.errors import ConfigError
from farside.scheduler.admission.rules import Rules, reserve_after
from farside.scheduler.order.catalog import Needs, make_order, needs_of
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.settings import named_settings
from farside.scheduler.tenancy import Account, Qos, Tenancy


def rules_of(config: ManagerConfig | SlurmConfig) -> Rules:
    """Scheduling rules from a configuration.

    Raises:
        ConfigError: No such policy or placement, or it can't be used on real nodes.
    """
    told = named_settings("policy_settings", config.policy_settings)
    placement = make_placement(config.placement, {})
    # Placements say this only through the ledger that they make; one without nodes is enough to ask.
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


def tenancy_of(config: ManagerConfig) -> Tenancy | None:
    """Accounts and qualities of service from a configuration; None: none are configured."""
    if not config.account and not config.qos:
        return None
    accounts = {
        row.name: Account(
            name=row.name,
            shares=row.shares,
            quota_gpus=row.quota_gpus or math.inf,
            users=frozenset(names_in(row.users)),
        )
        for row in config.account
    }
    qualities = {
        row.name: Qos(
            name=row.name,
            priority=row.priority,
            max_gpus_per_user=row.max_gpus_per_user or math.inf,
            max_jobs_per_user=row.max_jobs_per_user or math.inf,
            may_preempt=row.may_preempt,
            accounts=frozenset(names_in(row.accounts)),
        )
        for row in config.qos
    }
    return Tenancy(
        accounts=accounts,
        qualities=qualities,
        default_account=config.default_account,
        default_qos=config.default_qos,
        half_life_s=config.fair_share_half_life_s if accounts else 0.0,
    )
