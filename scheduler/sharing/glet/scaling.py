"""Algorithm 2: as few GPUs as the rates need, more at once and fewer after a while [glet §4.5]. PURE."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from farside.scheduler.sharing.glet.change import renumbered
from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.portfolio import impossible, plan_on
from farside.scheduler.sharing.glet.portfolio import plan as plan_within
from farside.scheduler.sharing.glet.size import Sizes

_FEW = 4
PERIODS_BELOW = 3


def fewest(sizes: Sizes, rates: Mapping[str, float], gpus_max: int) -> Plan | Refusal:
    """A plan on the fewest GPUs on which the tries succeed.

    The paper begins with the GPUs of the last period and only adds. Here a first plan leaves some GPUs empty, which is
    an upper bound; what all rates cost at best is the lower one. Between them the search goes up one by one while there
    are few, and by halves while there are many.
    """
    best = plan_within(sizes, rates, gpus_max)
    if isinstance(best, Refusal):
        return best
    low = max(1, sizes.gpus_min(rates))
    while low < best.gpus:
        count = low if best.gpus - low <= _FEW else (low + best.gpus) // 2
        found = plan_on(sizes, rates, count)
        if isinstance(found, Plan):
            best = found
        else:
            low = count + 1
    return best


def enough(
    sizes: Sizes,
    rates: Mapping[str, float],
    above: int,
    gpus_max: int = 256,
    *,
    plan: Callable[[Sizes, Mapping[str, float], int], Plan | Refusal] = fewest,
) -> int | None:
    """GPUs above a number on which ``plan`` finds a plan, as few as it uses; looked for up to ``gpus_max``.

    None: there are none.
    """
    if impossible(sizes, rates, gpus_max) is not None:
        return None
    count = max(above + 1, sizes.gpus_min(rates))
    while count <= gpus_max:
        found = plan(sizes, rates, count)
        if isinstance(found, Plan):
            least = max(above + 1, found.gpus)
            return least if least == count or isinstance(plan(sizes, rates, least), Plan) else count
        count += max(1, count // 8)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What Algorithm 2 remembers from one period to the next.

    ``below``: for how many periods in a row fewer GPUs have been enough, and ``below_most`` how many of them.
    """

    plan: Plan | None = None
    gpus: int = 0
    below: int = 0
    below_most: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """What a period decides: the plan from now on, the GPUs to keep, and the share of each rate that is served.

    ``refusal``: why the rates as a whole have no plan; the last plan stays then.
    """

    scale: Scale
    served_share: float
    refusal: Refusal | None = None


def next_period(
    scale: Scale, rates: Mapping[str, float], gpus_max: int, plan: Callable[[Mapping[str, float], int], Plan | Refusal]
) -> Scaled:
    """GPUs for a period [glet §4.5, Algorithm 2]: up at once, down when fewer have been enough for three periods.

    Args:
        scale: What there was.
        rates: Planned requests a second by model.
        gpus_max: GPUs that can be had.
        plan: The fewest GPUs for rates, such as `fewest`.
    """
    found = plan(rates, gpus_max)
    if isinstance(found, Refusal):
        kept = Scale(plan=scale.plan, gpus=scale.gpus)
        return Scaled(scale=kept, served_share=served_share(scale.plan, rates), refusal=found)
    if found.gpus >= scale.gpus:
        return Scaled(scale=Scale(plan=found, gpus=found.gpus), served_share=1.0)
    below, most = scale.below + 1, max(scale.below_most, found.gpus)
    if below >= PERIODS_BELOW:
        return Scaled(scale=Scale(plan=found, gpus=most), served_share=1.0)
    return Scaled(scale=replace(scale, plan=found, below=below, below_most=most), served_share=1.0)


def served_share(plan: Plan | None, rates: Mapping[str, float]) -> float:
    """The share that a plan serves of the rate of that model of which it serves least; every model keeps so much."""
    served = plan.served() if plan is not None else {}
    return min([1.0, *(served.get(name, 0.0) / rate for name, rate in rates.items() if rate > 0)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What an epoch decides: the plan to go to, or None where the one that runs stays.

    ``served_share``: the share of each rate that is served; ``refusal``: why the rates as a whole have no plan.
    """

    scale: Scale
    plan: Plan | None
    served_share: float
    refusal: Refusal | None


def decide(
    scale: Scale,
    current: Plan,
    rates: Mapping[str, float],
    gpus_max: int,
    plan: Callable[[Mapping[str, float], int], Plan | Refusal],
) -> Decided:
    """An epoch [glet §4.1]: the plan that runs stays where it is enough and no GPU would be given back.

    Another one has its GPUs numbered so that most stays. Arguments are those of `next_period`; ``current`` is the plan
    that runs, empty at the start.
    """
    scaled = next_period(scale, rates, gpus_max, plan)
    found = scaled.scale.plan
    if found is None or scaled.refusal is not None:
        stays = True
    else:
        stays = bool(current.glets) and served_share(current, rates) >= 1 and scaled.scale.gpus >= current.gpus
    return Decided(
        scale=scaled.scale,
        plan=None if stays or found is None else renumbered(current, found),
        served_share=scaled.served_share,
        refusal=scaled.refusal,
    )
