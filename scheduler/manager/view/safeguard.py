"""Safeguards of a job on each node: whether a fence ends its processes there, and what limits their memory. PURE."""

from enum import StrEnum

from msgspec import Struct

from farside.scheduler.manager.model.record import LiveJob, LiveNode, LiveTask
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState


class MemoryLimit(StrEnum):
    """What limits the memory of a job's processes on a node."""

    JOB = "job"  # what the job asked for
    SHARE = "share"  # it asked for nothing, and gets its GPUs' share
    WARN = "warn"  # nothing: the node's agent warns of more than that share
    NONE = "none"  # nothing
    UNKNOWN = "unknown"  # its agent, of the version before, does not say


class Safeguard(Struct, frozen=True, kw_only=True):
    """What guards a job's processes on a node.

    Attributes:
        node: Its name.
        starts: The starts of the job whose processes may be there, the earliest first.
        fence_s: They end so long after the node lost the manager, before another start may begin; 0: they run on. [M4]
        memory: What limits the memory of these processes. [M3]
    """

    node: str
    starts: tuple[int, ...]
    fence_s: float
    memory: MemoryLimit


def safeguards_of(job: LiveJob, state: LiveState) -> tuple[Safeguard, ...]:
    """By node that may have processes of a job: those of its latest start, and of earlier ones that are not gone."""
    earlier = [task for task in state.stale.values() if task.job_id == job.job_id]
    by_node: dict[str, list[LiveTask]] = {}
    for task in (*earlier, *job.tasks):
        if not task.is_gone and task.node in state.nodes:
            by_node.setdefault(task.node, []).append(task)
    return tuple(_safeguard(state.nodes[name], tasks, job.spec) for name, tasks in by_node.items())


def _safeguard(node: LiveNode, tasks: list[LiveTask], spec: JobSpec) -> Safeguard:
    is_named = all(spec.memory_of(task.role, len(task.gpus)) for task in tasks)
    return Safeguard(
        node=node.name,
        starts=tuple(sorted({task.start for task in tasks})),
        fence_s=node.fence_s,
        memory=_memory_limit(node.task_memory, is_named=is_named),
    )


def _memory_limit(told: str, *, is_named: bool) -> MemoryLimit:
    """``told``: the fact `task_memory` of the node; ``is_named``: the job asked for memory."""
    if told == "none":
        return MemoryLimit.NONE
    if is_named:
        return MemoryLimit.JOB
    known = {"limit": MemoryLimit.SHARE, "warn": MemoryLimit.WARN, "off": MemoryLimit.NONE}
    return known.get(told, MemoryLimit.UNKNOWN)
