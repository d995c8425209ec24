"""Figure 2.7: how often batch eviction finds slabs that are all lightly active, computed and played out. Pure."""

import math
import random
from collections.abc import Sequence
from itertools import pairwise

from benchmarks.figure import Figure, Table, curve
from farside.daemon.slab.eviction import MappedSlab, candidates, choose

COUNT = 10  # E, as in the figure
EXTRAS = (0, 2, 5, 10)  # E'
BUSY = tuple(step / 20 for step in range(21))  # p_b
MAPPED = 40
LIGHT_PAGES_PER_S, BUSY_PAGES_PER_S = 10.0, 100.0  # either side of a threshold; only their order matters


def played_success(*, count: int, extra: int, busy: float, trials: int, rng: random.Random) -> float:
    """Share of trials in which the donor's own functions took ``count`` slabs and none of them was busy."""
    slabs = tuple(MappedSlab(lease=lease, leased_at_s=0.0) for lease in range(MAPPED))
    good = 0
    for _ in range(trials):
        activity = {s.lease: BUSY_PAGES_PER_S if rng.random() < busy else LIGHT_PAGES_PER_S for s in slabs}
        asked = candidates(slabs, count=count, extra=extra, rng=rng)
        victims = choose(asked, activity, count=count)
        good += all(activity[victim.lease] < BUSY_PAGES_PER_S for victim in victims)
    return good / trials


def random_success(count: int, busy: float) -> float:
    """Chance that E slabs taken at random are all lightly active, when each is busy with probability ``busy``.

    [infiniswap §2.5.2, "Random" in Figure 2.7]
    """
    return (1 - busy) ** count


def batch_success(count: int, extra: int, busy: float) -> float:
    """Chance that among E+E' slabs at least E are lightly active: Figure 2.7's curves. [infiniswap §2.5.2]

    The sum over i = E..E+E' of C(E+E', i) (1-p)^i p^(E+E'-i). The text prints the binomial as C(E+E'-i, i), which is
    no probability (for E=10, E'=10 it is 0 for every i above 10); the figure follows the form used here.
    """
    n = count + extra
    return sum(math.comb(n, i) * (1 - busy) ** i * busy ** (n - i) for i in range(count, n + 1))


def computed_success(count: int, extra: int, busy: float) -> float:
    """The figure's formula; E' = 0 is its "Random" curve."""
    return batch_success(count, extra, busy) if extra else random_success(count, busy)


def figure(*, trials: int, seed: int) -> Figure:
    """The curves for E = 10, and how far playing them out is from computing them."""
    rng = random.Random(seed)
    played = {
        extra: [played_success(count=COUNT, extra=extra, busy=busy, trials=trials, rng=rng) for busy in BUSY]
        for extra in EXTRAS
    }
    computed = {extra: [computed_success(COUNT, extra, busy) for busy in BUSY] for extra in EXTRAS}
    apart = max(abs(a - b) for extra in EXTRAS for a, b in zip(played[extra], computed[extra], strict=True))
    rows = tuple(_row(index, computed, played) for index in range(0, len(BUSY), 2))
    header = ("busy slabs", *[f"E'={extra}" for extra in EXTRAS])
    names = ("random", "2 more", "5 more", "E'=10")
    return Figure(
        key="eviction-curve",
        title="Finding 10 lightly active slabs to evict",
        source="infiniswap Figure 2.7, §2.5.2",
        tables=(Table(caption="Probability, computed / played out", header=header, rows=rows),),
        picture="over the share of busy slabs, 0 to 1, played out\n"
        + curve([(name, _stretch(played[extra])) for name, extra in zip(names, EXTRAS, strict=True)]),
        notes=(
            f"Played out: {trials} evictions from {MAPPED} slabs for each point, through daemon/slab/eviction.py's "
            f"candidates() and choose(); at most {apart:.3f} from the formula.",
            "The paper prints curves without numbers; what it says of them, that random choice plummets, is so here.",
        ),
    )


def _row(index: int, computed: dict[int, list[float]], played: dict[int, list[float]]) -> tuple[str, ...]:
    cells = [f"{computed[extra][index]:.3f} / {played[extra][index]:.3f}" for extra in EXTRAS]
    return (f"{BUSY[index]:.0%}", *cells)


def _stretch(values: Sequence[float]) -> list[float]:
    wide = []
    for a, b in pairwise(values):
        wide += [a, a + (b - a) / 3, a + 2 * (b - a) / 3]
    return [*wide, values[-1]]
