"""Actions on Slurm: one change to one job or node, with its reason. Frozen, PURE."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnJob:
    """One change to a job of a partition."""

    job_id: str
    partition: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPriority(_OnJob):
    """Put a waiting job into its place of the queue."""

    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SetNice(_OnJob):
    """Put a waiting job behind others of its user's by lowering it."""

    nice: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(_OnJob):
    """Keep a waiting job from starting; ``comment`` is its AdminComment with our mark."""

    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(_OnJob):
    """Let a job start that we held; ``comment`` is its AdminComment without our mark."""

    priority: int
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue(_OnJob):
    """Take a running job's GPUs away for the job ``winner``; it starts again from the beginning later.

    It gets the lowest priority first: Slurm must not start it again before its winner.
    """

    winner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerDown:
    """Let Slurm's SuspendProgram put an idle node to sleep; Slurm waits for a job that has just come."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerUp:
    """Let Slurm's ResumeProgram wake a node."""

    node: str
    reason: str


JobAction = SetPriority | SetNice | Hold | Release | Requeue
PowerAction = PowerDown | PowerUp
SlurmAction = JobAction | PowerAction


_WORDS: Mapping[type[SlurmAction], str] = {
    SetPriority: "give job {0.job_id} priority {0.priority}",
    SetNice: "lower job {0.job_id} to nice {0.nice}",
    Hold: "hold job {0.job_id}",
    Release: "release job {0.job_id}",
    Requeue: "requeue job {0.job_id} for job {0.winner}",
    PowerDown: "put node {0.node} to sleep",
    PowerUp: "wake node {0.node}",
}


def told(action: SlurmAction) -> str:
    """The action in words: ``requeue job 7 for job 12``."""
    return _WORDS[type(action)].format(action)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Record of an action. ``error``: why Slurm refused it, empty where it did not."""

    at_s: float
    mode: str
    what: str
    reason: str
    error: str = ""
