"""Cost of a preemption: the job pauses, writes a checkpoint, and later reads it again. PURE.

Both are charged to the job that was preempted, when it goes on: it holds its GPUs that long before it makes progress.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from farside.scheduler.model_zoo import model_bytes_of
from farside.scheduler.settings import chosen, from_settings
from farside.scheduler.state import Job


class PreemptionCost(Protocol):
    """Preemption cost model: how long a preempted job is delayed when it resumes."""

    @property
    def name(self) -> str:
        """What ``--set cost=`` calls it."""
        ...

    def preemption_s(self, job: Job) -> float:
        """Seconds lost by one preemption: pause, checkpoint, resume."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCost:
    """No cost, as in the simulation of [tiresias §3.5.3]."""

    name = "free"

    def preemption_s(self, job: Job) -> float:
        """0."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SteppedCost:
    """Seconds by the number of GPUs; by default 7 for one, 30 up to eight, 60 above.

    What the published simulator behind [helios §4.2] charges; the text itself says "negligible overhead".
    """

    name = "helios"
    one_s: float = 7.0
    few_s: float = 30.0
    many_s: float = 60.0
    few_gpus: int = 8

    def preemption_s(self, job: Job) -> float:
        """Seconds of the job's step."""
        if job.gpus <= 1:
            return self.one_s
        return self.few_s if job.gpus <= self.few_gpus else self.many_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """Cost by the model's size: written once by the chief worker, read again by every worker. [tiresias §3.2.2, §3.4]

    The storage serves each machine with ``storage_bytes_per_s`` of its own (1.2 GB/s in §3.5.1), so machines read at
    once, and the workers of one machine share. ``fixed_s`` is what does not depend on the size: stopping, starting
    processes, setting up communication.

    [tiresias §3.5.2.4] gives totals: 13724 s for 221 preemptions (62.1 s each), 17425 s for 297 (58.7 s), 18057 s for
    316 (57.1 s), together 59.0 s. Of that the models of Table 3.3 can explain little: at 1.2 GB/s the largest, on
    machines of four GPUs, takes 2.4 s and the mean job of several GPUs 1.1 s. With a fixed part of 58 s each
    preemption costs 58.0 to 60.4 s: 59.1 s for a mean job, within 6 % of each total. Why policies differ the text does
    not say.

    Attributes:
        storage_bytes_per_s: What storage gives one machine, reading or writing.
        fixed_s: What every preemption costs.
        node_gpus: Workers of one machine.
    """

    name = "model"
    storage_bytes_per_s: float = 1.2e9
    fixed_s: float = 58.0
    node_gpus: int = 4

    def __post_init__(self) -> None:
        """Refuse storage without bandwidth, and machines without GPUs."""
        for name in ("storage_bytes_per_s", "node_gpus"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: must be above 0")

    def preemption_s(self, job: Job) -> float:
        """The fixed part, one write, and as many reads as a machine has workers of the job."""
        transfers = 1 + min(job.gpus, self.node_gpus)
        return self.fixed_s + transfers * model_bytes_of(job) / self.storage_bytes_per_s


PREEMPTION_COSTS: Mapping[str, type[PreemptionCost]] = MappingProxyType(
    {"free": NoCost, "helios": SteppedCost, "model": ModelCost}
)


def make_preemption_cost(name: str, settings: Mapping[str, str]) -> PreemptionCost:
    """Make the cost model of a name, its fields set from text.

    Raises:
        ConfigError: No such model, no such setting, or a value that the setting does not take.
    """
    return from_settings(chosen(name, PREEMPTION_COSTS, "cost model"), settings, of=name)
