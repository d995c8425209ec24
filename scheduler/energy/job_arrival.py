"""JobArrivalCheck: which nodes waiting jobs need, and how many of them are not on. PURE.

[helios §4.3.2, Algorithm 2] compares what jobs request with what is on and free, the headroom; where that is too little
it wakes the gap at once. The simulator, the manager and the policy engine over Slurm call what is here: `Headroom` says
which nodes, `nodes_lacking` how many. Where nodes differ they have names, and a job wakes none that it cannot use.
"""

from collections.abc import Collection, Mapping, Sequence


def nodes_lacking(needed: float, powered: float) -> float:
    """How many of the ``needed`` nodes are neither on nor booting. ``powered``: those that are."""
    return max(0.0, needed - powered)


class Headroom:
    """GPUs of nodes without jobs, which waiting jobs fill one after the other. Nodes are indices.

    Args:
        gpus: GPUs of each node.
        idle: Nodes that are on and have no job, in the order in which they are filled.
        asleep: Nodes that could be woken, those that boot already first.
        reachable: Nodes that are on or could be woken, with jobs or without; None: all.

    Attributes:
        called: The nodes that were filled, in that order.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        *,
        idle: Sequence[int],
        asleep: Sequence[int],
        reachable: Collection[int] | None = None,
    ) -> None:
        self._gpus = list(gpus)
        self._idle, self._asleep = idle, asleep
        self._reachable = range(len(self._gpus)) if reachable is None else reachable
        self.called: dict[int, None] = {}

    @property
    def is_spent(self) -> bool:
        """Whether no GPU is left."""
        return not any(self._gpus[at] for nodes in (self._idle, self._asleep) for at in nodes)

    def could_hold(self, gpus: int, fits: Mapping[int, int]) -> bool:
        """Whether a job would find its GPUs with every node on and nobody else there.

        Otherwise waking some of its nodes would help nobody. ``fits``: GPUs of the job by node, were the node empty.
        """
        return sum(many for at, many in fits.items() if at in self._reachable) >= gpus

    def fill(self, gpus: int, fits: Mapping[int, int], *, may_wake: bool) -> int:
        """Give a job the GPUs of idle nodes, then, where it may wake any, those of sleeping ones.

        Returns:
            How many GPUs it still lacks: they are on nodes with jobs.
        """
        for nodes in (self._idle, self._asleep) if may_wake else (self._idle,):
            for at in nodes:
                taken = min(gpus, self._gpus[at], fits.get(at, 0))
                if taken > 0:
                    self._gpus[at] -= taken
                    gpus -= taken
                    self.called[at] = None
                if not gpus:
                    return 0
        return gpus
