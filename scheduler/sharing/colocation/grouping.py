"""Which jobs run together on how many machines, so that processors and network are busy most. PURE.

The paper's Algorithm 1, corrected: docs/papers.md says what it prints and why that stops too early. All numbers of jobs
from the first of the list on are looked at, several numbers of groups for the best of them, and two ways to give
machines; the best of all is the answer.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from farside.group_time import GroupTime, Reloading, WorkProfile, group_time, read_together
from farside.scheduler.sharing.colocation.balance import Floats, cut, swap
from farside.scheduler.sharing.colocation.climb import Group, climb
from farside.scheduler.sharing.colocation.machines import GroupNeeds, by_gain, by_ratio

# Scores so near each other count as equal, and then fewer jobs are better: each of them is done sooner.
SCORE_TOLERANCE = 0.01
_JOBS_ALL_SIZES = 200
_SIZES_APART, _SIZES_BETWEEN = 24, 12
_SIZES_TRIED = 4
_JOBS_ALL_NEIGHBOURS = 1000
# Groups may be this many times the balanced number: smaller ones compute longer, and fewer jobs keep them busy.
_MORE_GROUPS = 1.5
# So few are cheap to look at in all sizes and numbers of groups; the best of these are improved by the score itself.
_JOBS_FEW, _CLIMBS = 12, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingRules:
    """How a grouping is chosen.

    Attributes:
        cpu_weight: Weight of busy processors in the score; the network has the rest.
        memory_bytes: Memory of each machine.
        spills: Whether input that does not fit lies on the disk, so that a job needs its floor alone.
        group_count: `sums` balances the sums of computing and communicating; `l6` is the paper's line 6.
        additions: Whether numbers of groups beside the balanced one are tried, and machines are also given by gain.
        reloading: Where input that does not fit is read from, of jobs whose profile does not say so; None: reading it
            takes no time.
    """

    cpu_weight: float = 1.0
    memory_bytes: int = 1 << 62
    spills: bool = True
    group_count: Literal["sums", "l6"] = "sums"
    additions: bool = True
    reloading: Reloading | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.cpu_weight <= 1:
            raise ValueError(f"cpu_weight must be from 0 to 1, is {self.cpu_weight:g}")

    def has_room(self, jobs: Sequence[WorkProfile], machines: int) -> bool:
        """Whether jobs can run together: each on this number of machines, and all of them in the memory of each."""
        if max([job.machines_least for job in jobs], default=0) > machines:
            return False
        if min([job.machines_most for job in jobs], default=machines) < machines:
            return False
        floors = sum([job.floor_bytes for job in jobs])
        return floors + (0 if self.spills else sum([job.input_bytes for job in jobs]) / machines) <= self.memory_bytes

    def spilled_bytes(self, jobs: Sequence[WorkProfile], machines: int) -> float:
        """What of jobs' input does not fit in the memory of each machine."""
        floors, inputs = sum([job.floor_bytes for job in jobs]), sum([job.input_bytes for job in jobs]) / machines
        return min(inputs, max(0.0, floors + inputs - self.memory_bytes)) if self.spills else 0.0

    def chooses_reads(self, jobs: Sequence[WorkProfile]) -> bool:
        """Whether it has to be found for each group of these jobs what is read back, or what of that from peers."""
        has_peers = any(job.reloading is not None and job.reloading.peer is not None for job in jobs)
        return self.reloading is not None or has_peers

    def time(self, jobs: Sequence[WorkProfile], machines: int) -> GroupTime:
        """An iteration of a group, with what it reads back of its input [harmony §IV-B2 eq. 1, §IV-C]."""
        time = group_time(jobs, machines)
        if self.reloading is None:
            return time
        spilled_bytes = self.spilled_bytes([job for job in jobs if job.reloading is None], machines)
        return read_together(time, [(spilled_bytes, self.reloading)] if spilled_bytes else [])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs that share machines, and how long all of them take for an iteration."""

    jobs: tuple[str, ...]
    machines: int
    time: GroupTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """An answer.

    Attributes:
        groups: The groups; each job is in one at most.
        free: Machines that no group got.
        score: Busy share of all machines, by the weight of processors beside the network [harmony §IV-B2 eq. 4].
        busy_cpu: Share of all machines whose processors compute.
        busy_net: Share of all machines whose network is busy.
        left_out: Why a job is in no group.
    """

    groups: tuple[JobGroup, ...] = ()
    free: int
    score: float = 0.0
    busy_cpu: float = 0.0
    busy_net: float = 0.0
    left_out: Mapping[str, str] = field(default_factory=dict)


def busy_shares(groups: Iterable[tuple[GroupTime, int]], machines: int) -> tuple[float, float]:
    """Busy share of all machines' processors and network; idle machines count [harmony §IV-B2 eq. 4]."""
    cpu = net = 0.0
    for time, held in groups:
        cpu += held * time.busy_cpu
        net += held * time.busy_net
    return cpu / machines, net / machines


