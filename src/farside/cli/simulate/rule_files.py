"""Rules of a simulation that files give: accounts and QOS of a manager, and planned maintenance."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from farside.cli.sim import Request
from farside.cli.simulate.left_out import line_of, without
from farside.config import ManagerConfig, load_config
from farside.errors import ConfigError
from farside.scheduler.configured_rules import tenancy_of
from farside.scheduler.sim.cluster import Site
from farside.scheduler.sim.experiment import Experiment, Scene
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.tenancy import Tenancy
from farside.units import format_count


def with_tenancy(experiments: tuple[Experiment, ...], request: Request) -> tuple[Experiment, ...]:
    """Policies with the accounts and QOS of the file that was named.

    Raises:
        ConfigError: It can't be used, has neither, or a setting says something else of the same.
    """
    if request.tenants is None:
        return experiments
    for name in ("fair_share_half_life_s", "user_quota_gpus"):
        if name in {key.rpartition(".")[2] for key in request.settings_by_name}:
            raise ConfigError(
                f"--set {name}: --tenants {request.tenants} says what accounts may use",
                hint="leave one of the two out",
            )
    tenancy = tenancy_of(load_config(ManagerConfig, [request.tenants]))
    if tenancy is None:
        raise ConfigError(
            f"--tenants {request.tenants}: has neither accounts nor QOS", hint="add a table [[account]] or [[qos]]"
        )
    return tuple(replace(one, tenancy=tenancy) for one in experiments)


def check_closable(experiments: Sequence[Experiment], request: Request) -> None:
    """Refuse maintenance where nobody knows on which nodes jobs run.

    Raises:
        ConfigError: A placement takes all nodes for one.
    """
    pooled = next((one.placement.name for one in experiments if one.placement.ledger(()).is_pooled), "")
    if request.maintenance is not None and pooled:
        raise ConfigError(
            f"--maintenance {request.maintenance}: placement {pooled} does not say on which nodes jobs run",
            hint="take --placement consolidate",
        )


def charged(
    scene: Scene, tenancy: Tenancy | None, path: str, on_bad: Literal["refuse", "skip"]
) -> tuple[Scene, list[str]]:
    """The jobs with the account and QOS that the manager would have given them; those that it would refuse are found.

    Without accounts nothing is known of them: those of the trace do not count.

    Raises:
        ConfigError: A job has none, or asks for more GPUs than they may have, and is not to be left out.
    """
    jobs: list[TraceJob] = []
    found: dict[int, str] = {}
    for entry in scene.jobs:
        account, qos = "", ""
        try:
            if tenancy is not None:
                account, qos = tenancy.membership(user=entry.job.user, account=entry.job.account, qos=entry.job.qos)
        except ConfigError as error:
            found[entry.job.sequence] = line_of(path, entry, str(error).partition("; ")[0])
        if (account, qos) != (entry.job.account, entry.job.qos):
            entry = replace(entry, job=replace(entry.job, account=account, qos=qos))
        if tenancy is not None and entry.job.sequence not in found:
            for problem in tenancy.quota_problems(entry.job):
                found.setdefault(entry.job.sequence, line_of(path, entry, problem.partition("; ")[0]))
        jobs.append(entry)
    hint = "change the accounts, or leave such jobs out"
    return without(
        replace(scene, jobs=tuple(jobs)), found, path, on_bad, what="be submitted under these accounts", hint=hint
    )


def rule_facts(request: Request, experiment: Experiment, site: Site) -> tuple[str, ...]:
    """The rules that files gave, a line each."""
    facts: list[str] = []
    if (tenancy := experiment.tenancy) is not None:
        told = f"{format_count(len(tenancy.accounts), 'account')}, {len(tenancy.qualities)} QOS"
        facts.append(f"{request.tenants}: {told}")
    if site.closures:
        facts.append(f"{request.maintenance}: nodes are closed {format_count(len(site.closures), 'time')}")
    return tuple(facts)
