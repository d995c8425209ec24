"""A whole choice of a donor with all figures at hand: power of two choices, and what it is compared with. Pure.

A device draws and chooses in steps (farside.blockdev.mapping.placement), because it asks donors in between.
[infiniswap §2.4.2]
"""

import random
from collections.abc import Sequence

from farside.blockdev.mapping.placement import DonorView, Verdict, choose, draw


def two_choices(
    views: Sequence[DonorView], *, choices: int, rng: random.Random, banned: frozenset[int] = frozenset()
) -> Verdict:
    """Draws and chooses until a donor has room or none is left.

    Never names a donor that is banned, down or full. [infiniswap §2.4.2]
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
