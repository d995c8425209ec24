"""Tiresias's placement: only jobs with a skewed model are consolidated. PURE. [tiresias §3.3.3.3]

Where PACKLIMIT stands by default
  Table 3.3 has two kinds of models: six whose largest tensor is at most 14.6 % of the model (GoogleNet), which hardly
  care where they run, and four where it is at least 61.0 % (AlexNet), which do. No model lies between, so the table
  can't tell one limit in that gap from another. Ours is its middle, 37.8 %: of all limits that separate the two kinds
  the one farthest from both, which is what a linear classifier of the largest margin learns from the table
  (packlimit.py learns it anew from a cluster's own jobs).

How it is learned anew
  With ``relearn_jobs`` the domain shows every job of several GPUs that ends and whose skew is known: how far it was
  spread, and how fast it was there (`Sample`). In the manager it shows every start of which that was measured
  (measured_speed.py). After so many of them PACKLIMIT is learned from the newest (`SampleWindow`), and is that of all
  jobs that wait and that come. Where it is right already, sensitive jobs are not spread any more and nobody suffers:
  then it stays.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Literal

from farside.errors import ConfigError
from farside.scheduler.ledger import Ledger
from farside.scheduler.model_zoo import skew_of
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.fragments import Fragments
from farside.scheduler.placement.on_nodes import OnNodes, demand_of
from farside.scheduler.placement.slowdown_sample import Sample
from farside.scheduler.state import Allocation, Demand, Job

LARGEST_OF_THE_EVEN = 0.146  # GoogleNet [tiresias Table 3.3]
SMALLEST_OF_THE_SKEWED = 0.610  # AlexNet
PACKLIMIT = (LARGEST_OF_THE_EVEN + SMALLEST_OF_THE_SKEWED) / 2

_CONSOLIDATE = Consolidate()
_FRAGMENTS = Fragments()


def check_learner() -> None:
    """Load what ``relearn_jobs`` needs, which takes longer to load than most runs take.

    Raises:
        ConfigError: SciPy is not installed: now, and not when the limit is to be learned.
    """
    _learner()


def _learner() -> ModuleType:
    try:
        from farside.scheduler.placement import packlimit
    except ImportError as error:
        hint = "`pip install scipy`, or leave it out; packlimit=SHARE sets the limit by hand"
        raise ConfigError(
            f"placement_settings: relearn_jobs needs SciPy, which is not here ({error})", hint=hint
        ) from error
    return packlimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew(OnNodes):
    """Jobs with S_J over PACKLIMIT go to as few machines as possible, others against fragmentation.

    Attributes:
        packlimit: PACKLIMIT, a share of 1.
        relearn_jobs: PACKLIMIT is learned again after so many jobs of several GPUs have ended, or starts that were
            measured; 0: it stays.
        unmeasured: What becomes of a job whose S_J is not known. The paper's profiler knows it of every job before its
            first start; a trace often does not, and then no job should be slowed by what is not known.
    """

    name = "skew"
    packlimit: float = PACKLIMIT
    relearn_jobs: int = 0
    unmeasured: Literal["consolidate", "relax"] = "consolidate"

    def __post_init__(self) -> None:
        """Refuse a PACKLIMIT that is not between 0 and 1."""
        if not 0 <= self.packlimit <= 1:
            raise ValueError(f"packlimit: must be a share from 0 to 1, is {self.packlimit}")

    @property
    def is_learning(self) -> bool:
        """With ``relearn_jobs``."""
        return bool(self.relearn_jobs)

    def demand(self, job: Job) -> Demand:
        """All that a node must have for it, and whether it is consolidated."""
        return demand_of(job, is_consolidated=self.consolidates(job))

    def consolidates(self, job: Job) -> bool:
        """Whether a job goes to as few machines as possible. One GPU is on one machine wherever it is."""
        skew = skew_of(job)
        return job.gpus > 1 and (skew > self.packlimit if skew > 0 else self.unmeasured == "consolidate")

    def learn(self, history: Collection[Sample], seen: int) -> "Skew":
        """The policy with a PACKLIMIT learned from these jobs when learning is due; otherwise the policy itself."""
        # Each time so many more have ended: the domain asks after every one.
        if not self.relearn_jobs or not seen or seen % self.relearn_jobs:
            return self
        learned = _learner().learn_packlimit(history, current=self.packlimit)
        return replace(self, packlimit=learned.packlimit) if learned.is_learned else self

    def place(self, ledger: Ledger, demand: Demand) -> Allocation | None:
        """Place a job as its demand says."""
        return (_CONSOLIDATE if demand.is_consolidated else _FRAGMENTS).place(ledger, demand)
