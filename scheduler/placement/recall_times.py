"""How long memory that is lent takes to come back, by what was measured on this cluster. PURE.

A recall has a part that is the same for all, until the order has reached the donor and its end has been told of, and
one that grows with its size: pages move to other donors, or to disks. So a line is fitted to what was measured, and
raised as far as the slowest of those was above it: whoever waits is to know by when the memory is there. Of eight, the
slowest is the quantile of 8/9: so many of the next ones are no slower, if nothing else changes. One or two recalls do
not say that, so a node that has fewer than eight goes by the newest of others as well.

A recall whose job leaves before the memory is back has no end that could be measured. Those are the slow ones, and to
leave them out would make all others look faster: what it had taken by then counts, where that is more than expected.

The end is seen when the agent looks, four times a second, so what was measured may have ended up to one look before,
and the next one may be seen a look later: that is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest

KEPT = 8
"""Number of newest recalls that the next one is judged by: rates follow the load, so older ones say little."""

LOOK_S = 0.25
"""Between two looks of an agent whose donor takes memory back (`HURRY_S` of agent/session.py)."""

Sample = tuple[int, float]
"""Bytes, and the seconds that they took."""


@dataclass(slots=True)
class RecallTimes:
    """The newest recalls of each node, the oldest first."""

    by_node: dict[str, list[Sample]] = field(default_factory=dict)

    def add(self, node: str, recalled_bytes: int, took_s: float) -> None:
        """One more: from the order until its node said that the memory had come back."""
        self.by_node[node] = [*self.by_node.get(node, ()), (recalled_bytes, took_s)][-KEPT:]

    def add_unfinished(self, node: str, recalled_bytes: int, so_far_s: float) -> None:
        """One whose end nobody sees: it would have taken ``so_far_s`` at least, and counts where that was not expected.

        Before anything was measured it does not count: how much more it would have taken nobody knows.
        """
        expected_s = self.expected_s(node, recalled_bytes)
        if expected_s is not None and so_far_s > expected_s:
            self.add(node, recalled_bytes, so_far_s)

    def samples(self, node: str) -> Sequence[Sample]:
        """Those of a node, and while it has fewer than `KEPT`, the newest of others, as many of each."""
        own = self.by_node.get(node, [])
        others = [reversed(self.by_node[name]) for name in sorted(self.by_node) if name != node]
        by_age = (sample for same_age in zip_longest(*others) for sample in same_age if sample is not None)
        return [*own, *islice(by_age, KEPT - len(own))]

    def expected_s(self, node: str, recalled_bytes: int) -> float | None:
        """In how long so much comes back to a node; None: nothing was measured yet."""
        samples = self.samples(node)
        return time_at(samples, recalled_bytes) + LOOK_S if samples else None


def time_at(samples: Sequence[Sample], size_bytes: int) -> float:
    """Seconds of a size by the samples, at least one.

    By `line_at`, as far as recalls of that size or larger were measured. A larger one takes in proportion to the
    largest of them, as if no part were the same for all: nobody knows from where on the size counts.
    """
    largest = max(size for size, _ in samples)
    if size_bytes <= largest or not largest:
        return line_at(samples, size_bytes)
    return line_at(samples, largest) * size_bytes / largest


def line_at(samples: Sequence[Sample], size_bytes: int) -> float:
    """Seconds of a size by the line nearest to the samples, at least one, raised to the slowest of them.

    It neither begins nor falls below zero. Where all samples are of one size it is flat: they say nothing of the part
    that is the same for all.
    """
    mean_bytes = sum(size for size, _ in samples) / len(samples)
    mean_s = sum(took_s for _, took_s in samples) / len(samples)
    spread = sum((size - mean_bytes) ** 2 for size, _ in samples)
    together = sum((size - mean_bytes) * (took_s - mean_s) for size, took_s in samples)
    each_s = max(0.0, min(together / spread, mean_s / mean_bytes)) if spread else 0.0
    slowest_s = max(took_s - mean_s - each_s * (size - mean_bytes) for size, took_s in samples)
    return mean_s + each_s * (size_bytes - mean_bytes) + slowest_s
