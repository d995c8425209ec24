"""Runs of the co-location simulator that several of Harmony's figures share."""

import random
from collections.abc import Sequence
from functools import cache
from statistics import mean

from benchmarks.figure import Row
from farside.scheduler.sim.colocation.cluster import Outcome
from farside.scheduler.sim.colocation.compare import believed, played, prepared
from farside.scheduler.sim.colocation.policies import Settings
from farside.scheduler.sim.colocation.table import drawn_jobs

MACHINES = 100
BASE = Settings()


@cache
def outcome(name: str, seed: int, settings: Settings = BASE) -> Outcome:
    """One policy with the jobs of one seed, on 100 machines."""
    rng = random.Random(seed)
    jobs = prepared(drawn_jobs(rng), settings, rng)
    return played(name, jobs, MACHINES, settings, believed(jobs, settings, rng), random.Random(seed))


def gains(name: str, seeds: Sequence[int], settings: Settings, *, over: str = "isolated") -> list[tuple[float, float]]:
    """How many times shorter JCT and makespan are than under another policy, for each seed."""
    pairs = [(outcome(over, seed, settings), outcome(name, seed, settings)) for seed in seeds]
    return [(base.jct_s / ours.jct_s, base.makespan_s / ours.makespan_s) for base, ours in pairs]


def mean_and_least(values: Sequence[float]) -> str:
    """Both, in one cell."""
    return f"{mean(values):.2f} ({min(values):.2f})"


def gain_cells(name: str, seeds: Sequence[int], settings: Settings) -> Row:
    """JCT and makespan over `isolated`: mean, and least of all seeds."""
    found = gains(name, seeds, settings)
    return mean_and_least([jct for jct, _ in found]), mean_and_least([makespan for _, makespan in found])
