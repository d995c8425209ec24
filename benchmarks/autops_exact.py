"""A lower bound on the Aggregators that a mix needs, from an exact solver."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Profile


def least_aggregators(jobs: Sequence[Profile], limits: Limits) -> int:
    """The fewest Aggregators, if tasks could be divided at will: nobody needs fewer.

    Variables: how many Aggregators have a set of jobs and a cycle; and the share of each job that these have.
    """
    kinds = [
        (members, cycle_s)
        for size in range(1, len(jobs) + 1)
        for members in combinations(range(len(jobs)), size)
        for cycle_s in (
            multiple * max(jobs[at].iteration_s for at in members) for multiple in range(1, limits.cycle_multiple + 1)
        )
        if all(_loss(cycle_s, jobs[at].iteration_s) < limits.loss_limit for at in members)
    ]
    pairs = [(kind, at) for kind, (members, _) in enumerate(kinds) for at in members]
    size = len(kinds) + len(pairs)
    whole = np.zeros((len(jobs), size))
    room = np.zeros((len(kinds), size))
    for column, (kind, at) in enumerate(pairs, len(kinds)):
        cycle_s = kinds[kind][1]
        whole[at, column] = 1
        room[kind, column] = int(cycle_s / jobs[at].iteration_s + 1e-9) * jobs[at].cpu_s / cycle_s
    for kind in range(len(kinds)):
        room[kind, kind] = -limits.capacity
    found = milp(
        np.concatenate([np.ones(len(kinds)), np.zeros(len(pairs))]),
        integrality=np.concatenate([np.ones(len(kinds)), np.zeros(len(pairs))]),
        bounds=Bounds(0, np.inf),
        constraints=[
            LinearConstraint(whole, 1, 1),
            LinearConstraint(room, -np.inf, 0),
        ],
    )
    assert found.success, found.message
    return round(float(found.fun))


def _loss(cycle_s: float, iteration_s: float) -> float:
    return 1 - iteration_s / max(iteration_s, cycle_s / int(cycle_s / iteration_s + 1e-9))
