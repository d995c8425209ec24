"""The domain of the cycle for a Slurm snapshot and what is remembered of its jobs. PURE.

A domain is made anew each turn: Slurm decides by itself when jobs start and end, so what is true is what it says now.
What a domain would otherwise keep from cycle to cycle is in `Past`.

Only jobs that could start at once wait in it (`SlurmJob.is_ready`); those that run stand where Slurm put them. Jobs of
other partitions on the same nodes, and jobs that nobody can count, are part of what a node has not got to give.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from farside.errors import ConfigError
from farside.scheduler.admission.figures import Figures
from farside.scheduler.admission.history import History
from farside.scheduler.domain import Domain, Rules
from farside.scheduler.order.policy import NEAR_S
from farside.scheduler.predict.estimator import Estimator
from farside.scheduler.settings import suggestion
from farside.scheduler.slurm.job_memory import Memory, Past, limit_s_of
from farside.scheduler.slurm.snapshot import JobPhase, SlurmJob, SlurmNode, Snapshot, Traits
from farside.scheduler.state import Action, Allocation, Job, Node, Promote
from farside.scheduler.table import JobTable
from farside.scheduler.waiting import Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Partitions over the very same nodes: their jobs compete with each other, and with nobody else's."""

    partitions: frozenset[str]
    nodes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its partitions."""
        return ",".join(sorted(self.partitions))


def groups_of(partitions: Mapping[str, tuple[str, ...]], listed: Iterable[str]) -> tuple[Group, ...]:
    """The listed partitions by the nodes that they share.

    Raises:
        ConfigError: There is no such partition, or it has no nodes, or two share some of their nodes and not all:
            nobody could say whose GPUs a preempted job would free.
    """
    found: dict[frozenset[str], set[str]] = {}
    for name in listed:
        if name not in partitions:
            hint = suggestion(name, partitions, "those there are")
            raise ConfigError(f"partitions: Slurm has no partition '{name}'", hint=hint)
        nodes = frozenset(partitions[name])
        if not nodes:
            raise ConfigError(
                f"partitions: '{name}' has no nodes in Slurm", hint="give it some in slurm.conf, or leave it out"
            )
        for others, names in found.items():
            if nodes != others and nodes & others:
                shared = ", ".join(sorted(nodes & others)[:3])
                other = min(names)
                raise ConfigError(
                    f"partitions: '{name}' and '{other}' share {shared}, but not all of their nodes",
                    hint="list one of the two, or partitions of the very same nodes",
                )
        found.setdefault(nodes, set()).add(name)
    return tuple(
        Group(partitions=frozenset(names), nodes=partitions[min(names)]) for names in found.values()
    )  # fmt: skip


def is_managed(job: SlurmJob, group: Group) -> bool:
    """Whether a job is one that we may do anything about."""
    return bool(job.partitions) and job.gpus > 0 and group.partitions.issuperset(job.partitions)


class SlurmDomain:
    """The domain of a group, and the job of each row.

    Args:
        snapshot: What was seen.
        memory: What is remembered at that moment (`job_memory.recall`).
        group: The partitions with their nodes.
        rules: By what they are scheduled.
        traits: What Slurm counts.
        may_preempt: Running jobs may lose their GPUs, if Slurm may requeue them.
        estimator: Says what a job is expected to take.
        history: What was learned in the turns before, from jobs of this group; None: nothing.
    """

    def __init__(
        self, snapshot: Snapshot, memory: Memory, group: Group, rules: Rules, traits: Traits, *, may_preempt: bool,
        estimator: Estimator, history: History | None = None,
    ) -> None:  # fmt: skip
        self._now_s = snapshot.at_s
        self._estimator = estimator
        self.jobs: dict[int, SlurmJob] = {}
        managed = [job for job in snapshot.jobs if is_managed(job, group) and job.job_id in memory.jobs]
        self._seen = {
            job.job_id: job_of(
                job, may_preempt=may_preempt, is_counting_memory=traits.is_counting_memory, past=memory.jobs[job.job_id]
            )
            for job in managed
        }
        known = [snapshot.nodes[name] for name in group.nodes if name in snapshot.nodes]
        nodes = _nodes(known, managed, self._seen)
        self._index = {node.name: at for at, node in enumerate(nodes)}
        self.domain = Domain("", nodes, rules, JobTable(max(64, len(managed))), history=history)
        self._sit_down(managed, memory, most_gpus=sum(node.gpus for node in nodes))
        taking = {node.name for node in known if node.is_taking}
        # After the running jobs have their places: a drained node keeps its jobs and takes no new ones.
        self.domain.resize(tuple(node for node in nodes if node.name in taking))
        for row, job in self.jobs.items():
            change_at_s = memory.jobs[job.job_id].change_at_s
            if change_at_s <= self._now_s + NEAR_S:
                self.domain.cross(row, self._now_s, change_at_s)
        # Now: after the cycle, the domain has what was decided, and that is so only once Slurm says so.
        rows = list(self.jobs)
        has_any = bool(rows) and self.domain.traits.has_thresholds
        self._changes_s = self.domain.watch(rows, self._now_s) if has_any else [math.inf] * len(rows)

    def _sit_down(self, managed: list[SlurmJob], memory: Memory, *, most_gpus: int) -> None:
        """Adds all jobs, in the order of the last turn, newcomers behind them."""
        started: list[tuple[Rank, int]] = []
        # By number in the end, as two jobs may be submitted in the same second.
        order = sorted(managed, key=lambda job: (memory.jobs[job.job_id].place, job.submit_s, int(job.job_id)))
        for job in order:
            past = memory.jobs[job.job_id]
            if job.is_holding or (job.is_ready and job.gpus <= most_gpus):
                row = self._restore(job, past)
                if job.is_holding:
                    started.append(((float(len(started)),), row))
        self.domain.settle(started, [], self._now_s)

    def _restore(self, job: SlurmJob, past: Past) -> int:
        row = len(self.jobs)
        self.jobs[row] = job
        seen = self._seen[job.job_id]
        allocation: Allocation | None = None
        if job.is_holding:
            allocation = tuple(sorted((self._index[name], gpus) for name, gpus in job.held if gpus))
        self.domain.restore(
            row,
            seen,
            Figures(
                remaining_s=self._estimator.remaining_s(seen, 0.0),  # one that was requeued begins again
                predicted_gpu_s=self._estimator.predicted_gpu_s(seen, self._now_s),
                executed_s=past.executed_s,
                waited_s=past.waited_s,
                since_s=past.since_s,
                first_start_s=past.first_start_s,
                has_to_resume=past.first_start_s < math.inf,
                allocation=allocation,
                # One that is stuck is on its way out: nobody is helped by preempting it.
                left_alone_until_s=math.inf if job.phase is JobPhase.STUCK else -math.inf,
            ),
        )
        return row

    def remembered(self, memory: Memory, actions: Iterable[Action]) -> Mapping[str, Past]:
        """Job data to remember after the answers of the cycle."""
        promoted = {action.row for action in actions if isinstance(action, Promote)}
        position = self.domain.table.position
        places = {row: at for at, row in enumerate(sorted(self.jobs, key=lambda row: float(position[row])))}
        found: dict[str, Past] = {}
        for (row, job), change_s in zip(self.jobs.items(), self._changes_s, strict=True):
            past = memory.jobs[job.job_id]
            if row in promoted:
                held_s = past.held_before_s + past.executed_s
                past = replace(past, executed_s=0.0, held_before_s=held_s, waited_s=0.0, since_s=self._now_s)
                change_s = math.inf
            found[job.job_id] = replace(past, place=float(places[row]), change_at_s=self._now_s + change_s)
        return found


def job_of(job: SlurmJob, *, may_preempt: bool, is_counting_memory: bool, past: Past | None = None) -> Job:
    """A job of Slurm's as the cycle knows jobs. ``past``: what is remembered of it; None: nothing."""
    return Job(
        job_id=job.job_id,
        sequence=int(job.job_id),
        submit_s=job.submit_s,
        gpus=job.gpus,
        user=job.user,
        name=job.name,
        cpus_per_gpu=job.cpus / job.gpus,
        memory_bytes_per_gpu=job.memory_bytes / job.gpus if is_counting_memory else 0.0,
        gpu_model=job.gpu_model,
        preemptible=may_preempt and job.is_requeueable and job.phase is JobPhase.RUNNING,
        limit_s=limit_s_of(past, job),
    )


