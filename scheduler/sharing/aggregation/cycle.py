"""Cyclic execution: what jobs with different iterations cost each other on one Aggregator. PURE.

An Aggregator repeats a cycle of C seconds. A job j whose iteration takes D_j seconds alone runs floor(C / D_j) times in
it, at equal distances: so its iteration takes C / floor(C / D_j) seconds there, and at least D_j [autops §4.3.3.2].

Here a cycle may be several times the longest iteration: the floor then cuts off less. In the paper it is the longest
iteration itself (`Limits.cycle_multiple` = 1).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# A ratio of two measured times that should be a whole number is one, whatever its last bits say.
EXACT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an Aggregator may do to the jobs on it.

    Attributes:
        loss_limit: A job's loss of speed stays below this share. The paper's LossLimit.
        capacity: Core seconds of work a second on one Aggregator: its cores, but for what stays unplanned.
        job_capacity: Of these, what one job can get: where each is served by one thread, that is one core's.
        cycle_multiple: A cycle is at most this many of the longest iterations; 1: the paper's.
        period_tolerance: A job whose iterations are longer by this share still runs as often as if they fitted:
            measured times vary, and a floor is a cliff. 0: the paper's.
    """

    loss_limit: float = 0.1
    capacity: float = 1.0
    job_capacity: float = math.inf
    cycle_multiple: int = 4
    period_tolerance: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.loss_limit < 1:
            raise ValueError("loss_limit must be above 0 and below 1")
        if not 0 < self.capacity < math.inf:
            raise ValueError("capacity must be above 0")
        if not self.job_capacity > 0:
            raise ValueError("job_capacity must be above 0")
        if self.cycle_multiple < 1:
            raise ValueError("cycle_multiple must be at least 1")
        if not 0 <= self.period_tolerance < self.loss_limit:
            raise ValueError("period_tolerance must be from 0 to below loss_limit")

    @property
    def alone_capacity(self) -> float:
        """What a job gets of an Aggregator that has no other."""
        return min(self.capacity, self.job_capacity)


def runs(cycle_s: float, iteration_s: float, tolerance: float = 0.0) -> int:
    """Returns how often a job runs in one cycle: at least once, if its iteration fits into the cycle."""
    return math.floor(cycle_s / iteration_s * (1 + max(tolerance, EXACT)))


def shared_iteration_s(cycle_s: float, iteration_s: float, tolerance: float = 0.0) -> float:
    """Seconds of a job's iteration on an Aggregator with that cycle: the paper's d_j, of one Aggregator."""
    return max(iteration_s, cycle_s / runs(cycle_s, iteration_s, tolerance))


def loss(cycle_s: float, iteration_s: float, tolerance: float = 0.0) -> float:
    """Share of its speed that a job loses on an Aggregator with that cycle [autops §4.3.3.2, L_j]."""
    shared_s = shared_iteration_s(cycle_s, iteration_s, tolerance)
    return (shared_s - iteration_s) / shared_s


@dataclass(frozen=True, slots=True)
class Demand:
    """One job on one Aggregator: seconds of an iteration, and CPU seconds that its tasks there take in one."""

    iteration_s: float
    cpu_s: float


def work_s(cycle_s: float, demands: Iterable[Demand], tolerance: float = 0.0) -> float:
    """CPU seconds of all tasks in one cycle: the paper's W_n.

    A job counts with the runs that this Aggregator has room for. It runs less often where another Aggregator holds it
    up more, but that may end at any moment.
    """
    return sum(runs(cycle_s, each.iteration_s, tolerance) * each.cpu_s for each in demands)


def best_cycle_s(demands: Sequence[Demand], limits: Limits, kept_s: float = 0.0) -> float | None:
    """The shortest cycle in which every job keeps its speed and the Aggregator has the capacity.

    Args:
        demands: The jobs on the Aggregator.
        limits: What it may do to them.
        kept_s: The cycle that it has now, which is the last resort. An exit may leave jobs that fit each other only
            in the cycle of the one that left.

    Returns:
        Seconds; None: there is no such cycle.
    """
    longest_s = max(each.iteration_s for each in demands)
    choices = [multiple * longest_s for multiple in range(1, limits.cycle_multiple + 1)]
    if kept_s >= longest_s:
        choices.append(kept_s)
    return next((cycle_s for cycle_s in choices if is_fair(cycle_s, demands, limits)), None)


def is_fair(cycle_s: float, demands: Iterable[Demand], limits: Limits) -> bool:
    """Whether no job loses too much in that cycle, and all have their work done."""
    free_s = limits.capacity * cycle_s
    for each in demands:
        if loss(cycle_s, each.iteration_s, limits.period_tolerance) >= limits.loss_limit - EXACT:
            return False
        free_s -= runs(cycle_s, each.iteration_s, limits.period_tolerance) * each.cpu_s
    return free_s >= 0
