"""Scheduling rules from the settings of the manager or of the Slurm integration. PURE."""

import math
from collections.abc import Mapping
from dataclasses import replace

from farside.config.check import names_in
from farside.config.hostlist import expand
from farside.config.manager import AS_PARTITION, REST, IdleRow, ManagerConfig
from farside.config.slurm import SlurmConfig
from farside.errors import ConfigError
from farside.scheduler.admission.idle_gpus import IdleRule, IdleRules
from farside.scheduler.admission.partitions import Partition, Partitions
from farside.scheduler.admission.rules import Rules, reserve_after
from farside.scheduler.order.catalog import ORDERS, make_order
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.timeshare import Timeshare
from farside.scheduler.order.yarn import YarnCs
from farside.scheduler.placement.catalog import PLACEMENTS, make_placement
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.skew import check_learner
from farside.scheduler.placement.yarn import Yarn
from farside.scheduler.settings import named_settings, naming
from farside.scheduler.tenancy import Account, Qos, Tenancy

EMPTY = ManagerConfig().policy_history
# What they plan with is that a job has room, on few nodes or on any: that holds whichever nodes Slurm takes.
OVER_SLURM = ("consolidate", "fragments")


def rules_of(config: ManagerConfig | SlurmConfig) -> Rules:
    """Scheduling rules from a configuration.

    Raises:
        ConfigError: No such policy or placement, or it can't be used on real nodes.
    """
    told = named_settings("policy_settings", config.policy_settings)
    placement = _placement_of(config)
    # Placements say this only through the ledger that they make; one without nodes is enough to ask.
    if placement.ledger(()).is_pooled:
        raise ConfigError(f"placement: {config.placement} does not say on which nodes", hint="take consolidate")
    try:
        reserve_after_s = reserve_after(config.reserve_after_s)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    with naming("policy_settings" if config.policy in ORDERS and told else "policy"):
        order = make_order(config.policy, told)
    _refuse_half_a_policy(config, order)
    return Rules(
        order=order,
        placement=placement,
        min_run_s=config.min_run_s,
        reserve_after_s=reserve_after_s,
        tenancy=tenancy_of(config) if isinstance(config, ManagerConfig) else None,
    )


def _placement_of(config: ManagerConfig | SlurmConfig) -> PlacementPolicy:
    told = named_settings("placement_settings", config.placement_settings if isinstance(config, ManagerConfig) else "")
    with naming("placement_settings" if config.placement in PLACEMENTS and told else "placement"):
        placement = make_placement(config.placement, told)
    if placement.is_learning:
        check_learner()
    return _without_guesses(placement, told) if isinstance(placement, Yarn) else placement


def _without_guesses(placement: Yarn, told: Mapping[str, str]) -> Yarn:
    """YARN's placement of jobs that say themselves what they need: a job that names no CPUs needs none."""
    guess = next(iter({"worker_cpus", "server_cpus"} & {*told}), None)
    if guess is not None:
        hint = "leave it out: jobs name cpus_per_gpu, or cpus_in_proportion = true does it for them"
        raise ConfigError(f"placement_settings: yarn: {guess} is for logs whose jobs name no CPUs", hint=hint)
    return replace(placement, worker_cpus=0.0, server_cpus=0.0)


def _refuse_half_a_policy(config: ManagerConfig | SlurmConfig, order: OrderPolicy) -> None:
    """Refuse a policy that would do something else than its name says, with what to do instead."""
    has_prior = config.policy_history != EMPTY
    if order.traits.is_counting_first:
        raise ConfigError(
            f"policy_settings: {config.policy} with preempts_by=count stops jobs for others that may find no place;"
            " it is for comparing simulations with published ones",
            hint="leave preempts_by out: a running job then stops only if another one starts",
        )
    if isinstance(order, Gittins) and not (order.is_learning or has_prior):
        raise ConfigError(
            "policy: gittins has no distribution of past jobs, as is_learning is off and nothing else tells it one",
            hint="take las, or leave is_learning on, or set policy_history",
        )
    if isinstance(config, ManagerConfig):
        if isinstance(order, YarnCs) and config.placement != "yarn":
            raise ConfigError(
                f"policy: yarn-cs is the order of a scheduler whose placement is yarn, not {config.placement}",
                hint='set placement = "yarn", or take fifo, which goes with any placement',
            )
        return
    if config.placement not in OVER_SLURM:
        raise ConfigError(
            f"placement: {config.placement} chooses the nodes of jobs, and Slurm itself does that",
            hint="take consolidate, which plans with as few nodes as can hold a job, or fragments, with any",
        )
    if isinstance(order, YarnCs):
        raise ConfigError("policy: yarn-cs includes a placement, and Slurm itself chooses the nodes", hint="take fifo")
    if isinstance(order, Timeshare) and not config.preempt:
        raise ConfigError(
            "policy: timeshare takes turns by preemption, and preempt is off",
            hint="set preempt = true, which requeues jobs at the end of their slices, or take fifo",
        )


def left_out_over_slurm(config: SlurmConfig, order: OrderPolicy) -> tuple[str, ...]:
    """Parts of a policy that the settings keep from Slurm's jobs, a line each; none: Slurm's jobs get all of it."""
    found: list[str] = []
    if order.traits.is_preemptive and not config.preempt:
        found.append(f"preempt is off: {config.policy} orders waiting jobs, and running jobs keep their GPUs")
    if order.traits.is_strict and not config.gate:
        found.append(f"gate is off: Slurm starts jobs that have room past the first of {config.policy}'s order")
    return tuple(found)


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


def partitions_of(config: ManagerConfig) -> Partitions:
    """Partitions from a configuration that `manager_problems` has nothing against."""
    nodes_of = {row.name: expand(row.nodes.replace(" ", "")) for row in config.partition}
    return Partitions(
        by_name={
            row.name: Partition(
                name=row.name, accounts=frozenset(names_in(row.accounts)), lend_grace_s=row.lend_grace_s
            )
            for row in config.partition
        },
        owners={node: name for name, nodes in nodes_of.items() for node in nodes if node != REST},
        rest=next((name for name, nodes in nodes_of.items() if nodes == (REST,)), ""),
    )


def idle_rules_of(config: ManagerConfig) -> IdleRules:
    """What is done about idle GPUs, from a configuration that `manager_problems` has nothing against."""
    partitions = {row.name: _idle_rule(row, row.idle_gpus) for row in config.partition}
    qualities = {row.name: _idle_rule(row, row.idle_gpus) for row in config.qos if row.idle_gpus != AS_PARTITION}
    return IdleRules(
        by_partition={name: rule for name, rule in partitions.items() if rule is not None},
        by_qos=qualities,
        first=next((row.name for row in config.partition), ""),
    )


def _idle_rule(row: IdleRow, what: str) -> IdleRule | None:
    if what == "off":
        return None
    return IdleRule(
        below_pct=row.idle_gpus_below_pct, after_s=row.idle_gpus_after_s, grace_s=row.idle_gpus_grace_s,
        ends=what == "end",
    )  # fmt: skip
