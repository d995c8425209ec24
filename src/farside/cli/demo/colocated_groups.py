"""Jobs in groups on the demo's nodes: started where the rules say, and moved when a job that has ended changes that."""

import itertools
import select
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from farside.agent.training.node_queue import LEAST_LEASE_S
from farside.cli.demo.colocated_node import Node, Ran, Worker
from farside.errors import Unavailable
from farside.group_time import time_in_turns
from farside.scheduler.sharing.colocation.cluster import Cluster, RunningGroup
from farside.scheduler.sharing.colocation.forecast import without
from farside.scheduler.sharing.colocation.regroup import Regrouping
from farside.training.app.program import Options

LIMIT_S = 240.0
END_S = 60.0
_SETTLING, _FEWEST = 2, 5
"""Iterations of a job in a new group that are left out, and how many more say something."""


class Kind(Protocol):
    """A job that is to run."""

    @property
    def options(self) -> Options:
        """The options of its program."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFound:
    """Jobs that shared a node for a time.

    Attributes:
        node: Which.
        jobs: Their names.
        bound: What a shorter iteration would need more of.
        predicted_s: An iteration in turns, by what each job takes alone.
        measured_s: The slowest job's; None: too few to say.
    """

    node: str
    jobs: tuple[str, ...]
    bound: str
    predicted_s: float
    measured_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouped:
    """What followed from the end of a job: who moved, and the rule that decided."""

    ended: str
    moved: tuple[str, ...]
    why: str


class Together:
    """The jobs' processes while they run in groups.

    Attributes:
        changes: What followed from each end.
        starts: Of all processes, the job's name.
        nodes_of: By job, the nodes that it had.
        took_s: From the first iteration to the last model.
    """

    def __init__(self, nodes: Sequence[Node], folder: Path, kinds: Mapping[str, Kind], regrouping: Regrouping) -> None:
        self._nodes, self._folder, self._kinds, self._regrouping = nodes, folder, kinds, regrouping
        folder.mkdir(parents=True)
        self._running = dict[str, Worker]()
        self._placed = dict[int, Node]()
        self._cluster = Cluster(machines=len(nodes))
        self._stages = list[_Stage]()
        self._ended = dict[str, Ran]()
        self.changes = list[Regrouped]()
        self.starts = dict[str, str]()
        self.nodes_of: dict[str, list[str]] = {name: [] for name in kinds}
        self.took_s = 0.0

    def out(self, job: str) -> Path:
        """The file of a job's model."""
        return self._folder / f"{job}.npz"

    def run(self, decided: Cluster) -> None:
        """Until all jobs have ended.

        Raises:
            Unavailable: one failed, or they take too long.
        """
        self._adopt(decided)
        began_ns, end_s = time.monotonic_ns(), time.monotonic() + LIMIT_S
        while self._running:
            by_fd = {worker.fd: job for job, worker in self._running.items()}
            ready, _, _ = select.select(list(by_fd), [], [], max(0.0, end_s - time.monotonic()))
            if not ready:
                raise Unavailable(f"{', '.join(self._running)}: not ended after {LIMIT_S:g} s")
            # One at a time: others may be stopped and started anew for what follows from it.
            self._take_end(by_fd[ready[0]])
        self.took_s = (max(ran.ended_ns for ran in self._ended.values()) - began_ns) / 1e9
        if self._cluster.waiting:
            raise Unavailable(f"{', '.join(self._cluster.waiting)}: the rules gave no machine")

    def _take_end(self, job: str) -> None:
        """A job says that it has ended; those that end while others are stopped for it come after it."""
        ran = self._running.pop(job).wait(END_S)
        assert ran is not None, "nobody stopped it"
        self._ended[job] = ran
        also = self._regroup(job)
        while also:
            also += self._regroup(also.pop(0))

    def _regroup(self, job: str) -> list[str]:
        self._close_stages()
        change = self._regrouping.ended(*without(self._cluster, job), self._cluster.profiles[job])
        moved = tuple(name for name in change.moved if name in self._running)
        self.changes.append(Regrouped(ended=job, moved=moved, why=change.why))
        return self._adopt(change.cluster)

    def _adopt(self, cluster: Cluster) -> list[str]:
        """Stops and starts jobs so that they run where they are to; who has ended meanwhile."""
        groups = {group.number: group for group in cluster.groups}
        placed = {number: node for number, node in self._placed.items() if number in groups}
        for number in groups:
            if number not in placed:
                placed[number] = next(node for node in self._nodes if node not in placed.values())
        wanted = {job: placed[group.number] for group in cluster.groups for job in group.jobs}
        ended = []
        for job in list(self._running):
            if wanted.get(job) is not self._node_of(job):
                ran = self._running.pop(job).stop()
                if ran is not None:
                    self._ended[job] = ran
                    ended.append(job)
        self._cluster, self._placed = cluster, placed
        fresh = {job: self._start(job, node) for job, node in wanted.items() if not self._is_under_way(job)}
        for worker in fresh.values():
            worker.wait_ready()
        for worker in fresh.values():
            worker.go()
        self._running |= fresh
        self._open_stages()
        return ended

    def _is_under_way(self, job: str) -> bool:
        return job in self._running or job in self._ended

    def _node_of(self, job: str) -> Node | None:
        return next((self._placed[group.number] for group in self._cluster.groups if job in group.jobs), None)

    def _start(self, job: str, node: Node) -> Worker:
        start = f"{self._folder.parent.name}-together-{job}-{len(self.starts)}"
        self.starts[start] = job
        self.nodes_of[job].append(node.name)
        options = msgspec.structs.replace(self._kinds[job].options, out=str(self.out(job)))
        return node.start(start, options, self._folder / f"{job}.kept")

    # --- what came of it

    def _open_stages(self) -> None:
        now_ns = time.monotonic_ns()
        self._stages += [
            _Stage(node=self._placed[group.number], group=group, since_ns=now_ns, cluster=self._cluster)
            for group in self._cluster.groups
            if group.jobs
        ]

    def _close_stages(self) -> None:
        now_ns = time.monotonic_ns()
        self._stages = [stage if stage.until_ns else replace(stage, until_ns=now_ns) for stage in self._stages]

    def groups(self) -> tuple[GroupFound, ...]:
        """The groups that there were, each as long as it had the same jobs."""
        found = []
        runs = list[list[_Stage]]()
        for stage in self._stages:
            run = next((run for run in runs if run[-1].group == stage.group), None)
            if run is None:
                runs.append([stage])
            else:
                run.append(stage)
        for run in runs:
            first, last = run[0], run[-1]
            time_ = time_in_turns(first.cluster.of(first.group.jobs), first.group.machines)
            rows = first.node.trace()
            ours = {job: [start for start, name in self.starts.items() if name == job] for job in first.group.jobs}
            slowest_s = [
                iteration_s(rows, starts, first.since_ns, last.until_ns or time.monotonic_ns())
                for starts in ours.values()
            ]
            known = [one for one in slowest_s if one is not None]
            found.append(
                GroupFound(
                    node=first.node.name, jobs=first.group.jobs, bound=time_.bound, predicted_s=time_.iteration_s,
                    measured_s=max(known) if len(known) == len(slowest_s) else None,
                )
            )  # fmt: skip
        return tuple(found)

    def turns(self) -> tuple[int, int]:
        """How often two jobs computed at once on a node, both in their turn; and subtasks that began without one."""
        overlaps = let_through = 0
        for node in self._nodes:
            rows = [row for row in node.trace() if row[0] in self.starts]
            let_through += sum(not row[6] for row in rows)
            overlaps += overlapping(rows)
        return overlaps, let_through


