"""How near the placement of jobs on Aggregators is to an exact solver's bound, and how long an arrival takes."""

import gc
import random
import statistics
import time

from benchmarks.autops_exact import least_aggregators
from benchmarks.figure import Figure, Table
from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Placement
from farside.scheduler.sharing.aggregation.pool import Pool, PoolSettings
from farside.scheduler.sim.aggregation.drawn import drawn_mix

LIMITS = Limits(cycle_multiple=4, period_tolerance=0.0)
SMALL_JOBS, SMALL_TENSORS = 6, 8
TASKS = 400


def figure(*, cases: int, jobs: int) -> Figure:
    """Both tables."""
    # What other figures have loaded is not gone through again while arrivals are timed.
    gc.freeze()
    gaps = [_gap(random.Random(seed)) for seed in range(cases)]
    rows = tuple(_arrivals(name, pool, jobs) for name, pool in (("in clusters of 50", 50), ("in one pool", 10**6)))
    return Figure(
        key="autops-decisions",
        title="Decisions of shared aggregation",
        source="autops §4.3.3.2: 'the complexity increases exponentially'",
        tables=(
            Table(
                caption=f"Aggregators above an exact solver's bound, {cases} mixes of {SMALL_JOBS} jobs",
                header=("rule", "mean", "worst case"),
                rows=(
                    (
                        "cycles of 4",
                        f"{100 * (statistics.mean(gaps) - 1):.1f} %",
                        f"{max(gaps):.2f} times",
                    ),
                ),
            ),
            Table(
                caption=f"CPU time of an arrival, {jobs:,} jobs of {TASKS} tasks",
                header=("Aggregators", "held", "median ms", "worst ms"),
                rows=rows,
            ),
        ),
        notes=(
            "The bound lets tasks be divided at will and jobs be placed all at once, so no rule need reach it. "
            "To reach: 15 % above it on average.",
            "To reach: an arrival within 50 ms among 1,000 jobs.",
        ),
    )


def _gap(rng: random.Random) -> float:
    jobs, placement = drawn_mix(rng, jobs=SMALL_JOBS, tensors=(SMALL_TENSORS,)), Placement(LIMITS)
    for job in jobs:
        assert placement.add(job) is None
    return len(placement.aggregators) / least_aggregators(jobs, LIMITS)


def _arrivals(name: str, cluster_max: int, jobs: int) -> tuple[str, ...]:
    pool, took_ms = Pool(LIMITS, PoolSettings(cluster_max=cluster_max)), []
    for number, job in enumerate(drawn_mix(random.Random(0), jobs=jobs, tensors=(TASKS,))):
        begun_s = time.process_time()
        answer = pool.arrive(float(number), job)
        took_ms.append(1000 * (time.process_time() - begun_s))
        assert answer is None, answer
    return name, f"{pool.held}", f"{statistics.median(took_ms):.1f}", f"{max(took_ms):.1f}"
