"""Which donor a slab is leased from: pure, the same functions for one device and for a cluster of a thousand nodes.

Power of two choices over the donors that have no slab of this device yet (M_new), then over those that have (M_old).
[infiniswap §2.4.2]
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Chooser = Callable[[Sequence["DonorView"], random.Random], "DonorView"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorView:
    """A donor as the placement sees it. Memory figures are those of its last answer to QUERY_MEM."""

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
    """The donors to ask for their memory: ``choices`` at random from M_new, filled up from M_old where it has fewer.

    Donors that are down, recall memory, or are banned (they refused already, or have the cluster's other copy) are left
    out. [infiniswap §2.4.2]
    """
    usable = [v for v in views if v.usable and v.donor not in banned]
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


def two_choices(
    views: Sequence[DonorView], *, choices: int, rng: random.Random, banned: frozenset[int] = frozenset()
) -> Verdict:
    """One placement with all figures at hand: draw and choose until a donor has room or none is left.

    A live device does the same in steps, because it asks donors in between. Never names a donor that is banned, down
    or full. [infiniswap §2.4.2]
    """
    by_donor = {v.donor: v for v in views}
    tried = set(banned)
    while drawn := draw(views, choices=choices, banned=frozenset(tried), rng=rng):
        verdict = choose((by_donor[d] for d in drawn), rng)
        if verdict.donor is not None:
            return verdict
        tried.update(drawn)
    return Verdict(donor=None, reason="no donor has a free slab")


def uniform_random(views: Sequence[DonorView], *, rng: random.Random, banned: frozenset[int] = frozenset()) -> Verdict:
    """A donor with room, uniformly at random: what power of two choices is compared with. [infiniswap §2.4.2]"""
    roomy = sorted(v.donor for v in views if v.usable and v.free_slabs > 0 and v.donor not in banned)
    if not roomy:
        return Verdict(donor=None, reason="no donor has a free slab")
    return Verdict(donor=rng.choice(roomy), reason=f"one of {len(roomy)} at random")


def global_best(views: Sequence[DonorView], *, rng: random.Random, banned: frozenset[int] = frozenset()) -> Verdict:
    """The least used donor of all, as one who sees everything would choose; M_new still comes before M_old."""
    usable = [v for v in views if v.usable and v.free_slabs > 0 and v.donor not in banned]
    new = [v for v in usable if v.slabs == 0]
    return choose(new or usable, rng)
