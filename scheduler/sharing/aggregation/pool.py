"""The pool of Aggregators of a whole cluster: clusters of them, their number over time, and admission. PURE.

How it works
  Aggregators stand in clusters of at most 50, and a job is placed whole in one: the one with the least free time that
  is still enough [autops §4.3.3.4]. So a placement looks at few Aggregators, and disturbs few jobs.

  Aggregators are taken from the cluster manager when a job needs them, first those in reserve. What becomes empty is
  kept in reserve until the period ends; then as many stay as the period needed on average [§4.3.3.4, hybrid scaling].

  A job is admitted if all servers that it would have had could be given to it, since in the worst case it needs them
  [§4.3.3.5]. Otherwise it waits, and those behind it wait with it.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.placement import Placement, Profile, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How a pool grows and shrinks.

    Attributes:
        cluster_max: Aggregators of one cluster.
        servers_max: Aggregators of the whole pool; None: as many as are asked for.
        on_demand_min: New Aggregators are taken at once where jobs lack at least so many; fewer wait for the end of
            the period. 1: always at once.
    """

    cluster_max: int = 50
    servers_max: int | None = None
    on_demand_min: int = 1

    def __post_init__(self) -> None:
        if self.cluster_max < 1:
            raise ValueError("cluster_max must be at least 1")
        if self.servers_max is not None and self.servers_max < 1:
            raise ValueError("servers_max must be at least 1")
        if self.on_demand_min < 1:
            raise ValueError("on_demand_min must be at least 1")


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a job is not placed yet."""

    reason: str


class Pool:
    """All clusters, Aggregators in reserve, and the jobs that wait. Times come from the caller and never go back."""

    def __init__(self, limits: Limits, settings: PoolSettings) -> None:
        self.limits, self.settings = limits, settings
        self.clusters: list[Placement] = []
        self.in_reserve = 0
        self.waiting: deque[Profile] = deque()
        self._cluster_of: dict[str, Placement] = {}
        self._used = 0
        self._since_s: float | None = None
        self._period_begin_s = 0.0
        self._used_s = 0.0

    # ---- what there is

    @property
    def used(self) -> int:
        """Aggregators with tasks."""
        return self._used

    @property
    def held(self) -> int:
        """Aggregators that the cluster manager has given: those with tasks, and those in reserve."""
        return self._used + self.in_reserve

    def losses(self) -> Iterator[tuple[str, float]]:
        """Each job with the share of its speed that it loses."""
        for cluster in self.clusters:
            yield from cluster.losses().items()

    def placed(self) -> Mapping[str, Placement]:
        """By job the cluster that it is in."""
        return self._cluster_of

    # ---- events

    def arrive(self, at_s: float, profile: Profile) -> Waits | Refused | None:
        """A job; None: it has a place."""
        self._pass(at_s)
        if self.waiting:
            self.waiting.append(profile)
            return Waits(f"job {profile.job}: {len(self.waiting) - 1} jobs that came before it wait for Aggregators")
        answer = self._place(profile)
        if isinstance(answer, Waits):
            self.waiting.append(profile)
        return answer

    def leave(self, at_s: float, job: str) -> list[str]:
        """A job has ended, or has given up waiting; returns the jobs that have a place now."""
        self._pass(at_s)
        cluster = self._cluster_of.pop(job, None)
        if cluster is None:
            self.waiting = deque(profile for profile in self.waiting if profile.job != job)
        else:
            gone = len(cluster.leave(job))
            self._used -= gone
            self.in_reserve += gone
            if not cluster.aggregators:
                self.clusters.remove(cluster)
        return self._place_waiting()

    def end_period(self, at_s: float) -> list[str]:
        """Keeps what the period needed on average, or has in use; returns the jobs that have a place now."""
        self._pass(at_s)
        length_s = at_s - self._period_begin_s
        mean = self._used_s / length_s if length_s > 0 else self._used
        # A mean of whole numbers that differs in its last bits is no need for one more.
        self.in_reserve = max(0, min(self.in_reserve, math.ceil(mean - 1e-9) - self._used))
        self._period_begin_s, self._used_s = at_s, 0.0
        return self._place_waiting(at_period=True)

    # ---- how

    def _pass(self, at_s: float) -> None:
        if self._since_s is None:
            self._period_begin_s = at_s
        else:
            self._used_s += self._used * (at_s - self._since_s)
        self._since_s = at_s

    def _place_waiting(self, *, at_period: bool = False) -> list[str]:
        found = []
        while self.waiting:
            answer = self._place(self.waiting[0], at_period=at_period)
            if isinstance(answer, Waits):
                break
            profile = self.waiting.popleft()
            if answer is None:
                found.append(profile.job)
        return found

    def _place(self, profile: Profile, *, at_period: bool = False) -> Waits | Refused | None:
        answer: Waits | Refused | None = self._admission(profile)
        if answer is not None:
            return answer
        for cluster in [*self._by_fit(profile), None]:
            target = cluster if cluster is not None else Placement(self.limits)
            count, jobs, before = len(target.aggregators), dict(target.profiles), target.record()
            answer = target.add(profile, new_max=self.settings.cluster_max - count)
            if answer is not None:
                continue
            new = len(target.aggregators) - count
            lacking = new - self.in_reserve
            if 0 < lacking < self.settings.on_demand_min and not at_period:
                target.undo(before, jobs)
                return Waits(
                    f"job {profile.job}: needs {lacking} Aggregators more, which are given at the end of the period"
                )
            if cluster is None:
                self.clusters.append(target)
            self._cluster_of[profile.job] = target
            self._used += new
            self.in_reserve = max(0, self.in_reserve - new)
            return None
        return answer

    def _admission(self, profile: Profile) -> Waits | Refused | None:
        servers, most = profile.servers, self.settings.servers_max
        if servers > self.settings.cluster_max:
            return Refused(
                f"job {profile.job}: asks for {servers} servers, and a cluster has {self.settings.cluster_max}"
            )
        if most is None or self._used + servers <= most:
            return None
        if servers > most:
            return Refused(f"job {profile.job}: asks for {servers} servers, and the pool has {most}")
        return Waits(
            f"job {profile.job}: asks for {servers} servers, and {most - self._used} of {most} Aggregators are free"
        )

    def _by_fit(self, profile: Profile) -> list[Placement]:
        """Clusters with enough free time for the job, least first; then the others, with most free time first."""
        needed = profile.cpu_s / profile.iteration_s
        free = [(self._free(cluster), index) for index, cluster in enumerate(self.clusters)]
        enough = sorted(one for one in free if one[0] >= needed)
        others = sorted((one for one in free if one[0] < needed), reverse=True)
        return [self.clusters[index] for _, index in (*enough, *others)]

    def _free(self, cluster: Placement) -> float:
        return sum(self.limits.capacity - cluster.load(number) for number in cluster.aggregators)
