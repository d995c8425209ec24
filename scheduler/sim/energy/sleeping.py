"""Simulation with nodes that sleep: the delay that wrong decisions cause to real jobs. PURE.

How it works
  Every ``step_s`` an energy policy is shown the most nodes that were needed at once since the last time, and says how
  many to keep. Idle nodes beyond that leave the ledger; nodes that are woken come back into it after their boot time.
  Which nodes those are, and how many may change at once, the rules of the fleet say, as live (power/fleet.py).
  In between, jobs that found no room wake what they lack at once [helios §4.3.2, JobArrivalCheck]; the policy's buffer
  follows with its next check. A node that runs a job, or is held for one, never sleeps.

  Needed are the nodes where jobs run, and those that waiting jobs would fill, by the check of the manager
  (`Headroom`): idle ones first, then those that boot, then those that sleep. The cycle has just placed every job that
  could be placed. A policy that preempts does so before a node is woken, as it would on a cluster of that size.

  A policy that learns its forecast is fitted between two checks, as it would be live, and no job waits for that.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farside.scheduler.domain import Domain
from farside.scheduler.energy.busy_series import STEP_S
from farside.scheduler.energy.forecast_lesson import learned_from
from farside.scheduler.energy.job_arrival import Headroom
from farside.scheduler.energy.learning_policy import LearningPolicy
from farside.scheduler.energy.policy import EnergyPolicy, Seen
from farside.scheduler.placement.on_nodes import demand_of
from farside.scheduler.power.fleet import FleetRules, plan
from farside.scheduler.quota_use import QuotaUse
from farside.scheduler.sim.energy.pool import Pool
from farside.scheduler.sim.simulation import Run, Simulation
from farside.scheduler.state import Action

# Every wish is carried out at once: what a series' replay assumes too. Emptying takes no time here in any case.
MANY = 1_000_000
UNLIMITED = FleetRules(
    floor=0, draining_at_once=MANY, booting_at_once=MANY, stops_per_hour=MANY, stops_per_node_per_day=MANY, min_on_s=0.0
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost of sleeping nodes to jobs, against the same run without sleep.

    Attributes:
        delayed_jobs: Jobs that started more than a second later than they would have.
        mean_delay_s: Of those.
        max_delay_s: The worst of those.
        mean_jct_s, mean_jct_before_s: Average job completion time, with sleep and without.
        sleeping_nodes: On average, from the first submission to the last end.
        wakeups_per_day: Checks between which any node was woken.
        nodes_per_wakeup: How many at a time.
    """

    delayed_jobs: int
    mean_delay_s: float
    max_delay_s: float
    mean_jct_s: float
    mean_jct_before_s: float
    sleeping_nodes: float
    wakeups_per_day: float
    nodes_per_wakeup: float


