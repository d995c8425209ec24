"""Machines given to groups one by one, by two rules of who needs the next one most. PURE."""

import heapq
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Sequence

from farside.group_time import GroupTime, WorkProfile, group_time

Time = Callable[[Sequence[WorkProfile], int], GroupTime]
_DIGITS = 9
_EPSILON = 1e-9


class GroupNeeds:
    """What a group needs, summed up so that its iteration on any number of machines is found at once."""

    def __init__(self, jobs: Sequence[WorkProfile], time: Time | None = None) -> None:
        """``time``: how long an iteration is where jobs read input back; None: none does, or from disks alone."""
        self.jobs, self._time = jobs, time
        works = [job.work_machine_s for job in jobs]
        # Where computing leaves a processor to updates, they hold nobody up.
        has_free = all(job.leaves_processor for job in jobs)
        self._rests = [job.update_s + job.net_s - (0.0 if has_free else job.net_cpu_s) for job in jobs]
        self._net_cpu_s = 0.0 if has_free else sum([job.net_cpu_s for job in jobs])
        self.work_machine_s, self._most_work = sum(works), max(works)
        self.net_s, self._most_rest = sum([job.net_s for job in jobs]), max(self._rests) + self._net_cpu_s
        self.update_s = sum([job.update_s for job in jobs])
        self.least = max([job.machines_least for job in jobs])
        self.most = min([job.machines_most for job in jobs])
        self._longest: list[tuple[float, float]] | None = None
        self._reads = _DiskReads(jobs) if any(job.reloading is not None for job in jobs) else None

    def terms_s(self, machines: int) -> tuple[float, float, float]:
        """Seconds of computing, of communicating, and of an iteration of the group."""
        if machines == 1 or self._time is not None:
            time = (self._time or group_time)(self.jobs, machines)
            return time.comp_s, time.comm_s, time.iteration_s
        comp_s = self.work_machine_s / machines + self.update_s
        disk_s, read_cpu_s = self._reads.seconds(machines) if self._reads is not None else (0.0, 0.0)
        iteration_s = max(comp_s + self._net_cpu_s + read_cpu_s, self.net_s, disk_s)
        if self._most_work / machines + self._most_rest > iteration_s:
            iteration_s = max([iteration_s, *[work / machines + rest for work, rest in self._candidates()]])
        return comp_s, self.net_s, iteration_s

    def _candidates(self) -> list[tuple[float, float]]:
        """Work and rest of those jobs that may be the longest: of the others each is shorter than one of them.

        The rest has the processor time of the other jobs' updates.
        """
        if self._longest is None:
            self._longest, most = [], -math.inf
            works = [job.work_machine_s for job in self.jobs]
            for work, rest in sorted(zip(works, self._rests, strict=True), reverse=True):
                if rest > most:
                    self._longest.append((work, rest + self._net_cpu_s))
                    most = rest
        return self._longest

    def busy(self, machines: int, cpu_weight: float) -> float:
        """Machines of the group that are busy, by the weight of processors beside the network."""
        comp_s, net_s, iteration_s = self.terms_s(machines)
        return machines * (cpu_weight * comp_s + (1 - cpu_weight) * net_s) / iteration_s


class _DiskReads:
    """What the jobs of a group read back from their disks, summed up for any number of machines."""

    def __init__(self, jobs: Sequence[WorkProfile]) -> None:
        # A job whose input fits into the memory of so many machines reads nothing on more of them.
        reads = sorted(
            (
                -job.input_bytes / job.kept_bytes if job.kept_bytes else -math.inf,
                job.input_bytes / (disk := job.reloading.disk).bytes_s,
                job.kept_bytes / disk.bytes_s,
                job.input_bytes * disk.cpu_s_byte,
                job.kept_bytes * disk.cpu_s_byte,
            )
            for job in jobs
            if job.reloading is not None
        )
        # For each number of first jobs: seconds of all their input and of what is kept, of disk and processors.
        fits, *seconds = zip(*reads, strict=True)
        self._fits, self._sums = fits, [list(itertools.accumulate(each, initial=0.0)) for each in seconds]

    def seconds(self, machines: int) -> tuple[float, float]:
        """Seconds in which the disk of each machine is read, and in which its processors work on that."""
        count = bisect_right(self._fits, -machines)
        disk, kept_disk, cpu, kept_cpu = (sums[count] for sums in self._sums)
        return max(0.0, disk / machines - kept_disk), max(0.0, cpu / machines - kept_cpu)


def by_ratio(groups: Sequence[GroupNeeds], machines: int) -> list[int]:
    """One machine each, then each one to where computing is longest beside communicating [harmony §IV-B3].

    Needs at least as many machines as groups. All of them are given, unless no group can use more; groups that need
    more than one each may be given more than there are.
    """
    weights = [group.work_machine_s / max(group.net_s, _EPSILON) for group in groups]
    if any(group.least > 1 or group.most < machines for group in groups):
        return _by_ratio_bounded(groups, weights, machines)
    left = machines - len(groups)
    # Until the largest quotient has fallen to `least` every group gets what makes its own as small, and that much there
    # is: so the end is the same as that of one machine at a time.
    least = sum(weights) / left if left else math.inf
    given = [max(1, math.ceil(weight / least)) for weight in weights]
    left = machines - sum(given)
    heap = [(-weight / held, number) for number, (weight, held) in enumerate(zip(weights, given, strict=True))]
    heapq.heapify(heap)
    for _ in range(left):
        number = heap[0][1]
        given[number] += 1
        heapq.heapreplace(heap, (-weights[number] / given[number], number))
    return given


def _by_ratio_bounded(groups: Sequence[GroupNeeds], weights: Sequence[float], machines: int) -> list[int]:
    given = [group.least for group in groups]
    heap = [(-weights[number] / held, number) for number, held in enumerate(given) if held < groups[number].most]
    heapq.heapify(heap)
    for _ in range(machines - sum(given)):
        if not heap:
            break
        number = heapq.heappop(heap)[1]
        given[number] += 1
        if given[number] < groups[number].most:
            heapq.heappush(heap, (-weights[number] / given[number], number))
    return given


def by_gain(groups: Sequence[GroupNeeds], machines: int, cpu_weight: float) -> list[int]:
    """The fewest that each needs, then each one to where it makes most machines busy; the others stay free."""
    given, after = [group.least for group in groups], [0.0] * len(groups)
    heap = list[tuple[float, float, int]]()

    def look(number: int, busy: float) -> None:
        group, held = groups[number], given[number]
        if held >= group.most:
            return
        after[number] = group.busy(held + 1, cpu_weight)
        # Groups whose processors never rest all gain alike; then the one that computes longest goes first.
        if (gain := round(after[number] - busy, _DIGITS)) > 0:
            heapq.heappush(heap, (-gain, -group.work_machine_s / (held * max(group.net_s, _EPSILON)), number))

    for number, group in enumerate(groups):
        look(number, group.busy(group.least, cpu_weight))
    for _ in range(machines - sum(given)):
        if not heap:
            break
        number = heapq.heappop(heap)[-1]
        given[number] += 1
        look(number, after[number])
    return given
