"""Several policies compared on equal jobs. PURE."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from farside.errors import ConfigError
from farside.group_time import WorkProfile
from farside.scheduler.settings import chosen
from farside.scheduler.sim.colocation.cluster import Outcome, simulate
from farside.scheduler.sim.colocation.policies import POLICIES, Settings, Slots
from farside.scheduler.sim.colocation.table import TableJob, arriving, heaviest, mistaken

MACHINES_TRIED = range(4, 11)
BEST_ISOLATED = "best-isolated"
NAMES = (*POLICIES, BEST_ISOLATED)


def prepared(jobs: Sequence[TableJob], settings: Settings, rng: random.Random) -> list[TableJob]:
    """The jobs that are played: the wanted part of them, submitted when they are to be."""
    kept = list(jobs) if settings.subset == "all" else heaviest(jobs, settings.subset)
    return arriving(kept, settings.arrival_mean_s, rng) if settings.arrival_mean_s else kept


def believed(jobs: Iterable[TableJob], settings: Settings, rng: random.Random) -> dict[str, WorkProfile]:
    """By job, the profile that decisions go by."""
    return {
        job.job: mistaken(job.profile, rng, error=settings.error, common_error=settings.common_error) for job in jobs
    }


def played(
    name: str,
    jobs: Sequence[TableJob],
    machines: int,
    settings: Settings,
    taken: Mapping[str, WorkProfile],
    rng: random.Random,
) -> Outcome:
    """What comes of jobs under one policy; `best-isolated` is `isolated` with the number of machines that ends first.

    Raises:
        ConfigError: There is no such policy, or it wants more machines than there are.
    """
    if name == BEST_ISOLATED:
        tried = [count for count in MACHINES_TRIED if count <= machines] or [machines]
        each = [replace(settings, isolated_machines=count) for count in tried]
        outcomes = [played("isolated", jobs, machines, one, taken, rng) for one in each]
        return min(outcomes, key=lambda outcome: outcome.makespan_s)
    policy = chosen(name, POLICIES, "policy")(settings, rng)
    if isinstance(policy, Slots) and policy.machines > machines:
        key = "isolated_machines" if name.startswith("isolated") else "naive_machines"
        raise ConfigError(
            f"{name}: {key} is {policy.machines}, and there are {machines} machines",
            hint=f"--set {key}={machines}, or more --machines",
        )
    return simulate(jobs, machines, policy, settings, taken)