def decide(jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules, required: int = 0) -> Grouping:
    """The best grouping of the first jobs of a list, however many these are [harmony §IV-B3 Algorithm 1].

    Args:
        jobs: The first may stay in when the last are left out.
        machines: Machines to be had.
        rules: How the choice is made.
        required: How many of the first must not be left out, as far as memory allows.
    """
    if not jobs or not machines:
        return Grouping(free=machines, left_out={job.job: "no machine is free" for job in jobs})
    fits = [rules.has_room([job], min(machines, job.machines_most)) for job in jobs]
    fitting = [job for job, does_fit in zip(jobs, fits, strict=True) if does_fit]
    needed = sum(fits[:required])
    best = _Search(fitting, machines, rules, needed).best() if fitting else None
    chosen = best or Grouping(free=machines)
    reasons = {False: "a machine has less memory than it needs", True: "it would keep no more machines busy"}
    told = {job.job: reasons[does_fit] for job, does_fit in zip(jobs, fits, strict=True)}
    few = {job.job: f"it needs {job.machines_least} machines" for job in jobs if job.machines_least > machines}
    return with_left_out(chosen, told | few)


def with_left_out(grouping: Grouping, reasons: Mapping[str, str]) -> Grouping:
    """A grouping with the reasons of those jobs that are in none of its groups."""
    taken = {name for group in grouping.groups for name in group.jobs}
    return replace(grouping, left_out={job: why for job, why in reasons.items() if job not in taken})


def balanced_count(work_machine_s: Floats, net_s: Floats, machines: int, rule: Literal["sums", "l6"] = "sums") -> int:
    """Groups with which jobs on equal shares of the machines compute as long as they communicate.

    The paper adds up each job's difference without its sign, which is not the balance of the sums; `l6` is that.
    """
    most = min(len(work_machine_s), machines)
    if rule == "sums":
        total_s = float(work_machine_s.sum())
        return min(most, max(1, math.ceil(machines * float(net_s.sum()) / total_s))) if total_s else most
    differences = [float(np.abs(work_machine_s * count / machines - net_s).sum()) for count in range(1, most + 1)]
    return 1 + differences.index(min(differences))


