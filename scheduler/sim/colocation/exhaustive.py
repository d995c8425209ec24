"""The best of all groupings, by looking at all: what a few jobs allow, to judge the grouping rule by. PURE."""

from collections.abc import Sequence

import numpy as np

from farside.errors import ConfigError
from farside.group_time import WorkProfile
from farside.scheduler.sharing.colocation.balance import Floats
from farside.scheduler.sharing.colocation.grouping import Grouping, GroupingRules, grouping_of, with_left_out

JOBS_MAX, MACHINES_MAX = 9, 64


def exhaustive(jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules, required: int = 0) -> Grouping:
    """The grouping with the largest score: of all prefixes of the jobs, all their partitions, all allocations.

    Args:
        jobs: At most 9.
        machines: At most 64.
        rules: The score and the memory.
        required: How many of the first must be in.

    Raises:
        ConfigError: They are too many to look at all.
    """
    if len(jobs) > JOBS_MAX or machines > MACHINES_MAX:
        raise ConfigError(
            f"exhaustive: {len(jobs)} jobs on {machines} machines are too many to try all groupings",
            hint=f"at most {JOBS_MAX} jobs and {MACHINES_MAX} machines",
        )
    if not jobs:
        return Grouping(free=machines)
    busy = {mask: _busy(_members(jobs, mask), machines, rules) for mask in range(1, 1 << len(jobs))}
    best, chosen = _partitions(busy, len(jobs), machines)
    prefixes = [(1 << size) - 1 for size in range(max(1, required), len(jobs) + 1)]
    mask, left = max(prefixes, key=lambda one: float(best[one][machines])), machines
    if best[mask][machines] == -np.inf:
        return Grouping(free=machines, left_out={job.job: "a machine has less memory than it needs" for job in jobs})
    groups, given = list[Sequence[WorkProfile]](), list[int]()
    while mask:
        part, held = chosen[mask][left]
        groups.append(_members(jobs, part))
        given.append(held)
        mask, left = mask ^ part, left - held
    reasons = {job.job: "it would keep no more machines busy" for job in jobs}
    return with_left_out(grouping_of(groups, given, machines, rules), reasons)


def _members(jobs: Sequence[WorkProfile], mask: int) -> list[WorkProfile]:
    return [job for number, job in enumerate(jobs) if mask >> number & 1]


def _busy(jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules) -> Floats:
    """By number of machines, how many of them a group keeps busy; minus infinity where it has no room."""
    found = np.full(machines + 1, -np.inf)
    for held in range(1, machines + 1):
        if rules.has_room(jobs, held):
            time = rules.time(jobs, held)
            found[held] = held * (rules.cpu_weight * time.busy_cpu + (1 - rules.cpu_weight) * time.busy_net)
    return found


def _partitions(
    busy: dict[int, Floats], jobs: int, machines: int
) -> tuple[dict[int, Floats], dict[int, list[tuple[int, int]]]]:
    """By set of jobs, the most machines kept busy with each number of them, and its first group with its machines."""
    best: dict[int, Floats] = {0: np.zeros(machines + 1)}
    chosen = dict[int, list[tuple[int, int]]]()
    for mask in range(1, 1 << jobs):
        most, how = np.full(machines + 1, -np.inf), [(0, 0)] * (machines + 1)
        first, rest = mask & -mask, mask & (mask - 1)
        part = rest
        while True:  # all subsets with the first job of the set
            group, others = busy[part | first], best[rest ^ part]
            for total in range(1, machines + 1):
                sums = group[1 : total + 1] + others[total - 1 :: -1]
                held = int(np.argmax(sums))
                if sums[held] > most[total]:
                    most[total], how[total] = sums[held], (part | first, held + 1)
            if not part:
                break
            part = (part - 1) & rest
        best[mask], chosen[mask] = most, how
    return best, chosen
