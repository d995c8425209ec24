"""Rates: what is planned for a measured one, how rates are measured, and when they have changed. PURE."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

# From here on the exact tail is computed in vain: it is within a percent of this multiple.
POISSON_MAX = 550.0
ABOVE = 1.1
_PLANNED_SHARE = 0.99


@lru_cache(maxsize=4096)
def poisson_quantile(mean: float, share: float) -> int:
    """The smallest number that a Poisson variable of this mean does not exceed with this probability."""
    term = total = math.exp(-mean)
    count = 0
    while total < share:
        count += 1
        term *= mean / count
        total += term
    return count


def planned_rate(rate: float) -> float:
    """Requests a second that are planned for: one above what a second of Poisson arrivals exceeds once in a hundred.

    100 becomes 125 and 200 becomes 235; above 550 it is a tenth more. The authors' code leaves out P(0), and never ends
    below 4.6 requests a second.
    """
    if rate <= 0:
        return 0.0
    return ABOVE * rate if rate > POISSON_MAX else poisson_quantile(rate, _PLANNED_SHARE) + 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSettings:
    """When rates count as changed. Counts come in ticks of ``tick_s``.

    ``slow_alpha``: of the EWMA over ticks, 20 s; ``fast_ticks``: those whose mean counts upwards at once. Counts of the
    last ``step_ticks`` have stepped up where that is ``step_likelier`` times as likely as that they have not. A
    period's end reschedules after a rise by ``rise_share`` or ``rise_rate``, of the EWMA or by a step, or a fall by
    ``fall_share``; of the EWMA beyond two of its standard deviations. So does a rise that is still there
    ``early_every_s`` after a plan for a burst or drops, or ``fast_ticks`` after a decision for them that changed
    nothing. A burst is two ticks in a row above what the planned rate exceeds once in ``burst_once_in``, more than is
    planned for within ``step_ticks``, or ``drop_share`` dropped within ``fast_ticks``, ``drops_least`` at least: one in
    a hundred is no share.
    """

    tick_s: float = 0.5
    slow_alpha: float = 2 / 41
    fast_ticks: int = 4
    period_s: float = 20.0
    rise_share: float = 0.05
    rise_rate: float = 10.0
    fall_share: float = 0.10
    burst_once_in: float = 10_000.0
    burst_ticks: int = 2
    step_ticks: int = 10
    step_likelier: float = 20.0
    drop_share: float = 0.01
    drops_least: int = 4
    early_every_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One model's rate: the slow average, the last ticks' requests and drops, and ticks in a row that burst."""

    slow: float = 0.0
    counts: tuple[int, ...] = ()
    drops: tuple[int, ...] = ()
    bursting: int = 0

    def stepped(self, target: float, settings: RateSettings) -> float:
        """The mean since they have stepped up, requests a second; 0: they have not.

        Since when they have is where it is likeliest by the counts: those from there on are beyond ``step_likelier``
        times as likely to have come at their own mean as at ``target``, and more so than from any other tick on.
        """
        mean, likeliest, came = 0.0, math.log(settings.step_likelier), 0
        for ticks, count in enumerate(reversed(self.counts), 1):
            came += count
            expected = target * settings.tick_s * ticks
            if came > expected > 0 and (likelier := came * math.log(came / expected) - (came - expected)) > likeliest:
                mean, likeliest = came / (settings.tick_s * ticks), likelier
        return mean

    def rate(self, target: float, settings: RateSettings) -> float:
        """Requests a second: the largest of the slow average, the fast mean, and the mean since a step."""
        fast = self.counts[-settings.fast_ticks :]
        fast_mean = sum(fast) / (settings.tick_s * len(fast)) if fast else 0.0
        return max(self.slow, fast_mean, self.stepped(target, settings))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """All models' rates, the targets that the last plan was made for, and when that was.

    ``again_s``: when they are looked at again for a rise, after a plan that was made while they still rose.
    """

    models: Mapping[str, Measured]
    targets: Mapping[str, float]
    planned_s: float = 0.0
    looked_s: float = 0.0
    again_s: float = math.inf


Cause = Literal["period", "burst", "drops", "rise"]
_EARLY = frozenset({"burst", "drops"})


def tracked(targets: Mapping[str, float], now_s: float = 0.0) -> Tracked:
    """The state after a plan for measured rates ``targets`` (requests a second) that are expected."""
    models = {name: Measured(slow=rate) for name, rate in targets.items()}
    return Tracked(models=models, targets=dict(targets), planned_s=now_s, looked_s=now_s)


