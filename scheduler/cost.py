"""What a preemption costs: the job pauses, writes a checkpoint, and later reads it again. PURE.

Both are charged to the job that was preempted, when it goes on: it holds its GPUs that long before it makes progress.
"""

from dataclasses import dataclass
from typing import Protocol

from farside.scheduler.state import Job


class CostModel(Protocol):
    """How long a job that was preempted is held up when it goes on."""

    @property
    def name(self) -> str:
        """What ``--set cost=`` calls it."""
        ...

    def preemption_s(self, job: Job) -> float:
        """Seconds lost by one preemption: pause, checkpoint, resume."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCost:
    """Preemption costs nothing, as in the simulation of [tiresias §3.5.3]."""

    @property
    def name(self) -> str:
        """``free``."""
        return "free"

    def preemption_s(self, job: Job) -> float:
        """0."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedCost:
    """Seconds by the number of GPUs: 7 for one, 30 up to eight, 60 above unless told otherwise. [helios §4.2]"""

    one_s: float = 7.0
    few_s: float = 30.0
    many_s: float = 60.0
    few_gpus: int = 8

    @property
    def name(self) -> str:
        """``helios``."""
        return "helios"

    def preemption_s(self, job: Job) -> float:
        """By the step that the job is on."""
        if job.gpus <= 1:
            return self.one_s
        return self.few_s if job.gpus <= self.few_gpus else self.many_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """From the model's size: written once by the chief worker, read by every node, over storage of a stated bandwidth.

    With ``fixed_s`` for what does not depend on the size (stopping, starting processes, setting up communication) the
    default gives 57 to 62 s for the models of Table 3.3, which is what §3.5's totals come to: 13724 s for 221
    preemptions, 17425 s for 297, 18057 s for 316. [tiresias §3.5.2.4]
    """

    storage_bytes_per_s: float = 1.2e9
    fixed_s: float = 57.0
    node_gpus: int = 4

    @property
    def name(self) -> str:
        """``model``."""
        return "model"

    def preemption_s(self, job: Job) -> float:
        """Fixed part, one write, and a read by each node (all read at once, each at the bandwidth of its own)."""
        nodes = -(-job.gpus // self.node_gpus)
        transfers = 1 + 1 + 0.1 * (nodes - 1)  # the file system serves many readers nearly as fast as one
        return self.fixed_s + transfers * job.model_bytes / self.storage_bytes_per_s
