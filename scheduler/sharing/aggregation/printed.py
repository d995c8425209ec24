"""Pseudocode 3 to the letter [autops §4.3.3.2], to compare with. PURE.

It overloads Aggregators and breaks its own loss limit: line 6 tests the last job alone, and never the new one; line 17
counts a task once a cycle though it may run several times; an exit tests nothing. What is plainly a misprint is read as
meant: unions on lines 13, 18 and 23, C^est on line 9. Line numbers are the paper's.
"""

from collections.abc import Collection, Sequence

from farside.scheduler.sharing.aggregation.cycle import Demand, loss, runs
from farside.scheduler.sharing.aggregation.placement import (
    Aggregator,
    Chooser,
    Placement,
    Profile,
    Refused,
    largest_first,
)


class PrintedPlacement(Placement):
    """A placement by the printed rule. It refuses nobody, and never keeps a cycle that jobs could do without."""

    def add(
        self, profile: Profile, *, new_max: int | None = None, forbidden: Collection[int] = (), near: int | None = None
    ) -> Refused | None:
        """Places a job; the pseudocode knows none of the options."""
        rooms = _PrintedRooms(self, profile, None)
        owners = [0] * len(profile.tasks_s)
        for task in largest_first(profile):
            owner = rooms.take(profile.tasks_s[task])
            if owner is None:  # lines 12 to 14, 22 to 24
                owner, self._next_number = self._next_number, self._next_number + 1
                rooms.allocate(owner, profile.tasks_s[task])
            owners[task] = owner
        self.profiles[profile.job] = profile
        self._give(profile, owners)
        return None

    def leave(self, job: str) -> tuple[int, ...]:
        """A job has ended. Others are looked at only if it has left an Aggregator empty."""
        emptied = self.remove(job)
        return (*emptied, *self.recycle()) if emptied else ()

    def _chooser(self, profile: Profile, leaving: int) -> Chooser:
        return _PrintedRooms(self, profile, leaving)

    def _cycle_s(self, demands: Sequence[Demand], kept_s: float) -> float:
        """The longest iteration of all [autops §4.3.3.2, C_n]."""
        return max(each.iteration_s for each in demands)


class _PrintedRooms:
    """Lines 1 to 21 for one task after the other, with what the job's tasks before it have changed."""

    def __init__(self, placement: Placement, profile: Profile, leaving: int | None) -> None:
        self._profile = profile
        self._aggregators = [each.copy() for number, each in sorted(placement.aggregators.items()) if number != leaving]
        self._loss_limit, self._capacity = placement.limits.loss_limit, placement.limits.capacity

    def take(self, task_s: float) -> int | None:
        """The Aggregator of the best fit; None: a new one is to be allocated."""
        best: tuple[float, int, Aggregator] | None = None
        for aggregator in self._aggregators:
            free_s = self._free_s(aggregator)
            if free_s is None or free_s < task_s:  # line 17
                continue
            if best is None or (free_s - task_s, aggregator.number) < best[:2]:
                best = (free_s - task_s, aggregator.number, aggregator)
        if best is None:
            return None
        self._place(best[2], task_s)
        return best[1]

    def allocate(self, number: int, task_s: float) -> None:
        """A new Aggregator, for the task that fits nowhere."""
        aggregator = Aggregator(number, self._profile.iteration_s)
        self._aggregators.append(aggregator)
        self._place(aggregator, task_s)

    def _free_s(self, aggregator: Aggregator) -> float | None:
        cycle_s = max(aggregator.cycle_s, self._profile.iteration_s)  # line 2
        demands = aggregator.demands.values()
        others = [each for job, each in aggregator.demands.items() if job != self._profile.job]
        if others and loss(cycle_s, others[-1].iteration_s) >= self._loss_limit:  # line 6: the last j of the loop
            return None
        taken_s = sum(runs(cycle_s, each.iteration_s) * each.cpu_s for each in demands)
        return self._capacity * cycle_s - taken_s  # line 9

    def _place(self, aggregator: Aggregator, task_s: float) -> None:
        profile = self._profile
        aggregator.cycle_s = max(aggregator.cycle_s, profile.iteration_s)
        held_s = aggregator.demands[profile.job].cpu_s if profile.job in aggregator.demands else 0.0
        aggregator.demands[profile.job] = Demand(profile.iteration_s, held_s + task_s)
