"""One plan out of several tries: Algorithm 1 read in different ways, and on cuts that suit what models want. PURE.

Algorithm 1 cuts each GPU for one model and leaves a rest that may fit nobody; cuts that are mixed beforehand leave room
for all. Which cuts help depends on the table, so they are derived from what the models want. The number of tries is
limited by a count and never by a clock, so that the verdict does not depend on the machine.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from farside.scheduler.sharing.glet.baseline import squishy
from farside.scheduler.sharing.glet.elastic import Variant, place
from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.profile import DeviceProfile
from farside.scheduler.sharing.glet.size import Knee, Sizes

RUNS_MAX = 64
# Tries times models times GPUs: a run takes longer the more there are, and large decisions have fewer.
_BUDGET = 6400
_RUNS_LEAST = 4
# Ways to cut all GPUs that are looked at one by one; above, only those near a good one.
_CUTS_LISTED = 300
IDEAL_CUTS_MAX = 20_000

Cut = tuple[int, ...]
PRINTED: tuple[Variant, ...] = tuple(
    Variant(knee=knee, merge_first=first) for knee in ("chord", "step", "ratio") for first in (True, False)
)
_LARGEST_FIRST = Variant(largest_first=True)
_OTHERS: tuple[Variant, ...] = (
    _LARGEST_FIRST,
    Variant(merge_first=False, largest_first=True),
    Variant(merge_first=False),
    Variant(knee="ratio"),
    Variant(knee="step"),
)
# Of the suitable cuts: tried before squishy bin packing, with the largest models first as well, and before `_OTHERS`.
_CUTS_BEFORE, _CUTS_TWICE, _CUTS_FIRST = 2, 8, 14


def runs_for(rates: Mapping[str, float], gpus: int) -> int:
    """How many tries a decision of this size has; models without a rate cost none."""
    models = sum(rate > 0 for rate in rates.values())
    return max(_RUNS_LEAST, min(RUNS_MAX, _BUDGET // max(1, models * gpus)))


def plan(sizes: Sizes, rates: Mapping[str, float], gpus: int) -> Plan | Refusal:
    """A plan on at most ``gpus`` GPUs: the first try that succeeds.

    What squishy bin packing plans has a plan here, and a GPU more never turns a plan into none: where all tries for
    this number of GPUs fail, those for one fewer follow, down to what the rates take at the very least.

    Args:
        sizes: Models and device, with the interference to plan with.
        rates: Planned requests a second by model.
        gpus: GPUs that there are.
    """
    refusal = impossible(sizes, rates, gpus)
    if refusal is not None:
        return refusal
    first: Refusal | None = None
    for count in range(gpus, max(1, sizes.gpus_min(rates)) - 1, -1):
        found = plan_on(sizes, rates, count)
        if isinstance(found, Plan):
            return found
        first = first or found
    assert first is not None, "there was no number of GPUs to try"
    return first


def plan_on(sizes: Sizes, rates: Mapping[str, float], gpus: int) -> Plan | Refusal:
    """A plan by the tries for exactly this number of GPUs."""
    first: Refusal | None = None
    for found in itertools.islice(_tries(sizes, rates, gpus), runs_for(rates, gpus)):
        if isinstance(found, Plan):
            return found
        first = first or found
    assert first is not None, "a decision has at least one try"
    return first


def ways_to_cut(device: DeviceProfile, gpus: int) -> int:
    """Number of ways to cut a number of equal GPUs, whatever their order."""
    kinds = len(device.cuts)
    return math.comb(gpus + kinds - 1, kinds - 1)


def ideal(sizes: Sizes, rates: Mapping[str, float], gpus: int) -> Plan | Refusal:
    """A plan by search: Algorithm 1 on all ways to cut the GPUs, besides everything that `plan` tries [glet §5.2].

    Raises:
        ValueError: There are too many ways.
    """
    ways = ways_to_cut(sizes.device, gpus)
    if ways > IDEAL_CUTS_MAX:
        raise ValueError(f"{gpus} GPUs can be cut in {ways:,} ways, more than are searched")
    first = plan(sizes, rates, gpus)
    if isinstance(first, Plan) or impossible(sizes, rates, gpus) is not None:
        return first
    rest: Iterator[Plan | Refusal] = itertools.chain(
        (place(sizes, rates, gpus, variant) for variant in PRINTED),
        (place(sizes, rates, gpus, Variant(), cuts) for cuts in all_cuts(sizes, gpus)),
        (place(sizes, rates, gpus, _LARGEST_FIRST, cuts) for cuts in all_cuts(sizes, gpus)),
    )
    return next((found for found in rest if isinstance(found, Plan)), first)


def impossible(sizes: Sizes, rates: Mapping[str, float], gpus: int) -> Refusal | None:
    """Why no plan can exist, if that is known at once."""
    for name in sorted(rates):
        if rates[name] > 0 and (why := sizes.unservable(name)):
            return Refusal(model=name, left=rates[name], why=why)
    needed = sizes.gpus_min(rates)
    if needed > gpus:
        name = max(sorted(rates), key=lambda each: sizes.gpus_min({each: rates[each]}))
        why = f"all rates together need {needed} GPUs at least"
        return Refusal(model=name, left=rates[name], why=why, gpus_min=needed)
    return None


def all_cuts(sizes: Sizes, gpus: int) -> Iterator[tuple[Cut, ...]]:
    """Every way to cut the GPUs, without regard to their order."""
    return itertools.combinations_with_replacement(sizes.device.cuts, gpus)


def _tries(sizes: Sizes, rates: Mapping[str, float], gpus: int) -> Iterator[Plan | Refusal]:
    """What succeeds most often comes first; squishy bin packing is one of the four that every decision has."""
    yield place(sizes, rates, gpus, Variant())
    cuts = suitable_cuts(sizes, rates, gpus)
    yield from (place(sizes, rates, gpus, Variant(), each) for each in cuts[:_CUTS_BEFORE])
    yield squishy(sizes, rates, gpus)
    yield from (place(sizes, rates, gpus, Variant(), each) for each in cuts[_CUTS_BEFORE:_CUTS_FIRST])
    yield from (place(sizes, rates, gpus, variant) for variant in _OTHERS)
    yield from (place(sizes, rates, gpus, _LARGEST_FIRST, each) for each in cuts[:_CUTS_TWICE])
    yield from (place(sizes, rates, gpus, Variant(), each) for each in cuts[_CUTS_FIRST:])


def suitable_cuts(sizes: Sizes, rates: Mapping[str, float], gpus: int) -> list[tuple[Cut, ...]]:
    """Ways to cut the GPUs, those first that best cover the parts that models want."""
    wanted = sorted(wanted_parts(sizes, rates, "chord"), reverse=True)
    kinds = sizes.device.cuts
    if math.comb(gpus + len(kinds) - 1, len(kinds) - 1) <= _CUTS_LISTED:
        listed = _all_offered(kinds, gpus)
    else:
        listed = tuple((cuts, _offered(cuts)) for cuts in _near(kinds, _covering(kinds, wanted, gpus)))
    return [cuts for *_, cuts in sorted((*_lack(offered, wanted), cuts) for cuts, offered in listed)]


def wanted_parts(sizes: Sizes, rates: Mapping[str, float], knee: Knee) -> list[int]:
    """Parts that models would take if all were free: as many knees as they fill, and what the rest needs."""
    found: list[int] = []
    for name, rate in rates.items():
        if rate <= 0:
            continue
        part = sizes.knee(name, knee)
        served = sizes.best_rate[name][part]
        full = max(0, math.ceil(rate / served - 1e-9) - 1) if served > 0 else 0
        rest = sizes.required(name, rate - full * served)
        found += [part] * full + [part if rest is None else rest]
    return found


def _offered(cuts: Sequence[Cut]) -> tuple[tuple[int, int], ...]:
    """Each part of some cuts, ascending, and how many there are."""
    return tuple(sorted(Counter(part for cut in cuts for part in cut).items()))


@lru_cache(maxsize=_CUTS_LISTED)
def _all_offered(kinds: tuple[Cut, ...], gpus: int) -> tuple[tuple[tuple[Cut, ...], tuple[tuple[int, int], ...]], ...]:
    """Every way to cut the GPUs, with what it offers: the same for all rates."""
    return tuple((cuts, _offered(cuts)) for cuts in itertools.combinations_with_replacement(kinds, gpus))


def _lack(offered: Sequence[tuple[int, int]], wanted: Sequence[int]) -> tuple[int, int]:
    """Percent of wanted parts that find none, and percent that the others get too much; ``wanted`` descending."""
    free = dict(offered)
    lack = waste = 0
    for part in wanted:
        for each, _ in offered:
            if each >= part and free[each]:
                free[each] -= 1
                waste += each - part
                break
        else:
            lack += part
    return lack, waste


def _covering(kinds: Sequence[Cut], wanted: Sequence[int], gpus: int) -> tuple[Cut, ...]:
    """A good way to cut many GPUs: for the largest part wanted each time, with the rest for the next that fits in."""
    left = list(wanted)
    found: list[Cut] = []
    for _ in range(gpus):
        if not left:
            found.append(kinds[0])
            continue
        part = left.pop(0)
        cut = min((each for each in kinds if each[0] >= part), key=lambda each: each[0])
        rest = next((each for each in left if len(cut) > 1 and each <= cut[1]), None)
        if rest is not None:
            left.remove(rest)
        found.append(cut)
    return tuple(sorted(found))


def _near(kinds: Sequence[Cut], cuts: tuple[Cut, ...]) -> Iterator[tuple[Cut, ...]]:
    """A way to cut GPUs, and all that differ from it on one GPU."""
    yield cuts
    for old in sorted(set(cuts)):
        for new in kinds:
            if new != old:
                changed = list(cuts)
                changed[changed.index(old)] = new
                yield tuple(sorted(changed))