class SleepingSimulation(Simulation):
    """Simulation in which nodes sleep and boot, with the arguments of `Simulation`.

    Args:
        make_policy: The policy for a virtual cluster of so many nodes.
        boot_s: Until a woken node can be used.
        step_s: Between two checks.
        fleet: Floor, rates and times for all nodes together. Emptying a node takes no time.
    """

    def __init__(
        self,
        *arguments: Any,
        make_policy: Callable[[int], EnergyPolicy],
        boot_s: float = 300.0,
        step_s: float = STEP_S,
        fleet: FleetRules = UNLIMITED,
        **others: Any,
    ) -> None:
        super().__init__(*arguments, **others)
        self._boot_s, self._step_s, self._rules_of_fleet = boot_s, step_s, fleet
        begin_s = self.jobs[0].job.submit_s if self.jobs else 0.0
        self.pools: Mapping[str, Pool] = {
            name: Pool(
                nodes=domain.ledger.nodes,
                policy=make_policy(len(domain.ledger.nodes)),
                since_s=begin_s,
                on=set(range(len(domain.ledger.nodes))),
                next_check_s=begin_s + step_s,
            )
            for name, domain in self.domains.items()
        }
        for pool in self.pools.values():
            if isinstance(pool.policy, LearningPolicy):
                pool.policy.begin(begin_s)
        for name, pool in self.pools.items():
            self._wake(name, pool.next_check_s)

    def run(self) -> Sequence[Run]:
        """Runs until the last job has ended, and closes the books."""
        runs = super().run()
        end_s = max((run.end_s for run in runs), default=0.0)
        for pool in self.pools.values():
            pool.pass_to(max(pool.since_s, end_s))
        return runs

    def _cycle(self, domain: Domain, now_s: float) -> None:
        pool = self.pools[domain.name]
        if pool.arrive(now_s):
            domain.resize(pool.present())
        super()._cycle(domain, now_s)

    def _tell(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        super()._tell(now_s, domain, actions)
        pool = self.pools[domain.name]
        pool.pass_to(now_s)
        pool.note_idle(self._idle(domain, pool), now_s)
        called = self._called(domain, pool, now_s)
        needed = len(pool.on) - len(pool.idle_since_s) + len(called)
        pool.needed = max(pool.needed, needed)
        wanted = len(pool.on) + len(pool.booting)  # between two checks none is put to sleep
        if now_s >= pool.next_check_s:
            self._obey(domain, pool, wanted, called, now_s)
            wanted = self._check(pool)
            pool.needed = needed  # until something happens
        self._obey(domain, pool, wanted, called, now_s)
        if now_s >= pool.next_check_s:
            self._begin_interval(domain, pool, now_s)

    def _check(self, pool: Pool) -> int:
        """How many nodes the policy wants on."""
        pool.policy.watch(Seen(step=pool.checks, active=pool.needed, total=len(pool.nodes)))
        if isinstance(pool.policy, LearningPolicy) and (lesson := pool.policy.lesson()) is not None:
            pool.policy.take(learned_from(lesson))
        # What jobs have woken already is news to the policy: to it those nodes were missing.
        target = pool.policy.target(len(pool.on) + len(pool.booting) - pool.woken_since_check)
        return math.ceil(target.nodes)

    def _begin_interval(self, domain: Domain, pool: Pool, now_s: float) -> None:
        pool.checks += 1
        pool.wakeups += pool.woken_since_check > 0
        pool.woken_since_check = 0
        pool.next_check_s = now_s + self._step_s
        self._wake(domain.name, pool.next_check_s)

    def _obey(self, domain: Domain, pool: Pool, wanted: int, called: Sequence[int], now_s: float) -> None:
        """Wakes nodes and puts them to sleep, by the rules of the fleet. [helios §4.3.2, NodesWakeUp]"""
        if wanted == len(pool.on) + len(pool.booting) and pool.on.issuperset(called):
            return
        reserved = self._reserved(domain, now_s)
        names = frozenset(pool.nodes[at].name for at in called)
        found = plan(pool.power(reserved), wanted, now_s=now_s, rules=self._rules_of_fleet, reason="", called=names)
        index = {node.name: at for at, node in enumerate(pool.nodes)}
        woken = [index[wish.node] for wish in found.wishes if wish.is_on]
        slept = [index[wish.node] for wish in found.wishes if not wish.is_on]
        if woken:
            pool.boot(woken, now_s, now_s + self._boot_s)
            self._wake(domain.name, now_s + self._boot_s)
        if slept:
            pool.sleep(slept, now_s)
            domain.resize(pool.present())

    def _called(self, domain: Domain, pool: Pool, now_s: float) -> Sequence[int]:
        """The nodes that waiting jobs would fill. [helios §4.3.2, JobArrivalCheck]"""
        idle, asleep = sorted(pool.idle_since_s), [*sorted(pool.booting), *pool.asleep]
        if not (idle or asleep) or not len(domain.waiting):
            return ()
        headroom = Headroom([node.gpus for node in pool.nodes], idle=idle, asleep=asleep)
        # What accounts and QOS hold back wakes nobody.
        quota_use = QuotaUse()
        for other in self.domains.values():
            for row in other.running:
                quota_use.take(other.roster.priority_class(row), other.jobs[row].gpus)
        windows = domain.book.maintenance_windows
        for row, _ in sorted(domain.waiting.ranked(), key=lambda ranked: ranked[1]):
            if headroom.is_spent:
                break
            job, priority_class = domain.jobs[row], domain.roster.priority_class(row)
            fits = pool.fits(demand_of(job, is_consolidated=False))
            closed = {at for one in windows if one.is_closed_to(now_s, job.limit_s) for at in one.nodes}
            if closed:
                fits = {at: gpus for at, gpus in fits.items() if at not in closed}
            if quota_use.why_not(priority_class, job.gpus) or not headroom.could_hold(job.gpus, fits):
                continue
            quota_use.take(priority_class, job.gpus)
            headroom.fill(job.gpus, fits, may_wake=True)
        return tuple(headroom.called)

    def _idle(self, domain: Domain, pool: Pool) -> list[int]:
        """Nodes that are on and have no job."""
        idle = domain.ledger.idle()
        return [at for at in sorted(pool.on) if idle >> at & 1]

    def _reserved(self, domain: Domain, now_s: float) -> set[int]:
        """Nodes that a job is to get, or that are closed for maintenance some day: they stay on."""
        found = set() if domain.reservation is None else {at for at, _ in domain.reservation.allocation}
        return found.union(*(one.nodes for one in domain.book.maintenance_windows if now_s < one.end_s))


def cost_of(with_sleep: SleepingSimulation, runs: Sequence[Run], before: Sequence[Run]) -> Cost:
    """Cost of sleep to the jobs of a run; ``before``: the same trace without sleep.

    Raises:
        ValueError: There are no jobs.
    """
    if not runs:
        raise ValueError("a trace without jobs says nothing about delays")
    delays = [run.start_s - old.start_s for run, old in zip(runs, before, strict=True)]
    delayed = [delay for delay in delays if delay > 1]
    submits = [trace.job.submit_s for trace in with_sleep.jobs]
    seconds = max(run.end_s for run in runs) - min(submits)
    pools = with_sleep.pools.values()
    wakeups = sum(pool.wakeups for pool in pools)
    return Cost(
        delayed_jobs=len(delayed),
        mean_delay_s=sum(delayed) / len(delayed) if delayed else 0.0,
        max_delay_s=max(delayed, default=0.0),
        mean_jct_s=_mean_jct_s(runs, submits),
        mean_jct_before_s=_mean_jct_s(before, submits),
        sleeping_nodes=sum(pool.asleep_node_s for pool in pools) / seconds if seconds else 0.0,
        wakeups_per_day=wakeups / (seconds / 86400) if seconds else 0.0,
        nodes_per_wakeup=sum(pool.woken_nodes for pool in pools) / wakeups if wakeups else 0.0,
    )


def _mean_jct_s(runs: Sequence[Run], submits: Sequence[float]) -> float:
    return sum(run.end_s - submit_s for run, submit_s in zip(runs, submits, strict=True)) / len(runs)