def overlapping(rows: Sequence[Sequence[Any]]) -> int:
    """How often a job began to compute in its turn while another one's turn was still its own, by a node's trace.

    A turn is over after a second at the least, on a machine so busy that the step is not: another one then begins.
    """
    computing = sorted((row[4], row[5]) for row in rows if row[2] == "COMP" and row[6])
    return sum(
        later[0] < min(before[1], before[0] + LEAST_LEASE_S * 1e9) for before, later in itertools.pairwise(computing)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A group on a node for a time, nanoseconds of CLOCK_MONOTONIC; ``cluster`` has its jobs' profiles."""

    node: Node
    group: RunningGroup
    since_ns: int
    cluster: Cluster
    until_ns: int = 0


def iteration_s(rows: Sequence[Sequence[Any]], starts: Sequence[str], since_ns: int, until_ns: int) -> float | None:
    """A job's iteration in a time, from PUSH to PUSH, the median; None where there were too few."""
    ends = [row[5] for row in rows if row[0] in starts and row[2] == "PUSH" and since_ns <= row[5] <= until_ns]
    ends = sorted(ends)[_SETTLING:]
    if len(ends) <= _FEWEST:
        return None
    return float(statistics.median((later - before) / 1e9 for before, later in itertools.pairwise(ends)))
