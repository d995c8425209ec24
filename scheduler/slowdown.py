"""Slowdown of a job by its allocation: how spreading over machines changes its speed. PURE.

What the text of [tiresias] gives, its figures' values not being in it:

* one GPU, or one machine: never slower;
* spread, "the locality of workers mainly impacts the VGG family and AlexNet" (§3.2.2), whose largest tensor is 61.0 to
  77.3 % of the model (Table 3.3); the other six models, at most 14.6 %, are hardly touched;
* placed by Tiresias, a job trains up to 1.67 times as fast as placed at random (§3.5.2.3).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from farside.scheduler.ledger import Ledger
from farside.scheduler.model_zoo import skew_of
from farside.scheduler.placement.measured_speed import CONSOLIDATED, Slowed
from farside.scheduler.placement.on_nodes import demand_of
from farside.scheduler.placement.traffic import crossing_share
from farside.scheduler.settings import chosen, from_settings
from farside.scheduler.state import Allocation, Job


class Slowdown(Protocol):
    """Slowdown model: the speed of a job on an allocation."""

    @property
    def name(self) -> str:
        """What ``--set effect=`` calls it."""
        ...

    def speed(self, job: Job, allocation: Allocation, ledger: Ledger) -> float:
        """Progress in a second there, as a share of the job's fastest; above 0, at most 1."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSlowdown:
    """No slowdown: every allocation is equally good."""

    name = "none"

    def speed(self, job: Job, allocation: Allocation, ledger: Ledger) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadSlowdown:
    """Slowdown that grows with the model's skew and with the traffic between machines.

    ``slowdown = 1 + (largest_slowdown - 1) * skewed * spread``, where ``skewed`` rises from 0 at ``even_skew`` to 1 at
    ``full_skew``, straight in between, and ``spread`` from 0 on the fewest machines that can hold the job to 1 with a
    machine for each worker (`spread_of`). So the worst place of VGG11 is 1.67 times as slow as the best, of AlexNet
    1.50 times, of GoogleNet as fast. Other traffic on the machines does not count, nor does the distance between them.
    Where a placement only counts GPUs, all are on one machine, and nobody is slowed.

    Attributes:
        even_skew: Models up to this share of their largest tensor don't care. GoogleNet's.
        full_skew: From this share on the slowdown is the largest. VGG11's.
        largest_slowdown: Run time in the worst place over that in the best, at ``full_skew``.
    """

    name = "spread"
    even_skew: float = 0.146
    full_skew: float = 0.773
    largest_slowdown: float = 1.67

    def __post_init__(self) -> None:
        """Refuse limits that do not rise, and a speed above the best one."""
        if not self.even_skew < self.full_skew:
            raise ValueError(f"full_skew: must be above even_skew ({self.even_skew}), is {self.full_skew}")
        if self.largest_slowdown < 1:
            raise ValueError(f"largest_slowdown: must be at least 1, is {self.largest_slowdown}")

    def speed(self, job: Job, allocation: Allocation, ledger: Ledger) -> float:
        """1 over the slowdown."""
        if len(allocation) == 1:
            return 1.0
        skewed = min(1.0, max(0.0, (skew_of(job) - self.even_skew) / (self.full_skew - self.even_skew)))
        if skewed == 0:
            return 1.0
        return 1 / (1 + (self.largest_slowdown - 1) * skewed * spread_of(job, allocation, ledger))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSlowdown:
    """Slowdown that spread starts on a cluster were measured to have (measured_speed.py), instead of a model's.

    It grows in a straight line with the spread, from none at 0 to the median of what was measured at the median spread
    of these starts, and no further. A job whose skew is not known is not slowed, nor is one of a kind of which no
    spread start was measured.

    Attributes:
        packlimit: Skew that parts the two kinds of models.
        over: Of starts with models over it; None: none was measured.
        under: Of the others.
    """

    name = "measured"
    packlimit: float
    over: Slowed | None = None
    under: Slowed | None = None

    def speed(self, job: Job, allocation: Allocation, ledger: Ledger) -> float:
        """1 over the slowdown."""
        if len(allocation) == 1 or (self.over is None and self.under is None):
            return 1.0
        return self.speed_at(skew_of(job), spread_of(job, allocation, ledger))

    def speed_at(self, skew: float, spread: float) -> float:
        """Speed of a job whose model has this skew, 0 where it is not known, at this spread."""
        found = self.over if skew > self.packlimit else self.under
        if found is None or skew <= 0 or spread <= CONSOLIDATED:
            return 1.0
        return 1 / (1 + (found.factor - 1) * min(1.0, spread / found.spread))


def spread_of(job: Job, allocation: Allocation, ledger: Ledger) -> float:
    """Spread of an allocation: 0 on the fewest machines that could hold the job, 1 on one machine for each GPU.

    By the share of its traffic that crosses between machines, the two ends being what consolidation can't avoid and
    what is most there can be. [ours]
    """
    crossing = crossing_share([gpus for _, gpus in allocation])
    least = crossing_share(_fewest_machines(job, ledger))
    most = 1 - 1 / job.gpus
    return max(0.0, (crossing - least) / (most - least)) if most > least else 0.0


def _fewest_machines(job: Job, ledger: Ledger) -> list[int]:
    workers: list[int] = []
    remaining = job.gpus
    for capacity, nodes in ledger.sets.capacities(demand_of(job, is_consolidated=True)):
        for _ in range(min(nodes.bit_count(), -(-remaining // capacity))):
            workers.append(min(capacity, remaining))
            remaining -= workers[-1]
        if not remaining:
            break
    return workers


SLOWDOWNS: Mapping[str, type[Slowdown]] = MappingProxyType({"none": NoSlowdown, "spread": SpreadSlowdown})


def make_slowdown(name: str, settings: Mapping[str, str]) -> Slowdown:
    """Make the slowdown model of a name, its fields set from text.

    Raises:
        ConfigError: No such model, no such setting, or a value that the setting does not take.
    """
    return from_settings(chosen(name, SLOWDOWNS, "effect"), settings, of=name)
