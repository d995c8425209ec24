"""Placement by skew: which jobs are profiled, the reason for a placement in words, and the limit in force. PURE."""

import math
from collections.abc import Callable, Mapping

from farside.scheduler.admission.history import History
from farside.scheduler.manager.decider.adapter import job_of
from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.view.view import Packlimit
from farside.scheduler.model_zoo import find_model, skew_of
from farside.scheduler.placement.measured_speed import Slowed, slowed
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.skew import Skew
from farside.units import format_count

TOGETHER, ANYWHERE = "it goes to as few nodes as possible", "it goes where it leaves the fewest fragments"


def is_to_be_profiled(job: LiveJob, placement: PlacementPolicy) -> bool:
    """Whether what a job sends is noted when it starts now.

    As it says itself; else until a start has told something, where places go by it and there is more than one.
    """
    if job.spec.profile is not None:
        return job.spec.profile
    is_told = job.profile is not None and not job.profile.problem
    is_named = find_model(job.spec.model) is not None
    return isinstance(placement, Skew) and job.spec.gpus > 1 and not is_told and not is_named


def why_there(job: LiveJob, history: History, clock: Callable[[float], str]) -> tuple[str, ...]:
    """Lines that say why it is consolidated or spread, and what the limit follows from; none where it has no meaning.

    ``history``: of its domain. ``clock``: a time in words.
    """
    placement = history.placement
    if not isinstance(placement, Skew) or job.spec.gpus <= 1 or job.is_over:
        return ()
    seen = job_of(job)
    where, skew = TOGETHER if placement.consolidates(seen) else ANYWHERE, skew_of(seen)
    if not skew:
        return (f"{where}: {_unknown(job)}", *_limit_lines(history, placement, clock))
    side = "over" if skew > placement.packlimit else "not over"
    source = f"as start {job.profile.start} showed" if seen.skew and job.profile is not None else "by its model's name"
    first = f"{where}: its largest tensor is {skew:.1%} of its model, {side} {placement.packlimit:.1%} ({source})"
    return (first, *_limit_lines(history, placement, clock))


def _unknown(job: LiveJob) -> str:
    if job.profile is not None:
        return f"the skew of its model is not known: {job.profile.problem}"
    return "the skew of its model is not measured yet"


def _limit_lines(history: History, placement: Skew, clock: Callable[[float], str]) -> tuple[str, ...]:
    """What the limit follows from, and how much slower spread starts were; none where nothing is learned."""
    if not placement.is_learning:
        return ()
    seen = f"{format_count(history.measured_starts, 'measured start')}, {history.spread_starts} of them spread"
    if math.isnan(history.learned_at_s):
        first = (
            f"the limit of {placement.packlimit:.1%} is as configured: {seen}, of which {history.samples.seen} could "
            f"be compared; it is learned after each {placement.relearn_jobs}, once some were slowed and some were not"
        )
    else:
        first = (
            f"the limit of {placement.packlimit:.1%} was learned at {clock(history.learned_at_s)} from "
            f"{format_count(history.learned_from, 'start')} that could be compared"
        )
    over, under = _slowed(history, placement)
    lost = [_loss(one, side) for one, side in ((over, "over"), (under, "not over")) if one is not None]
    return (first, f"an iteration of spread starts took {', '.join(lost)}") if lost else (first,)


def _loss(one: Slowed, side: str) -> str:
    starts = format_count(one.starts, "start")
    return f"{one.factor:.2f} times as long as consolidated for models {side} the limit (median of {starts})"


def _slowed(history: History, placement: Skew) -> tuple[Slowed | None, Slowed | None]:
    over = slowed(history.samples, placement.packlimit, is_over=True)
    return over, slowed(history.samples, placement.packlimit, is_over=False)


def packlimits(histories: Mapping[str, History]) -> tuple[Packlimit, ...]:
    """The limit in force in each partition; none where places do not go by skew."""
    found = []
    for name, history in histories.items():
        placement = history.placement
        if isinstance(placement, Skew):
            over, under = _slowed(history, placement)
            found.append(
                Packlimit(
                    partition=name,
                    packlimit=placement.packlimit,
                    since_s=None if math.isnan(history.learned_at_s) else history.learned_at_s,
                    learned_from=history.learned_from,
                    measured_starts=history.measured_starts,
                    spread_starts=history.spread_starts,
                    slowdown_over=None if over is None else over.factor,
                    slowdown_over_from=0 if over is None else over.starts,
                    slowdown_under=None if under is None else under.factor,
                    slowdown_under_from=0 if under is None else under.starts,
                )
            )
    return tuple(found)
