"""The paper's Algorithm 1 to the letter, to compare with. PURE."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from farside.group_time import WorkProfile
from farside.scheduler.sharing.colocation.balance import cut, swap
from farside.scheduler.sharing.colocation.grouping import (
    Grouping,
    GroupingRules,
    balanced_count,
    grouping_of,
    with_left_out,
)
from farside.scheduler.sharing.colocation.machines import GroupNeeds, by_ratio


def decide_printed(jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules, required: int = 0) -> Grouping:
    """Stops at the first job that makes nothing busier, and returns that grouping [harmony §IV-B3 Algorithm 1].

    Its utilisation has two parts, and the text does not say how two such are compared: by the rules' weight here. Where
    its loop does not begin, as with a single job, the answer is that job's. Nothing in it looks at memory,
    and its equation 1 has no term for the processor time of updates.
    """
    del required  # the text has no such thing
    jobs = [replace(job, net_cpu_s=0.0, net_cpu_alone_s=0.0) for job in jobs]
    best, found = 0.0, Grouping(free=machines)
    for size in range(min(2, len(jobs)), len(jobs) + 1):
        found = _grouping(jobs[:size], machines, rules) if size else found
        if found.score <= best:
            break
        best = found.score
    return with_left_out(found, {job.job: "the algorithm stopped before it" for job in jobs})


def _grouping(jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules) -> Grouping:
    work, net = np.array([job.work_machine_s for job in jobs]), np.array([job.net_s for job in jobs])
    update = np.array([job.update_s for job in jobs])
    count = balanced_count(work, net, machines, "l6")
    comp = work * count / machines + update
    groups = swap(cut(comp + net, count), comp - net, exchanges=4 * len(jobs))
    chosen = [[jobs[job] for job in group] for group in groups]
    time = rules.time if rules.chooses_reads(jobs) else None
    return grouping_of(chosen, by_ratio([GroupNeeds(group, time) for group in chosen], machines), machines, rules)
