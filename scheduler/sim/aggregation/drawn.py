"""Drawn jobs for shared aggregation, whose tensors are as unequal in size as those of models. PURE."""

import random
from collections.abc import Sequence

from farside.scheduler.sharing.aggregation.placement import Profile

ITERATIONS_S = (0.1, 0.15, 0.25, 0.4, 0.6, 1.0)
# AlexNet has 16 tensors, VGG19 38, ResNet18 60, ResNet50 160.
TENSORS = (16, 38, 60, 160)
JOBS = 12


def drawn_mix(rng: random.Random, *, jobs: int = JOBS, tensors: Sequence[int] = TENSORS) -> list[Profile]:
    """Jobs that take 10 to 60 % of one core each, in the order in which they arrive."""
    found = list[Profile]()
    for number in range(jobs):
        iteration_s = rng.choice(ITERATIONS_S) * rng.uniform(0.8, 1.2)
        cpu_s = iteration_s * rng.uniform(0.1, 0.6)
        weights = [rng.paretovariate(1.1) for _ in range(rng.choice(tensors))]
        total = sum(weights)
        tasks_s = tuple(sorted((cpu_s * weight / total for weight in weights), reverse=True))
        found.append(Profile(job=f"job{number}", iteration_s=iteration_s, tasks_s=tasks_s))
    return found
