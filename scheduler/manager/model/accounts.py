"""Account, QOS and partition of a submitted job: which it gets, and why they refuse it. PURE."""

from collections.abc import Iterator

from msgspec.structs import replace

from farside.errors import ConfigError
from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.state import Job
from farside.scheduler.tenancy import Tenancy


def charged(spec: JobSpec, user: str, tenancy: Tenancy | None, partitions: Partitions = NO_PARTITIONS) -> JobSpec:
    """A job with the account, QOS and partition that it gets: the log keeps these, whatever the settings say later.

    Raises:
        ConfigError: It names one that is not there, or is not for this user; or a QOS for a co-located job, which has
            no use for it.
    """
    # Here and not among the job's problems: what it gets without naming any is no fault of its.
    if spec.colocate and spec.qos:
        raise ConfigError("qos: co-located jobs wait in the order in which they came", hint="leave it out")
    account, qos = (tenancy or Tenancy()).membership(user=user, account=spec.account, qos=spec.qos)
    partition = spec.partition if spec.colocate else partitions.chosen(spec.partition, account or user)
    return replace(spec, account=account, qos=qos, partition=partition)


def quota_problems(spec: JobSpec, user: str, tenancy: Tenancy | None) -> Iterator[str]:
    """Reasons why a job would wait for ever although the cluster is large enough."""
    if tenancy is None:
        return
    job = Job(job_id="", sequence=0, submit_s=0.0, gpus=spec.gpus, user=user, account=spec.account, qos=spec.qos)
    yield from tenancy.quota_problems(job)
