"""Actions on Slurm: one change to one job or node, with its reason. Frozen, PURE."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPriority:
    """Put a waiting job into its place of the queue."""

    job_id: str
    partition: str
    priority: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetNice:
    """Put a waiting job behind others of its user's by lowering it."""

    job_id: str
    partition: str
    nice: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Keep a waiting job from starting; ``comment`` is its AdminComment with our mark."""

    job_id: str
    partition: str
    comment: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Let a job start that we held; ``comment`` is its AdminComment without our mark."""

    job_id: str
    partition: str
    priority: int
    comment: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeue:
    """Take a running job's GPUs away for the job ``winner``; it starts again from the beginning later.

    It gets the lowest priority first: Slurm must not start it again before its winner.
    """

    job_id: str
    partition: str
    winner: str
    reason: str


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


def told(action: SlurmAction) -> str:
    """The action in words: ``requeue job 7 for job 12``."""
    match action:
        case SetPriority():
            return f"give job {action.job_id} priority {action.priority}"
        case SetNice():
            return f"lower job {action.job_id} to nice {action.nice}"
        case Hold():
            return f"hold job {action.job_id}"
        case Release():
            return f"release job {action.job_id}"
        case Requeue():
            return f"requeue job {action.job_id} for job {action.winner}"
        case PowerDown():
            return f"put node {action.node} to sleep"
        case PowerUp():
            return f"wake node {action.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Record of an action. ``error``: why Slurm refused it, empty where it did not."""

    at_s: float
    mode: str
    what: str
    reason: str
    error: str = ""
