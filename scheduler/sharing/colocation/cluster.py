"""Machines of co-located jobs: what runs on them in groups, and what waits. PURE."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farside.group_time import WorkProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGroup:
    """Jobs that run together; the number stays while the machines do."""

    number: int
    machines: int
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What runs where, and what waits.

    Attributes:
        machines: All there are.
        groups: What runs.
        waiting: Jobs that wait, in the order in which they are admitted.
        profiles: Of all these jobs.
        required: Of those that wait, the ones that have waited too long to be left out again.
        fixed: Running jobs that must not be moved: they started a short time ago.
        next_number: Of the next group.
    """

    machines: int
    groups: tuple[RunningGroup, ...] = ()
    waiting: tuple[str, ...] = ()
    profiles: Mapping[str, WorkProfile] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    fixed: frozenset[str] = frozenset()
    next_number: int = 1

    @property
    def free(self) -> int:
        """Machines without a group."""
        return self.machines - sum(group.machines for group in self.groups)

    def of(self, jobs: Sequence[str]) -> list[WorkProfile]:
        """Profiles of jobs."""
        return [self.profiles[job] for job in jobs]
