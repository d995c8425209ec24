"""Accounts and qualities of service (QOS): what a job's owner may use, and the job's priority. PURE.

A job is charged to an account and has a QOS. Both decide its `PriorityClass`: the priority that goes before everything
else, whether the job may take other jobs' GPUs, and the caps on what it may hold together with others. The cycle reads
only that (domain.py), so a quota means the same to the simulator and to the manager.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from farside.errors import ConfigError
from farside.scheduler.state import Job
from farside.units import format_count

DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Account that GPU time is charged to.

    ``shares``: its part of the cluster, in proportion to the others'. ``quota_gpus``: the most that its jobs hold at
    once. ``users``: who may charge it.
    """

    name: str
    shares: float = 1.0
    quota_gpus: float = math.inf
    users: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """A quality of service.

    Attributes:
        name: What ``--qos`` calls it.
        priority: Its jobs go before all jobs of a lower one, whatever the policy.
        max_gpus_per_user: The most GPUs that the jobs of one user hold at once under it.
        max_jobs_per_user: The same of jobs.
        may_preempt: Its jobs may take GPUs of jobs that stand behind them and may be preempted: of those with a lower
            priority, and of others where the policy says so. Otherwise they wait until GPUs are free.
        accounts: Whose jobs may have it; empty: those of all.
    """

    name: str
    priority: float = 0.0
    max_gpus_per_user: float = math.inf
    max_jobs_per_user: float = math.inf
    may_preempt: bool = True
    accounts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cap:
    """Upper limit on what all jobs with this cap hold together. ``owner`` names them: ``account ml``."""

    owner: str
    gpus: float = math.inf
    jobs: float = math.inf

    def why_not(self, *, gpus: int, held_gpus: int, held_jobs: int) -> str:
        """Why a job of ``gpus`` would break the cap; empty: it would not."""
        if held_gpus + gpus > self.gpus:
            return f"{self.owner} uses {held_gpus} of its {format_count(int(self.gpus), 'GPU')}"
        if held_jobs + 1 > self.jobs:
            return f"{self.owner} runs {held_jobs} of its {format_count(int(self.jobs), 'job')}"
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityClass:
    """Priority and limits of a job, from its account and QOS; see `Qos`."""

    account: str = ""
    priority: float = 0.0
    may_preempt: bool = True
    caps: tuple[Cap, ...] = ()


EVERYBODY = Account(name="")
NO_QOS = Qos(name="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """All accounts and qualities of service.

    Attributes:
        accounts: By name; none: a job is charged to whatever it names, otherwise to its user.
        qualities: By name; a job that names none has neither priority nor limits.
        default_account: Of users who belong to none; empty: these may not submit.
        default_qos: Of jobs that name none.
        others: What counts for an account that is not declared.
        half_life_s: After so long used GPU time counts half when accounts are compared (fair_share.py); 0: they are
            not compared.
        period_s: They are compared anew after so long.
    """

    accounts: Mapping[str, Account] = field(default_factory=dict)
    qualities: Mapping[str, Qos] = field(default_factory=dict)
    default_account: str = ""
    default_qos: str = ""
    others: Account = EVERYBODY
    half_life_s: float = 7 * DAY_S
    period_s: float = 300.0

    def priority_class(self, job: Job) -> PriorityClass:
        """Priority class of a job, by its account and QOS."""
        name = job.account or job.user
        account, qos = self.accounts.get(name, self.others), self.qualities.get(job.qos, NO_QOS)
        return PriorityClass(
            account=name,
            priority=qos.priority,
            may_preempt=qos.may_preempt,
            caps=tuple(_caps(name, job.user, account, qos)),
        )

    def quota_problems(self, job: Job) -> Iterator[str]:
        """Reasons why a job would wait for ever although the cluster is large enough."""
        for cap in self.priority_class(job).caps:
            if job.gpus > cap.gpus:
                asked, may = format_count(job.gpus, "GPU"), format_count(int(cap.gpus), "GPU")
                yield f"gpus: {asked} are more than {cap.owner} may have at once, {may}; ask for fewer"

    def shares_of(self, name: str) -> float:
        """The shares of an account."""
        return self.accounts.get(name, self.others).shares

    def membership(self, *, user: str, account: str, qos: str) -> tuple[str, str]:
        """The account and QOS of a job that its user submits with these, empty where it names none.

        Raises:
            ConfigError: There is no such account or QOS, or it is not for this user.
        """
        chosen = self._account_of(user, account)
        return chosen, self._qos_of(chosen or user, qos)

    def _account_of(self, user: str, wanted: str) -> str:
        if not self.accounts:
            return wanted
        own = [name for name, account in self.accounts.items() if user in account.users]
        if not own and self.default_account:
            own = [self.default_account]
        if not wanted:
            if not own:
                raise ConfigError(f"account: user {user} belongs to none", hint="ask an operator for one")
            return own[0]
        if wanted not in self.accounts:
            raise ConfigError(f"account: there is no account '{wanted:.60}'", hint=f"yours: {', '.join(own) or 'none'}")
        if wanted not in own:
            hint = f"theirs: {', '.join(own) or 'none'}"
            raise ConfigError(f"account: user {user} does not belong to account {wanted}", hint=hint)
        return wanted

    def _qos_of(self, account: str, wanted: str) -> str:
        name = wanted or self.default_qos
        if not name:
            return ""
        open_to = [one.name for one in self.qualities.values() if not one.accounts or account in one.accounts]
        if name not in self.qualities:
            raise ConfigError(f"qos: there is no QOS '{name:.60}'", hint=f"yours: {', '.join(open_to) or 'none'}")
        if name not in open_to:
            hint = f"its: {', '.join(open_to) or 'none'}"
            raise ConfigError(f"qos: QOS {name} is not for account {account}", hint=hint)
        return name


def _caps(name: str, user: str, account: Account, qos: Qos) -> Iterator[Cap]:
    if account.quota_gpus < math.inf:
        yield Cap(owner=f"account {name}", gpus=account.quota_gpus)
    if min(qos.max_gpus_per_user, qos.max_jobs_per_user) < math.inf:
        owner = f"user {user} in QOS {qos.name}"
        yield Cap(owner=owner, gpus=qos.max_gpus_per_user, jobs=qos.max_jobs_per_user)