def _nodes(known: list[SlurmNode], managed: list[SlurmJob], seen: Mapping[str, Job]) -> tuple[Node, ...]:
    """The nodes as the cycle knows nodes: with what our jobs have there, and what is free besides."""
    ours: dict[str, tuple[int, float, float]] = {}
    for job in managed:
        for name, gpus in job.held:
            had, cpus, memory_bytes = ours.get(name, (0, 0.0, 0.0))
            one = seen[job.job_id]
            ours[name] = (had + gpus, cpus + gpus * one.cpus_per_gpu, memory_bytes + gpus * one.memory_bytes_per_gpu)
    nodes: list[Node] = []
    there = {node.name for node in known}
    # A node that has left Slurm while a job of ours runs there stays in the domain until the job is gone.
    for node in [*known, *(SlurmNode(name=name, flags=frozenset()) for name in sorted(ours.keys() - there))]:
        gpus, cpus, memory_bytes = ours.get(node.name, (0, 0.0, 0.0))
        nodes.append(
            Node(
                name=node.name,
                # What others use there is left out. The counts are of different moments: the rest is never negative.
                gpus=gpus + max(0, node.gpus - max(node.gpus_used, gpus)),
                cpus=cpus + max(0, node.cpus - node.cpus_used),
                memory_bytes=memory_bytes + max(0.0, node.memory_bytes - node.memory_used_bytes),
                gpu_model=node.gpu_model,
            )
        )
    return tuple(nodes)
