"""A snapshot of a Slurm cluster at one moment, the same for all versions of Slurm. Frozen, PURE."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# What marks a job's AdminComment while we hold it, so that whoever comes after us knows whose hold it is.
HELD_MARK = "farside:held"
# Priorities that we give. Above what priority/multifactor comes to, below Slurm's limit of 2^32; one that lies in here
# is ours, so no list of them has to be kept.
PRIORITY_LOW, PRIORITY_HIGH = 2_000_000_000, 3_000_000_000
# Slurm gives a job without a time limit a year when it starts it, in a partition that has none either.
_ENDLESS_S = 365 * 86400.0


def limit_of(told_s: float) -> float:
    """A job's time limit from what Slurm says, seconds; infinite where it has none."""
    return math.inf if told_s == _ENDLESS_S else told_s


class JobPhase(StrEnum):
    """Where a job is, as far as that decides which GPUs are held."""

    WAITING = "waiting"
    RUNNING = "running"
    # Suspended, configuring, completing: it has GPUs, and there is no use in taking them away.
    STUCK = "stuck"
    OVER = "over"


# Why a job waits that could start if it were its turn. With any other reason it could not, whatever we do.
READY_REASONS = frozenset({"None", "Priority", "Resources", "Cleaning", "JobHeldAdmin"})
_CONTENDED = ("Nodes required for job", "Nodes_required_for_job")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job. Seconds since 1970; NaN where there is none.

    Attributes:
        job_id: What Slurm's commands take. All waiting tasks of an array are one job, that of the array.
        partitions: One, or several among which Slurm chooses; none where nobody can tell.
        reason: Why it waits, as Slurm says.
        gpus: All of them; 0 where it asks for none, or in a way that can't be counted.
        held: By node, while it holds any.
        is_array: It stands for several waiting tasks.
        is_bound: It names nodes, features, licences or a reservation: where it could be placed only Slurm knows.
        is_requeueable: Slurm may start it again from the beginning.
    """

    job_id: str
    name: str
    user: str
    partitions: tuple[str, ...]
    phase: JobPhase
    reason: str
    submit_s: float
    eligible_s: float = math.nan
    start_s: float = math.nan
    end_s: float = math.nan
    limit_s: float = math.inf
    gpus: int = 0
    gpu_model: str = ""
    cpus: int = 0
    memory_bytes: float = 0.0
    held: tuple[tuple[str, int], ...] = ()
    priority: int = 0
    nice: int = 0
    admin_comment: str = ""
    restarts: int = 0
    is_array: bool = False
    is_bound: bool = False
    is_requeueable: bool = False

    @property
    def is_marked(self) -> bool:
        """Whether we hold it, or did and broke off while we released it."""
        return HELD_MARK in self.admin_comment.split()

    @property
    def is_held_by_us(self) -> bool:
        """Whether it waits because we said so."""
        return self.priority == 0 and self.is_marked

    @property
    def is_ours_by_priority(self) -> bool:
        """Whether its priority is one that we gave it."""
        return PRIORITY_LOW <= self.priority <= PRIORITY_HIGH

    @property
    def is_ready(self) -> bool:
        """Whether it could start at once if it had GPUs; nobody's hold, dependency, limit or date keeps it."""
        if self.phase is not JobPhase.WAITING:
            return False
        if self.priority == 0:
            return self.is_held_by_us and self.reason == "JobHeldAdmin"
        return self.reason in READY_REASONS or self.reason.startswith(_CONTENDED)

    @property
    def is_holding(self) -> bool:
        """Whether it has GPUs."""
        return self.phase in (JobPhase.RUNNING, JobPhase.STUCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """A node. ``flags``: its state and all that Slurm adds to it, such as IDLE, DRAIN, POWERED_DOWN."""

    name: str
    flags: frozenset[str]
    gpus: int = 0
    gpus_used: int = 0
    gpu_model: str = ""
    cpus: int = 0
    cpus_used: int = 0
    memory_bytes: float = 0.0
    memory_used_bytes: float = 0.0

    @property
    def is_taking(self) -> bool:
        """Whether a job may be started there; on one that sleeps it may, Slurm wakes it."""
        return not self.flags & _CLOSED

    @property
    def is_busy(self) -> bool:
        """Whether anything runs there."""
        return self.gpus_used + self.cpus_used > 0 or bool(self.flags & {"ALLOCATED", "MIXED", "COMPLETING"})


_CLOSED = frozenset(
    {
        "DOWN", "DRAIN", "DRAINING", "DRAINED", "ERROR", "FAIL", "FAILING", "FUTURE", "INVALID", "INVALID_REG", "MAINT",
        "NOT_RESPONDING", "PERFCTRS", "PLANNED_DOWN", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED",
        "UNKNOWN",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Properties of this Slurm and its units, read once."""

    version: str = ""
    is_counting_memory: bool = False
    has_power_saving: bool = False
    has_accounting: bool = False
    slurm_user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What Slurm says at one moment.

    ``at_s``: seconds since 1970, by the clock of this machine. ``partitions``: the nodes of each.
    """

    at_s: float
    jobs: tuple[SlurmJob, ...]
    nodes: Mapping[str, SlurmNode]
    partitions: Mapping[str, tuple[str, ...]]
