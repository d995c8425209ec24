"""Choice of the donor to lease a slab from, for one device as for a simulated cluster of a thousand nodes. PURE.

Power of two choices over the donors that have no slab of this device yet (M_new), then over those that have (M_old).
[infiniswap §2.4.2]
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorView:
    """Figures of a donor that the choice uses. Memory figures are those of its last answer to QUERY_MEM."""

    donor: int
    slabs: int = 0  # slabs of this device that it has
    free_slabs: int = 0  # slabs that it says it would lease
    used_bytes: int = 0
    total_bytes: int = 1
    usable: bool = True  # up: not suspect, not failed, not recalling


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The donor to ask for a slab, or None and why."""

    donor: int | None
    reason: str


def used_share(view: DonorView) -> float:
    """Share of the donor's memory in use, 0 to 1: what "lowest memory usage" compares. [infiniswap §2.4.2]"""
    return view.used_bytes / max(1, view.total_bytes)


def draw(views: Iterable[DonorView], *, choices: int, banned: frozenset[int], rng: random.Random) -> tuple[int, ...]:
    """The donors to ask for their memory: ``choices`` at random from M_new, or from M_old when M_new is empty.

    Donors that are down, recall memory, or are banned (they refused already, or have the granule's other copy) are left
    out. [infiniswap §2.4.2]
    """
    usable = [v for v in views if v.usable and v.donor not in banned]
    # Sorted, so that the draw depends on the generator alone and not on the order of the donors.
    new = sorted(v.donor for v in usable if v.slabs == 0)
    old = sorted(v.donor for v in usable if v.slabs > 0)
    pool = new or old
    return tuple(rng.sample(pool, min(choices, len(pool))))


def choose(asked: Iterable[DonorView], rng: random.Random) -> Verdict:
    """The least used of the donors that answered and have room; ties are broken by chance. [infiniswap §2.4.2]"""
    roomy = [v for v in asked if v.usable and v.free_slabs > 0]
    if not roomy:
        return Verdict(donor=None, reason="no donor that was asked has a free slab")
    least = min(used_share(v) for v in roomy)
    best = rng.choice(sorted(v.donor for v in roomy if used_share(v) == least))
    return Verdict(donor=best, reason=f"least used of {len(roomy)}: {least:.0%}")
