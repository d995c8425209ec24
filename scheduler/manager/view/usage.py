"""Usage in a span of time: GPU hours, waiting and energy, by user, account or deployment. PURE.

From the jobs' run intervals, so from the log: what a job held is known exactly, whatever was preempted, lost or started
anew.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct

from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.model.sleep_time import J_PER_KWH
from farside.scheduler.manager.view.like import like

S_PER_H = 3600.0


class By(StrEnum):
    """Group of the sums: user or account, or deployment of inference, of the jobs that are of one."""

    USER = "user"
    ACCOUNT = "account"
    DEPLOYMENT = "deployment"


@dataclass(slots=True, kw_only=True)
class Usage:
    """Usage of the jobs of one user, account or deployment.

    Attributes:
        name: Theirs.
        user: Whose deployment it is; empty with users and accounts.
        jobs: Jobs that waited or held GPUs in the time.
        ended: Of these, how many were over by its end.
        gpu_s: GPU seconds held.
        wait_s: Seconds that they were there without GPUs, held ones and those that waited for others too.
        energy_j: What the GPUs drew meanwhile.
        metered_gpu_s: Of ``gpu_s``, that for which nodes measured the energy; the rest is reckoned.
    """

    name: str
    user: str = ""
    jobs: int = 0
    ended: int = 0
    gpu_s: float = 0.0
    wait_s: float = 0.0
    energy_j: float = 0.0
    metered_gpu_s: float = 0.0


class UsageRow(Struct, frozen=True, kw_only=True):
    """Usage of the jobs of a user, an account or a deployment; ``user``: whose deployment it is, empty with others."""

    name: str
    user: str
    jobs: int
    ended: int
    gpu_hours: float
    wait_hours: float
    kwh: float
    metered_gpu_hours: float


def usage_of(jobs: Iterable[LiveJob], by: By, begin_s: float, end_s: float, gpu_power_w: float) -> tuple[Usage, ...]:
    """Usage between two times, a line for each user, account or deployment, the most GPU time first.

    Args:
        jobs: All that might have been there.
        by: Whose use is added up.
        begin_s: Seconds since the epoch.
        end_s: The same, not after now: what is held now is taken as held until then.
        gpu_power_w: What a GPU that is held draws where its node did not measure it.
    """
    found: dict[tuple[str, str], Usage] = {}
    for job in jobs:
        over_s = job.end_s if job.is_over else end_s
        there_s = _common_s(job.submit_s, over_s, begin_s, end_s)
        if there_s <= 0:
            continue
        name = _group(job, by)
        if not name:
            continue
        user = job.user if by is By.DEPLOYMENT else ""  # two users' deployments may have one name
        total = found.setdefault((name, user), Usage(name=name, user=user))
        total.jobs += 1
        total.ended += job.is_over and job.end_s <= end_s
        total.wait_s += there_s
        _add_held(total, job, begin_s, end_s, gpu_power_w)
    return tuple(sorted(found.values(), key=lambda one: (-one.gpu_s, one.name, one.user)))


def _group(job: LiveJob, by: By) -> str:
    match by:
        case By.USER:
            return job.user
        case By.ACCOUNT:
            return job.spec.account or job.user
        case By.DEPLOYMENT:
            return job.spec.deployment


def _common_s(begin_s: float, end_s: float, other_begin_s: float, other_end_s: float) -> float:
    return max(0.0, min(end_s, other_end_s) - max(begin_s, other_begin_s))


def _add_held(total: Usage, job: LiveJob, begin_s: float, end_s: float, gpu_power_w: float) -> None:
    """Adds the time in which a job held GPUs, which it did not wait, and their energy."""
    gpu_s = metered_gpu_s = 0.0
    for run_interval in job.stints:
        part_s = _common_s(run_interval.begin_s, run_interval.end_s, begin_s, end_s)
        total.wait_s -= part_s
        gpu_s += part_s * job.spec.gpus
        if part_s and run_interval.metered_gpu_s:
            # Of a run interval that began before or went on after, in proportion: its power is not known by the minute.
            share = part_s / (run_interval.end_s - run_interval.begin_s)
            total.energy_j += share * run_interval.energy_j
            metered_gpu_s += share * run_interval.metered_gpu_s
    total.gpu_s += gpu_s
    total.energy_j += max(0.0, gpu_s - metered_gpu_s) * gpu_power_w
    total.metered_gpu_s += metered_gpu_s


def show_usage(one: Usage) -> UsageRow:
    """As the API and ``--json`` show it: documented in docs/manager.md."""
    return like(
        UsageRow,
        one,
        gpu_hours=one.gpu_s / S_PER_H,
        wait_hours=one.wait_s / S_PER_H,
        kwh=one.energy_j / J_PER_KWH,
        metered_gpu_hours=one.metered_gpu_s / S_PER_H,
    )
