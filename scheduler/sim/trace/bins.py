"""Bins of jobs by size and length: small or large, short or long. PURE.

The paper cuts twice: its trace from a cluster of 8-GPU machines at 8 GPUs and 4 hours, and its own workload, scaled
down to 4-GPU machines, at 4 GPUs and 800 seconds. [tiresias §3.5.1]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# Small short, small long, large short, large long.
BINS = ("SS", "SL", "LS", "LL")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBins:
    """Where the cuts are: a job of ``small_gpus`` is small, one of ``short_s`` is long."""

    small_gpus: int
    short_s: float

    def of(self, gpus: int, duration_s: float) -> str:
        """The bin of a job, one of `BINS`."""
        return ("S" if gpus <= self.small_gpus else "L") + ("S" if duration_s < self.short_s else "L")


ORIGINAL = JobBins(small_gpus=8, short_s=4 * 3600.0)
SCALED = JobBins(small_gpus=4, short_s=800.0)
CUTS: Mapping[str, JobBins] = MappingProxyType({"original": ORIGINAL, "scaled": SCALED})
