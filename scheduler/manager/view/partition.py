"""Whose a node is, and whose jobs run there: of partitions. PURE."""

from collections.abc import Mapping
from dataclasses import dataclass

from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.manager.model.record import LiveJob, LiveNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Whose:
    """``partition``: that a node belongs to. ``borrower``: another one, whose jobs run there."""

    partition: str | None = None
    borrower: str | None = None


NOBODYS = Whose()


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """What says whose nodes are: the settings, and the jobs that run there."""

    partitions: Partitions = NO_PARTITIONS
    jobs: Mapping[str, LiveJob]

    def of(self, node: LiveNode) -> Whose:
        """Whose a node is; null where there are no partitions, or none has it."""
        partitions = self.partitions
        if not partitions:
            return NOBODYS
        own = partitions.owner_of(node.name)
        there = (self.jobs[job_id].spec for job_id, _, _ in node.tasks if job_id in self.jobs)
        others = (partitions.name_of(spec.partition) for spec in there if not spec.colocate)
        return Whose(partition=own or None, borrower=next((name for name in others if name != own), None))
