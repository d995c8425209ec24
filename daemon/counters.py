"""Counters of a donor since its start; they only grow."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Ending(StrEnum):
    """How a loan ended."""

    RELEASED = "released"  # the borrower needed it no more
    MIGRATED = "migrated"  # recalled, and let go in the time for moving its pages elsewhere
    EVICTED = "evicted"  # recalled, and let go when told to do so at once
    REVOKED = "revoked"  # recalled, and taken because nobody let go in time
    EXPIRED = "expired"  # its borrower was silent for too long


@dataclass(slots=True)
class Counters:
    """Counters of one donor process; the event loop alone writes them."""

    lent: int = 0
    ended: Counter[Ending] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)  # by ErrorCode name: handshakes, frames and requests
    fences: int = 0
    moved_pages: int = 0  # of recalled slabs, as borrowers tell
    dropped_pages: int = 0
    bad_samples: int = 0

    def totals(self) -> dict[str, int]:
        """Flat, for the status; recalled slabs as ``migrations`` and ``evictions`` (let go at once, or taken)."""
        return {
            "lent": self.lent,
            **{str(how): self.ended[how] for how in Ending},
            "migrations": self.ended[Ending.MIGRATED],
            "evictions": self.ended[Ending.EVICTED] + self.ended[Ending.REVOKED],
            "expiries": self.ended[Ending.EXPIRED],
            "refused": self.refused.total(),
            "fences": self.fences,
            "moved_pages": self.moved_pages,
            "dropped_pages": self.dropped_pages,
            "bad_samples": self.bad_samples,
        }
