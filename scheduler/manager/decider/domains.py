"""The domains of the manager's partitions: whose nodes are where in them, and which row is whose job. PURE.

How it works
  Each partition is a domain (scheduler/domain.py), as each virtual cluster is in the simulator; without partitions all
  nodes are one. A node is in the domain of the partition that owns it by the settings. Where these have changed while
  jobs run, it stays with the partition of the jobs that are there until they are over, and takes no others meanwhile:
  whoever changes a partition's nodes ends nobody's job.

  All domains have one table, so that a row is one job in all of them; they are made anew together.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from farside.scheduler.admission.partitions import Partitions
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.fair_share import FairShare
from farside.scheduler.lent_memory import LentMemory
from farside.scheduler.manager.decider import adapter
from farside.scheduler.manager.decider.past_use import Histories
from farside.scheduler.manager.model.lending import lending_on, memory_with
from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.quota_use import QuotaUse
from farside.scheduler.slowdown import spread_of
from farside.scheduler.state import Node
from farside.scheduler.table import JobTable


def home_of(state: LiveState, partitions: Partitions, node: str) -> str:
    """The partition in whose domain a node is now; empty: none, or there are no partitions."""
    if not partitions:
        return ""
    there = (state.jobs[job_id] for job_id in state.jobs_on(node) if job_id in state.jobs)
    names = (job.host or adapter.partition_of(job, partitions) for job in there if not job.spec.colocate)
    return next(names, partitions.owner_of(node))


class Domains:
    """The domains by name.

    Attributes:
        by_name: In the order of the settings; then those that only jobs name, which have no nodes of their own.
        index: By node its place in the ledger of its domain.
        rows: By job its row.
        ids: By row its job.
        asks_users: Some node runs jobs of some users only.
        lent: What donors lend, whatever partition their nodes are in, and jobs were promised of it.
    """

    def __init__(self, state: LiveState, partitions: Partitions, set_aside: frozenset[str]) -> None:
        self.by_name: dict[str, Domain] = {}
        self.index: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.ids: dict[int, str] = {}
        self.asks_users = False
        self.lent = LentMemory()
        self._state, self._partitions, self._set_aside = state, partitions, set_aside
        self._next_row = 0
        self._home: dict[str, str] = {}  # by node
        self._leaving: list[str] = []  # nodes that are not in the domain of their owner
        self._recalled: set[str] = set()  # nodes whose donors take memory back for jobs
        self._taking: frozenset[str] | None = None  # None: the ledgers have not been told yet

    # ------------------------------------------------------------------ made anew

    def build(
        self, rules: Rules, histories: Histories, fair_share_of: Callable[[str], FairShare | None], jobs: int
    ) -> None:
        """New domains, without jobs, for the nodes that the state has; ``jobs``: how many will come."""
        state, partitions = self._state, self._partitions
        promised = adapter.booked(state)
        self.rows.clear()
        self.ids.clear()
        self.index.clear()
        self._next_row, self._taking = 0, None
        self._home = {name: home_of(state, partitions, name) for name in state.nodes}
        self._leaving = [name for name, home in self._home.items() if home != partitions.owner_of(name)]
        nodes: dict[str, list[Node]] = {name: [] for name in self._names()}
        for name, home in self._home.items():
            if home in nodes:
                self.index[name] = len(nodes[home])
                nodes[home].append(self._node_of(name, promised.get(name, adapter.NOTHING)))
        self.asks_users = any(node.users for there in nodes.values() for node in there)
        self.lent = memory_with(state, ())  # the domains book what their jobs were promised, and take
        for node in (node for there in nodes.values() for node in there):
            self.lent.set_room(node.name, self._room_on(node))
        self._recalled = {name for name, node in state.nodes.items() if node.recalls}
        table, together = JobTable(max(64, jobs)), list[QuotaUse]()
        self.by_name = {
            name: Domain(
                name, tuple(there), rules, table, is_counting_limits=True, fair_share=fair_share_of(name),
                history=histories[name], quota_use=QuotaUse(together), lent=self.lent,
                lend_grace_s=partitions.lend_grace_s(name),
            )
            for name, there in nodes.items()
        }  # fmt: skip

    def _names(self) -> dict[str, None]:
        if not self._partitions:
            return {"": None}
        jobs = [job for job in self._state.live_jobs() if not job.spec.colocate]
        hosts = (job.host for job in jobs if job.host and adapter.is_holding(job))
        return dict.fromkeys((*self._partitions.by_name, *(self.name_of(job) for job in jobs), *hosts))

    def add(self, job: LiveJob) -> int:
        """The row of a job, a new one if it has none."""
        row = self.rows.get(job.job_id, -1)
        if row < 0:
            row, self._next_row = self._next_row, self._next_row + 1
            self.rows[job.job_id], self.ids[row] = row, job.job_id
        return row

    # ------------------------------------------------------------------ who is where

    def name_of(self, job: LiveJob) -> str:
        """The name of the domain that a job belongs to."""
        return adapter.partition_of(job, self._partitions)

    def of(self, job: LiveJob) -> Domain:
        """The domain that a job belongs to."""
        return self.by_name[self.name_of(job)]

    def host_of(self, job: LiveJob) -> Domain:
        """The domain whose nodes a job holds, or held last."""
        return self.by_name.get(job.host, self.of(job)) if job.host else self.of(job)

    def spread_of(self, job: LiveJob) -> float | None:
        """How far from consolidated a job is on the nodes of its places, 0 to 1; None: it has no GPUs, or one."""
        if job.spec.gpus <= 1 or job.spec.colocate:
            return None
        seen = adapter.job_of(job, asks_users=self.asks_users)
        return spread_of(seen, adapter.allocation_of(job.places, self.index), self.host_of(job).ledger)

    def holder_of(self, row: int) -> Domain | None:
        """The domain that has a job among those which run on its nodes; None: it does not run."""
        return next((one for one in self.by_name.values() if row in one.running or row in one.guests), None)

    def job_at(self, row: int) -> LiveJob:
        """The job of a row."""
        return self._state.jobs[self.ids[row]]

    def jobs_in_order(self) -> list[LiveJob]:
        """The jobs that are not over: in the order of their queues, those first that have waited longest if none is."""
        jobs = [job for job in self._state.live_jobs() if not job.spec.colocate]
        if not self.rows:
            return sorted(jobs, key=lambda job: (job.since_s, job.sequence))
        position = next(iter(self.by_name.values())).table.position
        places = {job.job_id: float(position[self.rows[job.job_id]]) for job in jobs if job.job_id in self.rows}
        return sorted(jobs, key=lambda job: (places.get(job.job_id, math.inf), job.sequence))

    def share_levels(self) -> dict[str, float]:
        """With which level of its account each running job was started."""
        return {
            self.ids[row]: float(domain.table.share_level[row])
            for domain in self.by_name.values()
            for row in domain.running
        }

    def is_sparse(self, spare: int) -> bool:
        """Whether the table has more rows of jobs that are over than of others, and ``spare`` more."""
        return self._next_row > 2 * sum(len(domain.jobs) for domain in self.by_name.values()) + spare

    # ------------------------------------------------------------------ nodes

    def are_other_for(self, touched: Iterable[str]) -> bool:
        """Whether one of these jobs is of a partition without a domain, or lets a node go to another one by its end."""
        jobs = (self._state.jobs[job_id] for job_id in touched)
        if any(self.name_of(job) not in self.by_name for job in jobs if not job.is_over):
            return True
        return any(home_of(self._state, self._partitions, name) != self._home[name] for name in self._leaving)

    def is_other_size(self, name: str) -> bool:
        """Whether no ledger knows a node as it is now. Memory may differ by an eighth: it always moves."""
        home = self._home.get(name)
        if home is None:
            return True
        if home not in self.by_name:
            return False  # in no partition
        promised = adapter.booked(self._state).get(name, adapter.NOTHING)
        now, then = self._node_of(name, promised), self.by_name[home].ledger.nodes[self.index[name]]
        # What it lends is no ledger's (`lend`).
        if replace(now, memory_bytes=then.memory_bytes, lends_bytes=then.lends_bytes) != then:
            return True
        if math.isinf(then.memory_bytes):
            return math.isfinite(now.memory_bytes)  # nobody counted it
        return abs(now.memory_bytes - then.memory_bytes) > then.memory_bytes / 8

    def is_any_of_other_size(self) -> bool:
        """Whether there is any such node."""
        return any(map(self.is_other_size, self._home))

    def _node_of(self, name: str, promised: adapter.Booked = adapter.NOTHING) -> Node:
        aggregating = self._state.aggregation.cores_of(name)
        is_apart = name in self._set_aside
        return adapter.node_of(self._state.nodes[name], promised, aggregating=aggregating, is_set_aside=is_apart)

    def _room_on(self, node: Node) -> float:
        """Memory that jobs may have in all on a node of a ledger: as this counts it, and no more than the node has.

        Starts count with the latter (`memory_with`): with more here, a job would be placed and released for ever.
        """
        return min(node.memory_bytes, self._state.nodes[node.name].memory_bytes or math.inf)

    def lend(self, name: str) -> bool:
        """Notes what the donor of a node lends now, and its memory; whether that is other than before."""
        node = self._state.nodes.get(name)
        if node is None:
            return False
        room_bytes = node.memory_bytes or math.inf
        if name in self.index:
            room_bytes = self._room_on(self.by_name[self._home[name]].ledger.nodes[self.index[name]])
        is_other = self.lent.set_room(name, room_bytes)
        return lending_on(self._state, node).tell(self.lent) or is_other

    def lend_recalled(self) -> bool:
        """Notes what donors lend that take memory back for jobs, or did; whether that is other than before."""
        recalled = {name for job_id in self._state.allocated for name in self._recalled_for(job_id)}
        now = recalled | {name for name in self._recalled if self._state.nodes[name].recalls}
        changed = [self.lend(name) for name in sorted(now | self._recalled)]
        self._recalled = now
        return any(changed)

    def _recalled_for(self, job_id: str) -> Iterator[str]:
        return (one.node for one in self._state.jobs[job_id].recalls)

    def resize(self) -> bool:
        """Tells the domains which of their nodes take jobs; whether that has changed."""
        nodes = self._state.nodes
        leaving = frozenset(self._leaving)
        taking = frozenset(name for name, node in nodes.items() if node.is_taking and name not in leaving)
        if taking == self._taking:
            return False
        changed = None if self._taking is None else taking ^ self._taking
        self._taking = taking
        for domain in self.by_name.values():
            there = domain.ledger.nodes
            if changed is None or any(one.name in changed for one in there):
                domain.resize(tuple(self._node_of(one.name) for one in there if one.name in taking))
        return True

    def spreads(self) -> Iterator[tuple[Domain, dict[str, int]]]:
        """Each domain, with the places of its nodes in its ledger."""
        for name, domain in self.by_name.items():
            yield domain, {node: self.index[node] for node, home in self._home.items() if home == name}
