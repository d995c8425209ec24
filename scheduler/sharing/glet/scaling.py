"""Algorithm 2: as few GPUs as the rates need, more at once and fewer after a while [glet §4.5]. PURE."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from farside.scheduler.sharing.glet.change import beside, renumbered
from farside.scheduler.sharing.glet.plan import Plan, Refusal
from farside.scheduler.sharing.glet.portfolio import impossible, plan_on
from farside.scheduler.sharing.glet.portfolio import plan as plan_within
from farside.scheduler.sharing.glet.size import ROUNDING, Sizes

_FEW = 4
PERIODS_BELOW = 3
# Planned for models that nobody asks, so that each has a glet and its first request a place to go.
RATE_MIN = 1.0
# Another plan for a share of all rates has to serve so many times what runs: less is not worth a change.
GAIN = 1.05
# So near each other two shares are not told apart; above `GAIN` a plan would be changed for what was not looked for.
_NEAR = 1.04
# As small a share of all rates is looked for.
_SHARE_MIN = 1 / 1024

T = TypeVar("T")
# A decision that asks for plans: it gives rates, gets what came of each, and returns what is decided.
Asking = Generator[Mapping[str, float], Plan | Refusal, T]


def fewest(sizes: Sizes, rates: Mapping[str, float], gpus_max: int) -> Plan | Refusal:
    """A plan on the fewest GPUs on which the tries succeed.

    The paper begins with the GPUs of the last period and only adds. Here a first plan leaves some GPUs empty, which is
    an upper bound; what all rates take at the very least is the lower one. Between them the search goes up one by one
    while there are few, and by halves while there are many.
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


def largest_share(
    rates: Mapping[str, float], above: float = 0.0, refusal: Refusal | None = None
) -> Asking[Plan | Refusal]:
    """A plan of the largest share of all rates that has one; a refusal if none has.

    The share is halved until there is a plan, and then looked for between that one and the last refused, in some 16
    plans at most. Above a share the least that counts is asked for first: one plan where nothing is better.

    Args:
        rates: Planned requests a second by model.
        above: A share that is served already: only one that is worth a change is looked for.
        refusal: Why all rates have no plan, where that is known.
    """
    if refusal is None:
        found = yield rates
        if isinstance(found, Plan):
            return found
        refusal = found
    best: Plan | None = None
    low, high = max(_SHARE_MIN, above * GAIN), 1.0
    share = low if above else high / 2
    while high > low * _NEAR:
        # A model that nobody asks has no more than its least at any share.
        found = yield {name: min(rate, max(RATE_MIN, share * rate)) for name, rate in rates.items()}
        if isinstance(found, Plan):
            best, low = found, share
        elif share > low:
            high = share
        else:
            break
        share = max(low, high / 2) if best is None else (low + high) / 2
    return best or refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What Algorithm 2 remembers from one period to the next.

    ``below``: for how many periods in a row fewer GPUs have been enough, and ``below_most`` how many of them.
    """

    plan: Plan | None = None
    gpus: int = 0
    below: int = 0
    below_most: int = 0

    @property
    def is_above(self) -> bool:
        """Whether more GPUs are kept than the last plan has, so that the end of each period counts."""
        return self.plan is not None and self.plan.gpus < self.gpus


def next_period(scale: Scale, found: Plan, *, is_period: bool = True) -> Scale:
    """GPUs from now on [glet §4.5, Algorithm 2]: up at once, down when fewer have been enough for three periods.

    Args:
        scale: What there was.
        found: A plan of the rates on the fewest GPUs.
        is_period: Whether a period ends; a plan within one tells what it needs, and does not count as another one.
    """
    if found.gpus >= scale.gpus:
        return Scale(plan=found, gpus=found.gpus)
    below, most = scale.below + is_period, max(scale.below_most, found.gpus)
    if below >= PERIODS_BELOW:
        return Scale(plan=found, gpus=most)
    return replace(scale, plan=found, below=below, below_most=most)


def served_share(plan: Plan, rates: Mapping[str, float]) -> float:
    """The share that a plan serves of the rate of that model of which it serves least."""
    served = plan.served()
    return min([1.0, *(served.get(name, 0.0) / rate for name, rate in rates.items() if rate > 0)])


def serves_all(plan: Plan, rates: Mapping[str, float]) -> bool:
    """Whether a plan serves all rates, but for what rounding takes."""
    return served_share(plan, rates) >= 1 - ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What an epoch decides: the plan to go to, or None where the one that runs stays.

    ``refusal``: why the rates as a whole have no plan; ``plan`` is one for a share of all of them then.
    """

    scale: Scale
    plan: Plan | None
    refusal: Refusal | None = None


def deciding(
    scale: Scale, current: Plan, rates: Mapping[str, float], *, is_period: bool = True, is_stale: bool = False
) -> Asking[Decided]:
    """An epoch [glet §4.1]: the plan that runs stays where it is enough and no GPU would be given back.

    Where not all rates fit, it stays if no other one serves a larger share of all of them that is worth a change.
    Another one has its GPUs numbered so that most stays, and where it has fewer than are to be kept, GPUs that it does
    not use go on with what they run. Where GPUs are given back and those that are left do, nothing else changes.

    Args:
        scale: What there was.
        current: The plan that runs, empty at the start.
        rates: Planned requests a second by model.
        is_period: Whether a period ends.
        is_stale: Whether what runs was planned with other latencies, so that it need not serve what it says.
    """
    found = yield rates
    if isinstance(found, Refusal):
        above = 0.0 if is_stale else served_share(current, rates)
        part = yield from largest_share(rates, above, found)
        if isinstance(part, Refusal):
            return Decided(scale=Scale(plan=scale.plan, gpus=scale.gpus), plan=None, refusal=found)
        scale = Scale(plan=part, gpus=max(scale.gpus, part.gpus))
        return Decided(scale=scale, plan=renumbered(current, part), refusal=found)
    scale = next_period(scale, found, is_period=is_period)
    if is_stale:
        return Decided(scale=scale, plan=renumbered(current, found))
    if current.glets and serves_all(current, rates):
        if scale.gpus >= current.gpus:
            return Decided(scale=scale, plan=None)
        left = _on_fewer(current, rates, scale.gpus)
        if left is not None:
            return Decided(scale=scale, plan=left)
    return Decided(scale=scale, plan=beside(current, renumbered(current, found), scale.gpus))


def _on_fewer(plan: Plan, rates: Mapping[str, float], gpus: int) -> Plan | None:
    """What a plan has on some of its GPUs, if all rates are served there; those with the least parts go first."""
    while plan.gpus > gpus:
        parts = plan.gpu_parts()
        others = (
            Plan(glets=tuple(glet for glet in plan.glets if glet.gpu != gpu))
            for gpu in sorted(parts, key=lambda gpu: (parts[gpu], -gpu))
        )
        left = next((other for other in others if serves_all(other, rates)), None)
        if left is None:
            return None
        plan = left
    return plan


def decide(asking: Asking[T], plan: Callable[[Mapping[str, float]], Plan | Refusal]) -> T:
    """What a decision comes to whose plans are made on the spot."""
    try:
        rates = next(asking)
        while True:
            rates = asking.send(plan(rates))
    except StopIteration as end:
        decided: T = end.value
        return decided
