"""Simulation with nodes that sleep: the delay that wrong decisions cause to real jobs. PURE.

How it works
  Every ``step_s`` an energy policy is shown the most nodes that were needed at once since the last time, and says how
  many to keep. Idle nodes beyond that leave the ledger; nodes that are woken come back into it after their boot time.
  In between, jobs that found no room wake what they lack at once [helios §4.3.2, JobArrivalCheck]; the policy's buffer
  follows with its next check. A node that runs a job, or is held for one, never sleeps.

  Needed are the nodes where jobs run, and as many as all waiting jobs would fill: the cycle has just placed every job
  that could be placed. A policy that preempts does so before a node is woken, as it would on a cluster of that size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farside.scheduler.domain import Domain
from farside.scheduler.energy.busy_series import STEP_S
from farside.scheduler.energy.policy import EnergyPolicy, Seen
from farside.scheduler.sim.simulation import Run, Simulation
from farside.scheduler.state import Action, Node


@dataclass(slots=True)
class Pool:
    """Nodes of one virtual cluster: those on, those booting and until when; the others sleep."""

    nodes: tuple[Node, ...]
    policy: EnergyPolicy
    since_s: float
    on: set[int] = field(default_factory=set)
    booting: dict[int, float] = field(default_factory=dict)
    next_check_s: float = 0.0
    checks: int = 0
    needed: float = 0.0
    woken_since_check: int = 0
    wakeups: int = 0
    woken_nodes: int = 0
    asleep_node_s: float = 0.0

    @property
    def asleep(self) -> list[int]:
        """Indices of sleeping nodes, the first to wake first."""
        return [at for at in range(len(self.nodes)) if at not in self.on and at not in self.booting]

    def pass_to(self, now_s: float) -> None:
        """Counts the sleep until now."""
        self.asleep_node_s += (now_s - self.since_s) * (len(self.nodes) - len(self.on) - len(self.booting))
        self.since_s = now_s


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
    """

    def __init__(
        self,
        *arguments: Any,
        make_policy: Callable[[int], EnergyPolicy],
        boot_s: float = 300.0,
        step_s: float = STEP_S,
        **others: Any,
    ) -> None:
        super().__init__(*arguments, **others)
        self._boot_s, self._step_s = boot_s, step_s
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
        self._arrive(domain, now_s)
        super()._cycle(domain, now_s)

    def _tell(self, now_s: float, domain: Domain, actions: tuple[Action, ...]) -> None:
        super()._tell(now_s, domain, actions)
        pool = self.pools[domain.name]
        pool.pass_to(now_s)
        lacking = self._lacking(domain, pool)
        needed = min(len(pool.nodes), self._busy(domain, pool) + lacking)
        pool.needed = max(pool.needed, needed)
        # Nodes that boot already will serve: only what is lacking beyond them is woken.
        self._boot(domain, pool, lacking - len(pool.booting), now_s)
        if now_s >= pool.next_check_s:
            self._check(domain, pool, now_s)
            pool.needed = needed  # until something happens

    def _check(self, domain: Domain, pool: Pool, now_s: float) -> None:
        """Asks the policy, and does what it says."""
        powered = len(pool.on) + len(pool.booting)
        pool.policy.watch(Seen(step=pool.checks, active=pool.needed, total=len(pool.nodes)))
        # What jobs have woken already is news to the policy: to it those nodes were missing.
        target = pool.policy.target(powered - pool.woken_since_check)
        wanted = math.ceil(target.nodes)
        self._boot(domain, pool, wanted - powered, now_s)
        self._sleep(domain, pool, powered - wanted)
        pool.checks += 1
        pool.wakeups += pool.woken_since_check > 0
        pool.woken_since_check = 0
        pool.next_check_s = now_s + self._step_s
        self._wake(domain.name, pool.next_check_s)

    def _lacking(self, domain: Domain, pool: Pool) -> int:
        """Nodes that all waiting jobs would fill, beyond those that are on."""
        waiting_gpus = sum(domain.jobs[row].gpus for row in domain.waiting.rows())
        return -(-waiting_gpus // max(1, max(node.gpus for node in pool.nodes)))

    def _busy(self, domain: Domain, pool: Pool) -> int:
        return len(pool.on) - (domain.ledger.idle() & sum(1 << at for at in pool.on)).bit_count()

    def _boot(self, domain: Domain, pool: Pool, count: int, now_s: float) -> None:
        chosen = pool.asleep[: max(0, count)]
        if chosen:
            pool.booting.update(dict.fromkeys(chosen, now_s + self._boot_s))
            pool.woken_since_check += len(chosen)
            pool.woken_nodes += len(chosen)
            self._wake(domain.name, now_s + self._boot_s)

    def _arrive(self, domain: Domain, now_s: float) -> None:
        """Puts nodes that have booted back into the ledger."""
        pool = self.pools[domain.name]
        ready = [at for at, ready_s in pool.booting.items() if ready_s <= now_s]
        if ready:
            pool.pass_to(now_s)
            for at in ready:
                del pool.booting[at]
            pool.on.update(ready)
            domain.resize(tuple(pool.nodes[at] for at in sorted(pool.on)))

    def _sleep(self, domain: Domain, pool: Pool, count: int) -> None:
        """Takes idle nodes out of the ledger, the last first: placements fill the first."""
        held = set() if domain.reservation is None else {at for at, _ in domain.reservation.allocation}
        idle = domain.ledger.idle()
        chosen = [at for at in sorted(pool.on, reverse=True) if idle >> at & 1 and at not in held][: max(0, count)]
        if chosen:
            pool.on.difference_update(chosen)
            domain.resize(tuple(pool.nodes[at] for at in sorted(pool.on)))


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
