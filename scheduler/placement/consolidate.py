"""As few nodes as possible. PURE."""

from dataclasses import dataclass

from farside.scheduler.ledger import Ledger, lowest
from farside.scheduler.state import Allocation, Demand, Job, Node


def demand_of(job: Job, *, is_consolidated: bool) -> Demand:
    """All that a node must have for a job."""
    return Demand(
        gpus=job.gpus,
        cpus_per_gpu=job.cpus_per_gpu,
        memory_bytes_per_gpu=job.memory_bytes_per_gpu,
        gpu_model=job.gpu_model,
        is_consolidated=is_consolidated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Consolidate:
    """The fewest nodes that can hold the job, else none.

    A job that fits on one node goes to the node with the fewest free GPUs that has room (best fit, the first on ties).
    A larger one takes nodes that are wholly free, and one more for what remains: that with the fewest free GPUs that
    fits, or with ``remainder_on_fullest`` the one that has most, as Helios's simulator does [helios §4.2].
    """

    remainder_on_fullest: bool = False

    @property
    def name(self) -> str:
        """``consolidate``."""
        return "consolidate"

    def ledger(self, nodes: tuple[Node, ...]) -> Ledger:
        """The nodes as they are."""
        return Ledger(nodes)

    def demand(self, job: Job) -> Demand:
        """All that a node must have for it."""
        return demand_of(job, is_consolidated=True)

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """The fewest nodes."""
        if ledger.free_gpus < demand.gpus:
            return None
        if demand.gpus <= ledger.node_gpus:
            at = ledger.best_fit(demand, demand.gpus)
            return ((at, demand.gpus),) if at >= 0 else None
        return self._whole_nodes(ledger, demand)

    def _whole_nodes(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        size = ledger.node_gpus
        whole, remainder = divmod(demand.gpus, size)
        mask = ledger.candidates(demand, size, size)
        if mask.bit_count() < whole:
            return None
        taken: list[tuple[int, int]] = []
        used = 0
        for _ in range(whole):
            at = lowest(mask)
            mask ^= 1 << at
            used |= 1 << at
            taken.append((at, size))
        if remainder:
            at = self._remainder(ledger, demand, remainder, used)
            if at < 0:
                return None
            taken.append((at, remainder))
        return tuple(sorted(taken))

    def _remainder(self, ledger: Ledger, demand: Demand, need: int, used: int) -> int:
        if not self.remainder_on_fullest:
            return ledger.best_fit(demand, need, without=used)
        for free in range(ledger.node_gpus, need - 1, -1):
            mask = ledger.candidates(demand, free, need) & ~used
            if mask:
                return lowest(mask)
        return -1
