"""What aggregation costs an Aggregator: processor time for each chunk, and for each byte of it. PURE.

An update takes time that does not depend on how much is summed (frames, turns, a chunk's states), and time for each
byte. An Aggregator counts by job its updates, their bytes and processor time, and two sums more, from which the
straight line through all updates follows (`kmod_shim/engine/aggregator.c`). The paper has a time for each tensor
instead [autops §4.3.3.1, e_t]; the sum over a job's chunks is what was measured in both.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SPREAD_MIN = 0.1
"""Sizes whose standard deviation is a smaller share of their mean say nothing of a chunk's own cost."""
SURE = 6.0
"""Nor do they where that share, times the root of their number, is less: if times vary by a third, the two parts are
then known to a twentieth of their sum."""


class Basis(StrEnum):
    """How the two figures were found."""

    BOTH = "both"  # by a line through all updates
    ALIKE = "alike"  # by bytes alone: sizes differ too little for so many updates
    SMALL = "small"  # by bytes alone: small chunks took even less than their share
    LARGE = "large"  # by chunks alone: large ones took no longer than small ones
    UNTOLD = ""  # by bytes alone: the Aggregator did not say more


WORDS = {
    Basis.BOTH: "",
    Basis.ALIKE: "by bytes alone, since its chunks are too alike in size to tell",
    Basis.SMALL: "by bytes alone, since small chunks take even less than their share",
    Basis.LARGE: "by chunks alone, since large ones take no longer than small ones",
    Basis.UNTOLD: "by bytes alone, as its Aggregator tells it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Sums over all updates of a job at one Aggregator; a size counts the bytes of all members.

    Attributes:
        updates: Their number.
        size_bytes: Of their sizes.
        busy_s: Of their processor times.
        size_squares: Of the squares of their sizes, in bytes²; 0: not told.
        size_times: Of their sizes by their times, in byte seconds.
    """

    updates: int
    size_bytes: float
    busy_s: float
    size_squares: float = 0.0
    size_times: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds that an Aggregator takes for each chunk that it updates, and for each byte that members push."""

    chunk_s: float = 0.0
    byte_s: float = 0.0
    basis: Basis = Basis.UNTOLD

    def work_s(self, chunks: float, size_bytes: float) -> float:
        """CPU seconds of one iteration for these chunks; ``size_bytes``: pushed by all members together."""
        return chunks * self.chunk_s + size_bytes * self.byte_s

    def differs(self, other: "Cost", chunks: float, size_bytes: float, share: float) -> bool:
        """Whether one of its two parts differs by more than this share of what these chunks cost by this one."""
        whole_s = self.work_s(chunks, size_bytes)
        by_chunks_s = abs(self.chunk_s - other.chunk_s) * chunks
        return max(by_chunks_s, abs(self.byte_s - other.byte_s) * size_bytes) > share * whole_s


def fitted(told: Counted) -> Cost | None:
    """The cost whose sum over all updates is the time that was measured; None: nothing was counted.

    Both figures are 0 or more: where the line that fits best has one below 0, that one is 0, and the other one is what
    then fits. So neither is ever more than all of the time by chunks, or by bytes.
    """
    if not (told.updates > 0 and told.size_bytes > 0 and told.busy_s > 0):
        return None
    by_bytes_s = told.busy_s / told.size_bytes
    if not told.size_squares:
        return Cost(byte_s=by_bytes_s)
    # Variance and covariance, times the square of the number.
    spread = told.updates * told.size_squares - told.size_bytes**2
    if spread < (max(SPREAD_MIN, SURE / math.sqrt(told.updates)) * told.size_bytes) ** 2:
        return Cost(byte_s=by_bytes_s, basis=Basis.ALIKE)
    byte_s = (told.updates * told.size_times - told.size_bytes * told.busy_s) / spread
    if byte_s <= 0:
        return Cost(chunk_s=told.busy_s / told.updates, basis=Basis.LARGE)
    chunk_s = (told.busy_s - byte_s * told.size_bytes) / told.updates
    if chunk_s < 0:
        return Cost(byte_s=by_bytes_s, basis=Basis.SMALL)
    return Cost(chunk_s=chunk_s, byte_s=byte_s, basis=Basis.BOTH)


def mean_cost(costs: Sequence[Cost]) -> Cost | None:
    """The mean of what several Aggregators say of one job; None: none says anything."""
    if not costs:
        return None
    chunk_s, byte_s = (sum(getattr(one, name) for one in costs) / len(costs) for name in ("chunk_s", "byte_s"))
    return Cost(chunk_s=chunk_s, byte_s=byte_s, basis=costs[0].basis if len(costs) == 1 else _basis_of(costs))


def _basis_of(costs: Sequence[Cost]) -> Basis:
    bases = {one.basis for one in costs}
    return bases.pop() if len(bases) == 1 else Basis.BOTH
