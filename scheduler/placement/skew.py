"""Tiresias's placement: only jobs whose model is skewed are consolidated. PURE. [tiresias §3.3.3.3]

Where PACKLIMIT stands by default
  Table 3.3 has two kinds of models: six whose largest tensor is at most 14.6 % of the model (GoogleNet), which hardly
  care where they run, and four where it is at least 61.0 % (AlexNet), which do. No model lies between, so the table
  can't tell one limit in that gap from another. Ours is its middle, 37.8 %: of all limits that separate the two kinds
  the one farthest from both, which is what a linear classifier of the largest margin learns from the table
  (packlimit.py learns it anew from a cluster's own jobs).
"""

from dataclasses import dataclass
from typing import Literal

from farside.scheduler.ledger import Ledger
from farside.scheduler.model_zoo import skew_of
from farside.scheduler.placement.consolidate import Consolidate, demand_of
from farside.scheduler.placement.fragments import Fragments
from farside.scheduler.state import Allocation, Demand, Job, Node

LARGEST_OF_THE_EVEN = 0.146  # GoogleNet [tiresias Table 3.3]
SMALLEST_OF_THE_SKEWED = 0.610  # AlexNet
PACKLIMIT = (LARGEST_OF_THE_EVEN + SMALLEST_OF_THE_SKEWED) / 2

_CONSOLIDATE = Consolidate()
_FRAGMENTS = Fragments()


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """A job with S_J over PACKLIMIT goes to as few machines as possible, any other where it decreases fragmentation.

    Attributes:
        packlimit: PACKLIMIT, a share of 1.
        unmeasured: What becomes of a job whose S_J nobody knows. The paper's profiler knows it of every job before its
            first start; a trace often does not, and then nobody should be slowed by what is not known.
    """

    packlimit: float = PACKLIMIT
    unmeasured: Literal["consolidate", "relax"] = "consolidate"

    def __post_init__(self) -> None:
        """Refuses what is no share."""
        if not 0 <= self.packlimit <= 1:
            raise ValueError(f"packlimit: must be a share from 0 to 1, is {self.packlimit}")

    @property
    def name(self) -> str:
        """``skew``."""
        return "skew"

    def ledger(self, nodes: tuple[Node, ...]) -> Ledger:
        """The nodes as they are."""
        return Ledger(nodes)

    def demand(self, job: Job) -> Demand:
        """All that a node must have for it, and whether it is consolidated."""
        return demand_of(job, is_consolidated=self.consolidates(job))

    def consolidates(self, job: Job) -> bool:
        """Whether a job goes to as few machines as possible. One GPU is on one machine wherever it is."""
        skew = skew_of(job)
        return job.gpus > 1 and (skew > self.packlimit if skew > 0 else self.unmeasured == "consolidate")

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """As the demand says."""
        return (_CONSOLIDATE if demand.is_consolidated else _FRAGMENTS).place(ledger, demand)
