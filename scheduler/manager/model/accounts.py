"""Accounts and QOS as the manager's settings declare them, and what they say to a job that is submitted. PURE."""

import math
from collections.abc import Iterator

from msgspec.structs import replace

from farside.config.check import names_in
from farside.config.manager import ManagerConfig
from farside.scheduler.manager.model.spec import JobSpec, gpus_text
from farside.scheduler.state import Job
from farside.scheduler.tenancy import Account, Qos, Tenancy


def tenancy_of(config: ManagerConfig) -> Tenancy | None:
    """The accounts and qualities of service of these settings; None: there are none."""
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


def charged(spec: JobSpec, user: str, tenancy: Tenancy | None) -> JobSpec:
    """A job with the account and QOS that it gets: the log keeps these, whatever the settings say later.

    Raises:
        ConfigError: It names one that is not there, or is not for this user.
    """
    account, qos = (tenancy or Tenancy()).membership(user=user, account=spec.account, qos=spec.qos)
    return replace(spec, account=account, qos=qos)


def quota_problems(spec: JobSpec, user: str, tenancy: Tenancy | None) -> Iterator[str]:
    """What would keep a job waiting for ever, though the cluster is large enough."""
    if tenancy is None:
        return
    job = Job(job_id="", sequence=0, submit_s=0.0, gpus=spec.gpus, user=user, account=spec.account, qos=spec.qos)
    for cap in tenancy.standing(job).caps:
        if spec.gpus > cap.gpus:
            may = gpus_text(int(cap.gpus))
            yield f"gpus: {gpus_text(spec.gpus)} are more than {cap.owner} may have at once, {may}; ask for fewer"
