"""The command `farside energy jobs`: a trace on nodes that sleep, compared with nodes that do not."""

from collections.abc import Mapping
from pathlib import Path

from farside.cli.sim import Request
from farside.cli.simulate.request import prepare
from farside.config import ManagerConfig, load_config
from farside.config.load import DEFAULT, effective_config
from farside.errors import ConfigError
from farside.scheduler.energy.catalog import make_online
from farside.scheduler.power.fleet import FleetRules
from farside.scheduler.power.rules import check_holidays, fleet_rules
from farside.scheduler.sim.energy.sleeping import UNLIMITED, Cost, SleepingSimulation, cost_of
from farside.scheduler.state import Cluster


def compare_runs(
    request: Request,
    policy: str,
    settings: Mapping[str, str],
    *,
    boot_s: float,
    holidays: frozenset[int] = frozenset(),
    fleet: Path | None = None,
) -> Cost:
    """Runs the trace with sleep and without.

    Args:
        request: What is run on what.
        policy: The energy policy.
        settings: The settings of the policy.
        boot_s: Boot time of a node.
        holidays: Days since 1970-01-01, for forecasts.
        fleet: A manager.toml whose rules for all nodes count; None: every wish is carried out at once.

    Raises:
        ConfigError: Anything that was asked for is wrong, or virtual clusters change in size by themselves.
    """
    make_policy = make_online(policy, settings, holidays=holidays)
    if holidays:
        check_holidays(make_policy, policy, of="--holidays, --holiday", settings="with --set")
    prepared = prepare(request)
    scene, experiment = prepared.scene, prepared.experiments[0]
    if scene.site.resizes:
        raise ConfigError("nodes cannot both sleep and leave", hint="give --nodes, or --vc-nodes without days")
    rules = UNLIMITED if fleet is None else _fleet_rules(fleet, scene.site.cluster)
    before = experiment.simulation(scene.site, scene.jobs).run()
    simulation = SleepingSimulation(
        scene.site.cluster, experiment.rules, scene.jobs, estimator=experiment.make_estimator(scene.jobs),
        closures=scene.site.closures, make_policy=make_policy, boot_s=boot_s, fleet=rules,
    )  # fmt: skip
    return cost_of(simulation, simulation.run(), before)


def passed_over(fleet: Path) -> tuple[str, ...]:
    """Settings about power that the file has and a simulation does not go by."""
    sources = effective_config(ManagerConfig, [fleet]).sources
    given = (name for name, source in sources.items() if source != DEFAULT)
    return tuple(
        name
        for name in given
        if name.startswith(("power", "holidays")) and name not in ("power_floor", "power_min_on_s")
    )


def _fleet_rules(path: Path, cluster: Cluster) -> FleetRules:
    """The rules of the fleet from a manager.toml, with those limits that have no setting.

    Raises:
        ConfigError: The file can't be used, or names a node that the cluster does not have; or there are several
            virtual clusters, each of which sleeps by itself here, while the rules are for all nodes together.
    """
    if len(cluster.virtual_clusters) > 1:
        what = f"its limits are for all nodes together, and there are {len(cluster.virtual_clusters)} virtual clusters"
        raise ConfigError(f"--fleet {path}: {what}", hint="take one of them with --vc, or give --nodes for all jobs")
    rules = fleet_rules(load_config(ManagerConfig, [path]))
    names = {node.name for vc in cluster.virtual_clusters for node in vc.nodes}
    if unknown := sorted(rules.always_on - names):
        hint = f"nodes here are called as {min(names)}"
        raise ConfigError(f"--fleet {path}: always_on: the cluster has no node {unknown[0]}", hint=hint)
    return rules
