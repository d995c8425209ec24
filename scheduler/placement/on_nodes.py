"""Shared code of placements that work on single nodes. PURE."""

from collections.abc import Collection
from typing import Self

from farside.scheduler.ledger import Ledger
from farside.scheduler.placement.slowdown_sample import Sample
from farside.scheduler.state import Demand, Job, Node


def demand_of(job: Job, *, is_consolidated: bool) -> Demand:
    """Demand of a job on a node, in full."""
    return Demand(
        gpus=job.gpus,
        cpus_per_gpu=job.cpus_per_gpu,
        memory_bytes_per_gpu=job.memory_bytes_per_gpu,
        swap_bytes_per_gpu=job.swap_bytes_per_gpu,
        gpu_model=job.gpu_model,
        runs_as=job.runs_as,
        choice=job.choice,
        is_consolidated=is_consolidated,
    )


class OnNodes:
    """Base of placements on single nodes: the plain ledger, the full demand, and no learning."""

    __slots__ = ()

    @property
    def is_learning(self) -> bool:
        """No."""
        return False

    def ledger(self, nodes: tuple[Node, ...]) -> Ledger:
        """The nodes as they are."""
        return Ledger(nodes)

    def demand(self, job: Job) -> Demand:
        """All that a node must have for it."""
        return demand_of(job, is_consolidated=False)

    def learn(self, history: Collection[Sample], seen: int) -> Self:
        """Itself: it needs to know nothing."""
        return self