def tick(
    state: Tracked, counts: Mapping[str, int], drops: Mapping[str, int], now_s: float, settings: RateSettings
) -> tuple[Tracked, Cause | None]:
    """Takes in the requests and drops of one tick; says why a new plan is due, or None.

    A caller that plans then goes on with `planned`. One that can't yet is told again at each tick, for as long as it is
    so. Rows of a request count, not requests.
    """
    models = {name: _counted(one, name, state, counts, drops, settings) for name, one in state.models.items()}
    state = replace(state, models=models)
    may_be_early = now_s - state.planned_s >= settings.early_every_s
    if may_be_early:
        if any(one.bursting >= settings.burst_ticks for one in models.values()):
            return state, "burst"
        if any(_is_dropping(one, settings) for one in models.values()):
            return state, "drops"
    if now_s >= state.again_s:
        if _have_risen(state, settings):
            return state, "rise"
        state = replace(state, again_s=math.inf)
    if may_be_early and any(_exceeds_plan(one, state.targets[name], settings) for name, one in models.items()):
        return state, "burst"
    if now_s - state.looked_s >= settings.period_s * (1 - 1e-9):
        has_fallen = any(_has_fallen(one, state.targets[name], settings) for name, one in models.items())
        if has_fallen or _have_risen(state, settings):
            return state, "period"
        state = replace(state, looked_s=now_s)
    return state, None


def measured_rates(state: Tracked, settings: RateSettings) -> dict[str, float]:
    """Requests a second by model, as they are measured now."""
    return {name: one.rate(state.targets[name], settings) for name, one in state.models.items()}


def planned(state: Tracked, now_s: float, settings: RateSettings, cause: str = "") -> Tracked:
    """The state after a plan for the rates as they are measured now.

    After a burst or drops these rest on few ticks, so the plan may be too small: the rates are looked at again as soon
    as another plan may come.
    """
    models = {name: replace(one, bursting=0) for name, one in state.models.items()}
    targets = measured_rates(state, settings)
    again_s = now_s + settings.early_every_s if cause in _EARLY else math.inf
    return Tracked(models=models, targets=targets, planned_s=now_s, looked_s=now_s, again_s=again_s)


def kept(state: Tracked, now_s: float, settings: RateSettings) -> Tracked:
    """The state after a decision, whose rates `planned` took, for which the plan that runs was enough.

    What came before the step has left the means ``fast_ticks`` later: rates that are looked at again are so then.
    """
    if state.again_s == math.inf:
        return state
    return replace(state, again_s=min(state.again_s, now_s + settings.fast_ticks * settings.tick_s))


def _counted(
    one: Measured,
    name: str,
    state: Tracked,
    counts: Mapping[str, int],
    drops: Mapping[str, int],
    settings: RateSettings,
) -> Measured:
    count, dropped = counts.get(name, 0), drops.get(name, 0)
    expected = planned_rate(state.targets[name]) * settings.tick_s
    is_above = count > poisson_bound(expected, settings.burst_once_in)
    return Measured(
        slow=one.slow + settings.slow_alpha * (count / settings.tick_s - one.slow),
        counts=(*one.counts, count)[-settings.step_ticks :],
        drops=(*one.drops, dropped)[-settings.fast_ticks :],
        bursting=one.bursting + 1 if is_above else 0,
    )


@lru_cache(maxsize=4096)
def poisson_bound(mean: float, once_in: float) -> float:
    """What a Poisson variable exceeds about once in ``once_in`` draws; by its normal form for large means."""
    if mean > POISSON_MAX:
        return mean + NormalDist().inv_cdf(1 - 1 / once_in) * math.sqrt(mean)
    return poisson_quantile(mean, 1 - 1 / once_in)


def _is_dropping(one: Measured, settings: RateSettings) -> bool:
    dropped = sum(one.drops)
    return dropped >= settings.drops_least and dropped > settings.drop_share * sum(one.counts[-settings.fast_ticks :])


def _exceeds_plan(one: Measured, target: float, settings: RateSettings) -> bool:
    """Whether more came within ``step_ticks`` than is planned for, though no tick of them may show it alone."""
    return sum(one.counts) > planned_rate(target) * settings.tick_s * settings.step_ticks


def _have_risen(state: Tracked, settings: RateSettings) -> bool:
    return any(_has_risen(one, state.targets[name], settings) for name, one in state.models.items())


def _has_risen(one: Measured, target: float, settings: RateSettings) -> bool:
    """Whether the slow average has risen beyond chance, or a step is as large."""
    rise = min(settings.rise_share * target, settings.rise_rate)
    return one.slow > target + max(rise, _by_chance(target, settings)) or one.stepped(target, settings) > target + rise


def _has_fallen(one: Measured, target: float, settings: RateSettings) -> bool:
    return one.rate(target, settings) < target - max(settings.fall_share * target, _by_chance(target, settings))


def _by_chance(target: float, settings: RateSettings) -> float:
    """Two standard deviations of the slow average of Poisson requests."""
    return 2 * math.sqrt(target / settings.tick_s * settings.slow_alpha / (2 - settings.slow_alpha))
