"""Jobs, nodes and snapshots of a Slurm, made by hand, and a fake Slurm that obeys."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from farside.errors import PeerError
from farside.scheduler.domain import Rules
from farside.scheduler.order.catalog import make_order
from farside.scheduler.placement.catalog import make_placement
from farside.scheduler.slurm.action import (
    Hold,
    PowerDown,
    PowerUp,
    Release,
    Requeue,
    SetNice,
    SetPriority,
    SlurmAction,
)
from farside.scheduler.slurm.commands import SlurmCommands
from farside.scheduler.slurm.decide import Ways
from farside.scheduler.slurm.domain import Group, groups_of
from farside.scheduler.slurm.shadow_job import Ended
from farside.scheduler.slurm.snapshot import (
    PRIORITY_LOW,
    JobPhase,
    SlurmJob,
    SlurmNode,
    Snapshot,
    Traits,
)

NOW_S = 1_800_000_000.0
TRAITS = Traits(version="22.05.8", is_counting_memory=True, has_power_saving=True)


def waiting(job_id: int, gpus: int = 1, **told: Any) -> SlurmJob:
    """Submitted as many seconds after the start as its number says, with no special wishes."""
    given: dict[str, Any] = {
        "job_id": str(job_id), "name": "train", "user": "ann", "partitions": ("gpu",),
        "phase": JobPhase.WAITING, "reason": "Priority", "submit_s": NOW_S - 10_000 + job_id,
        "eligible_s": NOW_S - 10_000 + job_id, "gpus": gpus, "cpus": gpus, "priority": 1, "is_requeueable": True,
    }  # fmt: skip
    return SlurmJob(**{**given, **told})


def running(job_id: int, *held: tuple[str, int], since_s: float = 1000.0, **told: Any) -> SlurmJob:
    """With GPUs for so long."""
    given: dict[str, Any] = {
        "phase": JobPhase.RUNNING, "reason": "None", "held": held, "start_s": NOW_S - since_s,
        "gpus": sum(gpus for _, gpus in held),
    }  # fmt: skip
    return waiting(job_id, **{**given, **told})


def over(job: SlurmJob, end_s: float) -> SlurmJob:
    start_s = job.start_s if not math.isnan(job.start_s) else end_s - 10
    return replace(job, phase=JobPhase.OVER, held=(), start_s=start_s, end_s=end_s)


def node(name: str, *flags: str, gpus: int = 4, used: int = 0, cpus: int = 32) -> SlurmNode:
    return SlurmNode(
        name=name, flags=frozenset(flags or ("IDLE",)), gpus=gpus, gpus_used=used, cpus=cpus, cpus_used=used,
        memory_bytes=1e12, gpu_model="h100",
    )  # fmt: skip


def snapshot(
    *jobs: SlurmJob, nodes: Iterable[SlurmNode] | None = None, at_s: float = NOW_S,
    partitions: Mapping[str, tuple[str, ...]] | None = None,
) -> Snapshot:  # fmt: skip
    """Two nodes with four GPUs each, unless told otherwise; what their jobs hold is in use."""
    used: dict[str, int] = {}
    for job in jobs:
        for name, gpus in job.held:
            used[name] = used.get(name, 0) + gpus
    there = tuple(nodes) if nodes is not None else tuple(node(name, used=used.get(name, 0)) for name in ("gn1", "gn2"))
    names = tuple(one.name for one in there)
    listed = partitions or {"gpu": names, "other": names}
    return Snapshot(
        at_s=at_s,
        jobs=jobs,
        nodes={one.name: one for one in there},
        partitions=listed,
    )


def groups(seen: Snapshot, *names: str) -> tuple[Group, ...]:
    return groups_of(seen.partitions, names or ("gpu",))


def ways(
    seen: Snapshot, policy: str = "fifo", settings: Mapping[str, str] | None = None, partitions: tuple[str, ...] = (),
    min_run_s: float = 0.0, **told: Any,
) -> Ways:  # fmt: skip
    rules = Rules(
        order=make_order(policy, settings or {}), placement=make_placement("consolidate", {}), min_run_s=min_run_s
    )
    return Ways(rules=rules, groups=groups(seen, *partitions), **told)


@dataclass(slots=True)
class FakeSlurm(SlurmCommands):
    """Does as it is told, and remembers it. ``refuses``: jobs and nodes; ``is_away``: it answers nothing."""

    seen: Snapshot
    traits_told: Traits = TRAITS
    is_away: bool = False
    refuses: set[str] = field(default_factory=set)
    done: list[SlurmAction] = field(default_factory=list)
    asked: int = 0
    ended: tuple[Ended, ...] = ()
    given_back: list[tuple[str, str | None]] = field(default_factory=list)

    async def traits(self) -> Traits:
        self._answer()
        return self.traits_told

    async def look(self) -> Snapshot:
        self._answer()
        return self.seen

    def _answer(self) -> None:
        if self.is_away:
            raise PeerError("squeue: Unable to contact slurm controller (connect failure)")

    async def history(self, since_s: float) -> tuple[Ended, ...]:
        self._answer()
        return tuple(one for one in self.ended if one.end_s >= since_s)

    async def act(self, action: SlurmAction) -> None:
        self.asked += 1
        self._answer()
        whose = action.node if isinstance(action, PowerDown | PowerUp) else action.job_id
        if whose in self.refuses:
            raise PeerError(f"scontrol update: Access/permission denied for {whose}")
        self.done.append(action)
        self.seen = replace(self.seen, jobs=tuple(_after(job, action) for job in self.seen.jobs))

    async def give_back(self, job_id: str, comment: str | None) -> None:
        self._answer()
        self.given_back.append((job_id, comment))


def _after(job: SlurmJob, action: SlurmAction) -> SlurmJob:
    if isinstance(action, PowerDown | PowerUp) or action.job_id != job.job_id:
        return job
    match action:
        case SetPriority():
            return replace(job, priority=action.priority)
        case SetNice():
            return replace(job, priority=max(1, job.priority + job.nice - action.nice), nice=action.nice)
        case Hold():
            return replace(job, priority=0, reason="JobHeldAdmin", admin_comment=action.comment)
        case Release():
            return replace(job, priority=action.priority, reason="None", admin_comment=action.comment)
        case Requeue():
            return replace(
                job, phase=JobPhase.WAITING, reason="BeginTime", held=(), priority=PRIORITY_LOW,
                restarts=job.restarts + 1, start_s=math.nan,
            )  # fmt: skip