class _Search:
    """Groupings of prefixes of one list of jobs."""

    def __init__(self, jobs: Sequence[WorkProfile], machines: int, rules: GroupingRules, required: int) -> None:
        self._jobs, self._machines, self._rules, self._required = jobs, machines, rules, required
        self._work = np.array([job.work_machine_s for job in jobs])
        self._update = np.array([job.update_s for job in jobs])
        self._net = np.array([job.net_s for job in jobs])
        self._floors = np.cumsum([float(job.floor_bytes) for job in jobs])
        self._first = dict[int, float]()
        self._time = rules.time if rules.chooses_reads(jobs) else None
        # Climbs from several groupings, and steps of one climb, ask for the same groups again.
        self._busy = dict[tuple[int, ...], float]()

    def best(self) -> Grouping | None:
        for size in self._sizes():
            self._look(size)
        tried = sorted(self._first, key=self._rank)
        tried = sorted(tried if self._is_few else tried[:_SIZES_TRIED])
        candidates = [one for size in tried for count in self._counts(size) for one in self._candidates(size, count)]
        if self._is_few:
            best = sorted(candidates, key=lambda one: -one.score)[:_CLIMBS]
            candidates += sorted(map(self._climbed, best), key=lambda one: one.size)
        found: _Candidate | None = None
        for candidate in candidates:
            if found is None or candidate.is_better(found):
                found = candidate
        if found is None:
            return None
        return grouping_of(found.groups, found.given, self._machines, self._rules)

    @property
    def _is_few(self) -> bool:
        return self._rules.additions and len(self._jobs) <= _JOBS_FEW

    def _sizes(self) -> Iterator[int]:
        """Numbers of jobs to look at: all of few; of many some far apart, then some about the best of these."""
        most = len(self._jobs)
        least = min(most, max(1, self._required))
        if most <= _JOBS_ALL_SIZES:
            yield from range(least, most + 1)
            return
        apart = sorted({round(size) for size in np.geomspace(least, most, _SIZES_APART)})
        yield from apart
        at = apart.index(min(self._first, key=self._rank))
        low, high = apart[max(0, at - 1)], apart[min(len(apart) - 1, at + 1)]
        yield from sorted({round(size) for size in np.linspace(low, high, _SIZES_BETWEEN + 2)} - set(apart))

    def _rank(self, size: int) -> tuple[float, int]:
        return -round(self._first[size] / SCORE_TOLERANCE), size

    def _look(self, size: int) -> None:
        is_exact = size <= _JOBS_ALL_SIZES
        counts = {self._balanced(size), *([self._more(size)] if is_exact and self._rules.additions else [])}
        self._first[size] = -1.0
        for count in sorted(counts):
            needs = self._needs(size, count, 4 * size if is_exact else count)
            candidate = self._candidate(size, needs, by_ratio(needs, self._machines))
            if candidate is not None:
                self._first[size] = max(self._first[size], candidate.score)

    def _balanced(self, size: int) -> int:
        """The balanced number of groups; more where memory asks for it."""
        count = balanced_count(self._work[:size], self._net[:size], self._machines, self._rules.group_count)
        least = math.ceil(float(self._floors[size - 1]) / self._rules.memory_bytes)
        return min(size, self._machines, max(count, least))

    def _more(self, size: int) -> int:
        return min(size, self._machines, math.ceil(_MORE_GROUPS * self._balanced(size)))

    def _counts(self, size: int) -> list[int]:
        balanced, more = self._balanced(size), self._more(size)
        counts = {balanced}
        if self._is_few:
            counts = set(range(1, size + 1))
        elif self._rules.additions:
            beside = (balanced - 1, balanced + 1, more - 1, more, more + 1)
            counts |= {1, *beside} if size <= _JOBS_ALL_NEIGHBOURS else {1}
        return [count for count in sorted(counts) if 1 <= count <= min(size, self._machines)]

    def _needs(self, size: int, count: int, exchanges: int) -> list[GroupNeeds]:
        """The first jobs in groups, and what each group needs."""
        share = self._machines / count
        comp_s = self._work[:size] / share + self._update[:size]
        net_s = self._net[:size]
        groups = swap(cut(comp_s + net_s, count), comp_s - net_s, exchanges=exchanges)
        return [self._needed([self._jobs[job] for job in group]) for group in groups]

    def _needed(self, jobs: Sequence[WorkProfile]) -> GroupNeeds:
        return GroupNeeds(jobs, self._time)

    def _candidates(self, size: int, count: int) -> Iterator["_Candidate"]:
        needs = self._needs(size, count, 4 * size)
        ways = [by_ratio(needs, self._machines)]
        if self._rules.additions:
            ways.append(by_gain(needs, self._machines, self._rules.cpu_weight))
        for given in ways:
            if (candidate := self._candidate(size, needs, given)) is not None:
                yield candidate

    def _candidate(self, size: int, needs: Sequence[GroupNeeds], given: Sequence[int]) -> "_Candidate | None":
        """What groups keep busy; None if memory, or the numbers of machines that jobs run on, do not allow them."""
        rules, busy_cpu, busy_net = self._rules, 0.0, 0.0
        if sum(given) > self._machines:
            return None
        for one, held in zip(needs, given, strict=True):
            if not rules.has_room(one.jobs, held):
                return None
            comp_s, net_s, iteration_s = one.terms_s(held)
            busy_cpu += held * comp_s / iteration_s
            busy_net += held * net_s / iteration_s
        score = rules.cpu_weight * busy_cpu + (1 - rules.cpu_weight) * busy_net
        return _Candidate(
            size=size, groups=[one.jobs for one in needs], given=given,
            score=score / self._machines, busy_net=busy_net / self._machines,
        )  # fmt: skip

    def _climbed(self, candidate: "_Candidate") -> "_Candidate":
        def busy(group: Group) -> float:
            jobs, held = group
            key = held, *map(id, jobs)
            if key not in self._busy:
                has_room = rules.has_room(jobs, held)
                self._busy[key] = self._needed(jobs).busy(held, rules.cpu_weight) if has_room else -math.inf
            return self._busy[key]

        rules = self._rules
        groups = climb(
            [(tuple(jobs), held) for jobs, held in zip(candidate.groups, candidate.given, strict=True)], busy
        )
        needs = [self._needed(jobs) for jobs, _ in groups]
        better = self._candidate(candidate.size, needs, [held for _, held in groups])
        return better or candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    size: int
    groups: Sequence[Sequence[WorkProfile]]
    given: Sequence[int]
    score: float
    busy_net: float

    def is_better(self, other: "_Candidate") -> bool:
        """Whether its score is larger; or alike, with as many jobs and a busier network.

        Candidates come by growing numbers of jobs, and fewer are better where scores are alike.
        """
        if self.score > (1 + SCORE_TOLERANCE) * other.score:
            return True
        is_like = self.score * (1 + SCORE_TOLERANCE) >= other.score
        return is_like and self.size == other.size and self.busy_net > other.busy_net


def grouping_of(
    groups: Sequence[Sequence[WorkProfile]], given: Sequence[int], machines: int, rules: GroupingRules
) -> Grouping:
    """Groups of jobs with the machines of each, and what they keep busy."""
    times = [rules.time(jobs, held) for jobs, held in zip(groups, given, strict=True)]
    busy_cpu, busy_net = busy_shares(zip(times, given, strict=True), machines)
    return Grouping(
        groups=tuple(
            JobGroup(jobs=tuple(job.job for job in jobs), machines=held, time=time)
            for jobs, held, time in zip(groups, given, times, strict=True)
        ),
        free=machines - sum(given),
        score=rules.cpu_weight * busy_cpu + (1 - rules.cpu_weight) * busy_net,
        busy_cpu=busy_cpu,
        busy_net=busy_net,
    )
