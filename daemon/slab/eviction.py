"""Eviction policy: which slabs a donor takes back; batch eviction, E of E+E'. PURE.

`recall.py` carries the choice out.

Borrowers reach their slabs without the donor's help, so the donor does not know which are busy. Asking all borrowers is
too much, asking none evicts busy slabs; it asks about E+E' chosen at random and takes the E least active of them
[infiniswap §2.5.2]. In three steps, with the asking between the first and the second left to the caller:

    candidates(snapshot, count=E, extra=E', rng)  ->  whom to ask
    choose(asked, answers, count=E)               ->  Victims, each with its reason

Decided here, where the paper is silent:

* Activity is compared per GiB of slab (``ACTIVITY`` carries pages per second per GiB), since slabs are not all 1 GiB.
* A slab without an answer in time counts as the least active. A dead borrower needs none, and for a living one silence
  must not be a way to keep memory.
* Equally active: the one leased longest ago goes, then the lower number; so the result is the same whatever the order
  of the answers.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedSlab:
    """A slab on loan."""

    lease: int
    leased_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A slab to take back, and why this one."""

    lease: int
    reason: str


def candidate_count(*, mapped: int, count: int, extra: int) -> int:
    """E+E': how many slabs to ask about. ``extra`` -1 means E' = E, the paper's largest. [infiniswap §2.5.2]"""
    return min(mapped, count + (count if extra < 0 else extra))


def candidates(mapped: tuple[MappedSlab, ...], *, count: int, extra: int, rng: random.Random) -> tuple[MappedSlab, ...]:
    """The E+E' slabs to ask about, at random, in the order of their numbers. [infiniswap §2.5.2]

    When all mapped slabs must go (``count`` of them), nobody needs to be asked: the result is all of them.
    """
    ordered = sorted(mapped, key=lambda slab: slab.lease)
    chosen = rng.sample(ordered, candidate_count(mapped=len(ordered), count=count, extra=extra))
    return tuple(sorted(chosen, key=lambda slab: slab.lease))


def is_asking_needed(asked: tuple[MappedSlab, ...], count: int) -> bool:
    """False when all candidates go anyway: then CHECK_ACTIVITY would only cost time."""
    return len(asked) > count


def choose(asked: tuple[MappedSlab, ...], activity: Mapping[int, float], *, count: int) -> tuple[Victim, ...]:
    """The ``count`` least active of the candidates, least active first. [infiniswap §2.5.2]

    Args:
        asked: The candidates.
        activity: Lease to pages per second per GiB, of those whose borrowers answered.
        count: E.
    """

    def rank(slab: MappedSlab) -> tuple[float, float, int]:
        return activity.get(slab.lease, -1.0), slab.leased_at_s, slab.lease

    def reason(slab: MappedSlab) -> str:
        known = activity.get(slab.lease)
        return "activity not known" if known is None else f"{known:.1f} pages/s/GiB"

    return tuple(Victim(lease=slab.lease, reason=reason(slab)) for slab in sorted(asked, key=rank)[:count])
